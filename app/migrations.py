"""The schema of the database, as the steps that made it. A step that was released is never changed again.

`PRAGMA user_version` counts the steps taken, so that an older Ember knows a newer database without reading it, and
`application_id` tells an Ember database from any other. Steps take plain SQL: sqlite-utils has no ON DELETE CASCADE.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from app.database import Database, Migrations, make_private
from app.errors import NewerDatabaseError, damaged

APPLICATION_ID = 0x456D6272  # "Embr"
_MAGIC = b"SQLite format 3\0"

MIGRATIONS = Migrations("ember")


@MIGRATIONS()
def m001_conversations_and_messages(db: Database) -> None:
    db.execute("""
        CREATE TABLE conversations (
            id TEXT PRIMARY KEY,
            title TEXT NOT NULL DEFAULT '',
            system_prompt TEXT NOT NULL DEFAULT '',
            model TEXT,
            draft TEXT NOT NULL DEFAULT '',
            created_at TEXT NOT NULL,
            updated_at TEXT NOT NULL
        )""")
    db.execute("""
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            conversation_id TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
            role TEXT NOT NULL,
            text TEXT NOT NULL,
            state TEXT NOT NULL,
            created_at TEXT NOT NULL,
            token_ids BLOB,
            tokenizer_id TEXT,
            finish_reason TEXT,
            statistics TEXT,
            model TEXT
        )""")
    db.execute("CREATE INDEX messages_of_conversation ON messages(conversation_id, id)")
    db.execute("CREATE INDEX streaming_messages ON messages(state) WHERE state = 'streaming'")


@MIGRATIONS()
def m002_pinned_conversations(db: Database) -> None:
    db.execute("ALTER TABLE conversations ADD COLUMN is_pinned INTEGER NOT NULL DEFAULT 0")


@MIGRATIONS()
def m003_branches_folders_options(db: Database) -> None:
    """The messages of a conversation become a tree; those there are form one chain.

    `parent_id` refers to nothing that SQLite watches: it would delete a chain of 2,000 messages by recursion, which it
    refuses beyond 1,000. The index holds all that is needed to walk a tree.
    """
    db.execute("ALTER TABLE messages ADD COLUMN parent_id INTEGER")
    db.execute("ALTER TABLE messages ADD COLUMN is_selected INTEGER NOT NULL DEFAULT 1")
    db.execute("ALTER TABLE messages ADD COLUMN attachments TEXT")
    db.execute("""
        UPDATE messages SET parent_id = (
            SELECT max(older.id) FROM messages AS older
            WHERE older.conversation_id = messages.conversation_id AND older.id < messages.id
        )""")
    db.execute("CREATE INDEX messages_in_tree ON messages(conversation_id, parent_id, is_selected)")
    db.execute("DROP INDEX messages_of_conversation")
    db.execute("ALTER TABLE conversations ADD COLUMN folder_id INTEGER")
    db.execute("ALTER TABLE conversations ADD COLUMN options TEXT")
    db.execute("ALTER TABLE conversations ADD COLUMN view_from INTEGER")
    db.execute("ALTER TABLE conversations ADD COLUMN draft_attachments TEXT")
    db.execute("CREATE TABLE folders (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL)")


# By name; `{schema}` may name one, as for the conversations in memory. `fold` is `app.folding.fold`: a program that
# changes texts without it is refused by SQLite rather than letting the index fall out of step.
SEARCH_INDEX = {
    "message_index": "CREATE VIRTUAL TABLE {schema}message_index "
    "USING fts5(text, tokenize = 'trigram case_sensitive 1')",
    "index_added_message": "CREATE TRIGGER {schema}index_added_message AFTER INSERT ON messages "
    "BEGIN INSERT INTO message_index(rowid, text) VALUES (new.id, fold(new.text)); END",
    "index_changed_message": "CREATE TRIGGER {schema}index_changed_message AFTER UPDATE OF text, state ON messages "
    "WHEN new.state <> 'streaming' "
    "BEGIN UPDATE message_index SET text = fold(new.text) WHERE rowid = new.id; END",
    "index_removed_message": "CREATE TRIGGER {schema}index_removed_message AFTER DELETE ON messages "
    "BEGIN DELETE FROM message_index WHERE rowid = old.id; END",
}


@MIGRATIONS()
def m004_search(db: Database) -> None:
    for statement in SEARCH_INDEX.values():
        db.execute(statement.format(schema=""))
    db.execute("INSERT INTO message_index(rowid, text) SELECT id, fold(text) FROM messages")


@MIGRATIONS()
def m005_unfinished_imports(db: Database) -> None:
    """What a file that is being taken in bit by bit has brought so far: it goes again if the rest never comes."""
    db.execute("""
        CREATE TABLE unfinished_imports (
            conversation_id TEXT PRIMARY KEY REFERENCES conversations(id) ON DELETE CASCADE,
            updated_at TEXT NOT NULL,
            draft TEXT NOT NULL
        )""")
    db.execute("""
        CREATE TABLE unfinished_import_folders (
            folder_id INTEGER PRIMARY KEY REFERENCES folders(id) ON DELETE CASCADE
        )""")


def schema_version(migrations: Migrations = MIGRATIONS) -> int:
    return len(migrations._migrations)


def check_readable(path: Path, *, supported_version: int) -> int:
    """The schema version of the file at `path`, 0 for none yet. Never changes a byte of it.

    The header is looked at first, since SQLite tidies up a database by merely opening it; then the version is asked
    once more through a read-only connection, since the newest header may still lie in the write-ahead log.
    Raises DamagedDatabaseError, NewerDatabaseError, OSError, sqlite3.Error.
    """
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        return 0
    if not header.startswith(_MAGIC) or len(header) < 100:
        raise damaged(path, "it is not a database")
    _refuse_newer(path, int.from_bytes(header[60:64], "big"), supported_version)
    _refuse_cut_short(path, header)
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        application_id = int(connection.execute("PRAGMA application_id").fetchone()[0])
        is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    finally:
        connection.close()
    if application_id != APPLICATION_ID and not (is_empty and version == 0):
        raise damaged(path, "another program made it")
    _refuse_newer(path, version, supported_version)
    return version


def migrate(db: Database, path: Path, migrations: Migrations = MIGRATIONS) -> None:
    """Take the missing steps, all or none, after copying a database that has content to `ember.db.backup-<version>`.

    The copy is made while the write lock is held, so nothing comes in between.
    """
    supported = schema_version(migrations)
    if _version(db) == supported:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db)  # another process may have taken the steps while this one waited for the lock
        if version < supported:
            if version:
                _back_up(path, path.with_name(f"{path.name}.backup-{version}"))
            migrations.apply(db)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {supported}")
        db.execute("COMMIT")
    except BaseException:
        db.rollback()
        raise


def _version(db: Database) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _refuse_newer(path: Path, version: int, supported_version: int) -> None:
    if version > supported_version:
        raise NewerDatabaseError(
            f"A newer Ember made {path} (schema {version}, this one knows {supported_version}); "
            "it was left untouched: update Ember, or choose another folder with --data-dir.",
            path=str(path),
        )


def _refuse_cut_short(path: Path, header: bytes) -> None:
    """A file shorter than its header says, with no write-ahead log that could hold the rest."""
    page_size = int.from_bytes(header[16:18], "big")
    num_pages = int.from_bytes(header[28:32], "big")
    log = path.with_name(path.name + "-wal")
    has_log = log.exists() and log.stat().st_size > 0
    if path.stat().st_size < num_pages * (65536 if page_size == 1 else page_size) and not has_log:
        raise damaged(path, "its end is missing")


def _back_up(path: Path, backup: Path) -> None:
    temporary = backup.with_name(backup.name + ".new")
    temporary.unlink(missing_ok=True)
    make_private(temporary)
    source = sqlite3.connect(path)
    target = sqlite3.connect(temporary)
    try:
        source.backup(target)
    finally:
        target.close()
        source.close()
    temporary.replace(backup)
