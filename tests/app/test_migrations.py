"""Every schema that was ever released opens; a newer one and a broken one are refused and stay as they are."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import pytest

from app.conversation import Attachment, ChatOptions, Draft
from app.conversation_store import ConversationStore
from app.database import Database, Migrations
from app.errors import DamagedDatabaseError, NewerDatabaseError
from app.migrations import MIGRATIONS, schema_version
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason

SCHEMAS = Path(__file__).parent / "schemas"


def made_from(dump: Path, path: Path) -> Path:
    """A database as an older Ember left it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text(encoding="utf-8"))
    connection.close()
    return path


def next_version() -> Migrations:
    """The steps of a later Ember: today's and one more."""
    later = Migrations("ember")
    for step in MIGRATIONS._migrations:
        later(name=step.name)(step.fn)

    @later()
    def m999_colours(db: Database) -> None:
        db.table("conversations").add_column("colour", int, not_null_default=0)
        db.execute("ALTER TABLE messages DROP COLUMN model")

    return later


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_there_is_a_frozen_dump_of_every_version() -> None:
    assert sorted(path.name for path in SCHEMAS.glob("*.sql")) == [
        f"v{version}.sql" for version in range(1, schema_version() + 1)
    ]


@pytest.mark.parametrize("dump", sorted(SCHEMAS.glob("*.sql")), ids=lambda path: path.stem)
def test_an_old_database_opens_with_every_message(dump: Path, data_dir: Path) -> None:
    store = ConversationStore(made_from(dump, data_dir / "ember.db"))
    try:
        conversations = store.conversations()
        assert [entry.title for entry in conversations] == ["요약해 줘", "Tides"]
        assert [entry.is_pinned for entry in conversations] == [False, dump.stem != "v1"]
        korean, tides = (store.messages(entry.id) for entry in conversations)
        assert [(message.role, message.text) for message in tides] == [
            (Role.USER, "Why are there two tides a day?"),
            (Role.ASSISTANT, "Because the Moon pulls on the near side most."),
        ]
        assert tides[1].token_ids == (1, 256, 49151)
        assert tides[1].statistics is not None
        assert tides[1].statistics.decode_tps == 31.5
        assert [message.text for message in korean] == ["이 글을 요약해 줘", "짧게 말하"]
        assert store.close_interrupted_replies() == 1
        assert store.messages(conversations[0].id)[1].finish_reason is FinishReason.CANCELLED
        assert [message.parent_id for message in tides + korean] == [None, tides[0].id, None, korean[0].id]
        assert len(store.versions(tides[1].id)) == (1 if dump.stem in ("v1", "v2") else 2)
        assert [hit.message_id for hit in store.search("moon pulls")] == [tides[1].id]
        assert [hit.message_id for hit in store.search("요약")] == [None, korean[0].id]
        store.add_message(conversations[1].id, Role.USER, "And at the poles?")
        assert store.conversations()[0].title == "Tides"
    finally:
        store.close()


def test_a_database_made_today_has_the_schema_of_the_newest_dump(tmp_path: Path) -> None:
    today = tmp_path / "today" / "ember.db"
    ConversationStore(today).close()
    frozen = made_from(SCHEMAS / f"v{schema_version()}.sql", tmp_path / "frozen.db")

    def schema(path: Path) -> list[tuple[str, str]]:
        connection = sqlite3.connect(path)
        rows = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE '%sqlite_%' ORDER BY name"
        ).fetchall()
        versions = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")]
        connection.close()
        return [(name, " ".join(sql.split())) for name, sql in rows] + [("versions", str(versions))]

    assert schema(today) == schema(frozen)


def test_what_version_3_kept_is_read(data_dir: Path) -> None:
    store = ConversationStore(made_from(SCHEMAS / "v3.sql", data_dir / "ember.db"))
    try:
        korean, tides = store.conversations()
        assert (tides.folder_id, tides.options, tides.view_from) == (
            store.folders()[0].id,
            ChatOptions(temperature=0.5),
            None,
        )
        assert (korean.draft, korean.view_from) == (Draft("그리고", (Attachment("a.txt", "가", 3),)), 3)
    finally:
        store.close()


def test_old_messages_form_one_chain_for_each_conversation(data_dir: Path) -> None:
    path = made_from(SCHEMAS / "v2.sql", data_dir / "ember.db")
    with sqlite3.connect(path) as raw:
        tides, korean = (row[0] for row in raw.execute("SELECT id FROM conversations ORDER BY created_at").fetchall())
        raw.executemany(
            "INSERT INTO messages (conversation_id, role, text, state, created_at) "
            "VALUES (?, 'user', ?, 'complete', '2026-03-01T00:00:00.000000+00:00')",
            [((tides, korean)[number % 2], str(number)) for number in range(3000)],
        )
    raw.close()
    store = ConversationStore(path)
    try:
        messages = store.messages(tides)
        assert [message.text for message in messages[2:]] == [str(number) for number in range(0, 3000, 2)]
        assert [message.parent_id for message in messages] == [None, *(message.id for message in messages[:-1])]
        assert len(store.messages(korean)) == 1502
        assert store.branch_name(tides) == ""
    finally:
        store.close()


