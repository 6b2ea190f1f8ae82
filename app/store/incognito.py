"""The schema of incognito conversations: attached in memory, gone with the connection, in no file at any moment."""

from __future__ import annotations

from uuid import uuid4

from app.database import Database
from app.migrations import SEARCH_INDEX

INCOGNITO_PREFIX = "incognito-"
FIRST_INCOGNITO_MESSAGE = 2**48  # far above any id that the file ever gives
SCHEMAS = ("main", "incognito")
_TABLES = ("conversations", "messages")


def new_conversation_id(*, is_incognito: bool) -> str:
    return f"{INCOGNITO_PREFIX}{uuid4().hex}" if is_incognito else uuid4().hex


def is_incognito_id(key: str | int) -> bool:
    """Whether a conversation (a text) or a message (a number) is in memory only."""
    return key >= FIRST_INCOGNITO_MESSAGE if isinstance(key, int) else key.startswith(INCOGNITO_PREFIX)


def schema_of(key: str | int) -> str:
    """Where the row of a conversation or a message lies."""
    return "incognito" if is_incognito_id(key) else "main"


def attach_incognito(db: Database) -> None:
    """At opening, since SQLite attaches nothing within a transaction."""
    db.execute("ATTACH ':memory:' AS incognito")
    marks = ", ".join("?" * len(_TABLES))
    made = (
        f"SELECT sql FROM main.sqlite_master WHERE tbl_name IN ({marks}) AND type IN ('table', 'index') "
        "AND sql IS NOT NULL ORDER BY type DESC"
    )
    for (sql,) in db.execute(made, _TABLES).fetchall():
        db.execute(_in_incognito(sql))
    for statement in SEARCH_INDEX.values():
        db.execute(statement.format(schema="incognito."))
    db.execute("INSERT INTO incognito.sqlite_sequence VALUES ('messages', ?)", [FIRST_INCOGNITO_MESSAGE - 1])


def _in_incognito(sql: str) -> str:
    """`CREATE TABLE name ...` with the schema before the name; SQLite stores its statements without one."""
    for beginning in ("CREATE TABLE ", "CREATE INDEX "):
        if sql.startswith(beginning):
            return f"{beginning}incognito.{sql.removeprefix(beginning)}"
    raise RuntimeError(f"the incognito schema cannot be made: {sql[:60]}")
