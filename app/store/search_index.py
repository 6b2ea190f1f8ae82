"""The index behind the search: FTS5 over the folded texts, three characters a term: any part of a word is found.

Triggers keep it in the transaction that changes a text; a reply that streams enters it when it ends. The text is the
truth: an index that is missing, out of step or broken is made anew.
"""

from __future__ import annotations

import logging
import sqlite3

from app.database import Database
from app.migrations import SEARCH_INDEX

_log = logging.getLogger(__name__)
TERM = 3  # folded characters; the index holds nothing shorter
_SHADOWS = ("config", "content", "data", "docsize", "idx")  # the tables in which FTS5 keeps an index
_SUSPICIOUS = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)  # what FTS5 also says of an index it cannot use


def check_index(db: Database) -> None:
    """At opening: make the index anew unless it is all there, and of as many messages as there are."""
    try:
        if _is_complete(db) and _is_in_step(db):
            return
    except sqlite3.DatabaseError as error:
        _log.warning("The search index cannot be read: %s", error)
    try:
        rebuild_index(db, "main")
    except sqlite3.Error as error:
        _log.error("The search index cannot be made: %s", error)  # chats can be read all the same


def is_index_broken(db: Database, schema: str, error: sqlite3.Error) -> bool:
    """Whether a statement failed for the index's sake, not for that of the texts or the disk."""
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_CORRUPT_VTAB:
        return True
    if not isinstance(code, int) or code & 0xFF not in _SUSPICIOUS:
        return False
    try:
        db.execute(f"INSERT INTO {schema}.message_index(message_index) VALUES ('integrity-check')")
    except sqlite3.DatabaseError:
        return True
    return False


def rebuild_index(db: Database, schema: str) -> None:
    """From the texts, as one change."""
    _log.warning("The search index is made anew")
    with db.atomic():
        try:
            db.execute(f"DROP TABLE IF EXISTS {schema}.message_index")
        except sqlite3.DatabaseError:
            _mend(db, schema)
            db.execute(f"DROP TABLE IF EXISTS {schema}.message_index")
        for name, statement in SEARCH_INDEX.items():
            if name != "message_index":
                db.execute(f"DROP TRIGGER IF EXISTS {schema}.{name}")
            db.execute(statement.format(schema=f"{schema}."))
        db.execute(f"INSERT INTO {schema}.message_index(rowid, text) SELECT id, fold(text) FROM {schema}.messages")


def _is_complete(db: Database) -> bool:
    wanted = {*SEARCH_INDEX, *(f"message_index_{shadow}" for shadow in _SHADOWS)}
    return wanted <= {name for (name,) in db.execute("SELECT name FROM main.sqlite_master")}


def _is_in_step(db: Database) -> bool:
    """Whether the numbers agree, and the newest text is found. In one look, since another process may be writing."""
    with db.atomic():
        ((counts, ends),) = db.execute("""
            SELECT (SELECT count(*) FROM main.message_index_docsize) = (SELECT count(*) FROM main.messages),
                   (SELECT max(id) FROM main.message_index_content) IS (SELECT max(id) FROM main.messages)
            """).fetchall()
        newest = db.execute(
            "SELECT rowid, substr(text, 1, ?) FROM main.message_index ORDER BY rowid DESC LIMIT 1", [TERM]
        ).fetchall()
        return bool(counts and ends) and all(
            not isinstance(term, str) or len(term) < TERM or _finds(db, rowid, term) for rowid, term in newest
        )


def _finds(db: Database, rowid: int, word: str) -> bool:
    sql = "SELECT 1 FROM main.message_index WHERE message_index MATCH ? AND rowid = ?"
    return bool(db.execute(sql, [phrase(word), rowid]).fetchall())


def phrase(word: str) -> str:
    """`word` as it stands in the language of FTS5."""
    return '"{}"'.format(word.replace('"', '""'))


def _mend(db: Database, schema: str) -> None:
    """Give an index that FTS5 cannot even drop the tables of an empty one."""
    statement = SEARCH_INDEX["message_index"].format(schema=f"{schema}.")
    db.execute(statement.replace("message_index", "message_index_new"))
    for shadow in _SHADOWS:
        ((made,),) = db.execute(
            f"SELECT sql FROM {schema}.sqlite_master WHERE name = ?", [f"message_index_new_{shadow}"]
        ).fetchall()
        db.execute(f"DROP TABLE IF EXISTS {schema}.message_index_{shadow}")
        columns = made[made.index("(") :]
        db.execute(f"CREATE TABLE {schema}.message_index_{shadow}{columns}")
        db.execute(f"INSERT INTO {schema}.message_index_{shadow} SELECT * FROM {schema}.message_index_new_{shadow}")
    db.execute(f"DROP TABLE {schema}.message_index_new")