@pytest.mark.skipif(os.name != "posix", reason="modes of files are a thing of POSIX")
def test_only_the_owner_can_read_the_database_its_log_and_its_copies(data_dir: Path) -> None:
    """An older Ember made the file readable for all; the log gets the mode of the file from SQLite."""
    path = made_from(SCHEMAS / "v1.sql", data_dir / "ember.db")
    path.chmod(0o644)
    for opened in (path, data_dir / "new.db"):
        store = ConversationStore(opened)
        store.create_conversation()
        modes = {file.name: oct(file.stat().st_mode & 0o777) for file in data_dir.iterdir()}
        store.close()
        assert f"{opened.name}-wal" in modes
        assert set(modes.values()) == {"0o600"}
    assert "ember.db.backup-1" in modes


def test_a_copy_is_made_before_a_database_is_changed(data_dir: Path) -> None:
    path = made_from(SCHEMAS / "v1.sql", data_dir / "ember.db")
    store = ConversationStore(path, migrations=next_version())
    try:
        assert "model" not in store._open_db.table("messages").columns_dict
        assert store._open_db.table("messages").count == 4
        assert store._open_db.execute("PRAGMA user_version").fetchone()[0] == schema_version() + 1
        assert store._open_db.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        store.close()
    old = ConversationStore(data_dir / "ember.db.backup-1")  # this Ember reads what the later one put aside
    try:
        assert [entry.title for entry in old.conversations()] == ["요약해 줘", "Tides"]
        assert [message.model for message in old.messages(old.conversations()[1].id)] == [None, "tiny"]
    finally:
        old.close()


def test_no_copy_is_made_where_nothing_has_to_change(data_dir: Path) -> None:
    for _ in range(2):
        ConversationStore(data_dir / "ember.db").close()
    assert list(data_dir.glob("*backup*")) == []


def test_a_step_that_fails_leaves_the_database_as_it_was(data_dir: Path) -> None:
    path = made_from(SCHEMAS / "v1.sql", data_dir / "ember.db")
    broken = next_version()

    @broken()
    def m9999_breaks(db: Database) -> None:
        db.execute("DELETE FROM messages")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ConversationStore(path, migrations=broken)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
    connection.close()
    store = ConversationStore(path)
    try:
        assert [entry.num_messages for entry in store.conversations()] == [2, 2]
    finally:
        store.close()


def test_a_newer_database_is_refused_and_not_one_byte_changes(data_dir: Path) -> None:
    path = data_dir / "ember.db"
    ConversationStore(path, migrations=next_version()).close()
    before = digest(path)
    with pytest.raises(NewerDatabaseError, match="update Ember"):
        ConversationStore(path)
    assert digest(path) == before
    assert list(data_dir.glob("*backup*")) == []


def test_a_newer_database_is_recognized_while_its_header_lies_in_the_log(data_dir: Path) -> None:
    """A newer Ember was killed: the main file is still of the old version, the write-ahead log is not."""
    path = data_dir / "ember.db"
    ConversationStore(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA wal_autocheckpoint = 0")
    newer.execute("PRAGMA user_version = 7")
    newer.commit()
    killed = data_dir / "killed"
    killed.mkdir()
    for name in ("ember.db", "ember.db-wal"):
        (killed / name).write_bytes((data_dir / name).read_bytes())
    newer.close()
    before = {name: digest(killed / name) for name in ("ember.db", "ember.db-wal")}
    with pytest.raises(NewerDatabaseError):
        ConversationStore(killed / "ember.db")
    assert {name: digest(killed / name) for name in before} == before


def _another_programs_database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE recipes (name)")
    content = connection.serialize()
    connection.close()
    return content


def _broken_database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.executescript((SCHEMAS / "v1.sql").read_text(encoding="utf-8"))
    content = bytearray(connection.serialize())
    connection.close()
    content[100:400] = b"\xff" * 300
    return bytes(content)


def _cut_database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.executescript((SCHEMAS / "v1.sql").read_text(encoding="utf-8"))
    content = connection.serialize()
    connection.close()
    return content[: len(content) - 4096]


@pytest.mark.parametrize(
    "content",
    [
        b"<html>404</html>",
        b"x",
        b"SQLite format 3\0",
        b"SQLite format 3\0" + b"\0" * 2000,
        _another_programs_database(),
        _broken_database(),
        _cut_database(),
    ],
    ids=["html", "one byte", "cut header", "zeros", "another program's", "broken page", "cut off"],
)
def test_a_file_that_is_no_database_of_embers_is_refused_and_left_as_it_is(data_dir: Path, content: bytes) -> None:
    data_dir.mkdir()
    path = data_dir / "ember.db"
    path.write_bytes(content)
    with pytest.raises(DamagedDatabaseError, match="move it away"):
        ConversationStore(path)
    assert path.read_bytes() == content


def test_an_empty_file_becomes_a_database(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "ember.db").touch()
    store = ConversationStore(data_dir / "ember.db")
    assert store.conversations() == []
    store.close()
