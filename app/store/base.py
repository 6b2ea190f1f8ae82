"""The open database under all rooms of the store: opening, transactions, failures told. One thread, where it began.

Every change is one transaction; with a write-ahead log and the write order of SQLite, a process killed at any point
leaves the state before or after it. Every failure of the disk is a StorageError.

Incognito conversations lie in a second schema, `incognito`, attached in memory: the same tables, made from those of the
file. Ids tell which schema a row is in: `incognito-...`, and message ids from 2**48 up.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from app.database import Database, Migrations, make_private, open_database
from app.errors import damaged, from_os_error, from_sqlite_error
from app.history import well_formed
from app.migrations import MIGRATIONS, check_readable, migrate, schema_version
from app.store.incognito import SCHEMAS, attach_incognito, schema_of
from app.store.search_index import check_index, is_index_broken, rebuild_index

IN_MEMORY = Path(":memory:")  # SQLite's own name for a database that no file holds
_BUSY_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)
_TABLES = {
    "folders": "id, name",
    "conversations": "id, title, system_prompt, model, draft, created_at, updated_at, is_pinned, folder_id, options, "
    "view_from, draft_attachments",
    "messages": "id, conversation_id, role, text, state, created_at, token_ids, tokenizer_id, finish_reason, "
    "statistics, model, parent_id, is_selected, attachments",
}


class StoreBase:
    """Opens (and creates, backs up, migrates) the database at `path`; `IN_MEMORY` is gone when it is closed.

    Raises NewerDatabaseError and DamagedDatabaseError, which leave the file as it is, or another StorageError.
    """

    def __init__(self, path: Path, *, migrations: Migrations = MIGRATIONS) -> None:
        self._path = path
        self._db: Database | None = None
        with self._failures_told():
            if not self.is_in_memory:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists():
                    check_readable(path, supported_version=schema_version(migrations))
                make_private(path)
            self._db = open_database(path, busy_timeout_s=_BUSY_TIMEOUT_S)
            self._db.conn.text_factory = partial(str, encoding="utf-8", errors="replace")  # a bad byte costs itself
        try:
            with self._failures_told():
                self._prepare(self._db, migrations)
        except BaseException:
            self.close()
            raise

    @property
    def is_in_memory(self) -> bool:
        return self._path == IN_MEMORY

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes made inside are kept together, or none. May be nested."""
        with self._failures_told(), self._open_db.atomic():
            yield

    @property
    def _open_db(self) -> Database:
        if self._db is None:
            raise RuntimeError("the conversation store is closed")
        return self._db

    def _prepare(self, db: Database, migrations: Migrations) -> None:
        db.execute("PRAGMA temp_store = MEMORY")  # SQLite may sort in a file otherwise, incognito rows too
        if not self.is_in_memory and db.journal_mode != "wal":
            db.enable_wal()
        db.execute("PRAGMA synchronous = NORMAL")
        migrate(db, self._path, migrations)
        check_index(db)
        try:
            attach_incognito(db)
            if migrations is MIGRATIONS:
                for table, columns in _TABLES.items():
                    db.execute(f"SELECT {columns} FROM main.{table} LIMIT 0")
        except (RuntimeError, sqlite3.OperationalError) as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
                raise
            raise damaged(self._path, "its tables are not those of Ember") from error
        db.execute("PRAGMA foreign_keys = ON")  # after migrating: a step may rebuild a table that others refer to

    def _query(self, sql: str, *values: object) -> list[dict[str, Any]]:
        with self._failures_told():
            return list(self._open_db.query(sql, values))

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._failures_told():
            return self._open_db.execute(sql, values).fetchall()

    def _salvage(self, table: str, condition: str = "true", *values: object) -> list[dict[str, Any]]:
        """The rows that can be read around a damaged page: from the front up to it, and from the back; by `place`."""
        found: dict[int, dict[str, Any]] = {}
        for order in ("ASC", "DESC"):
            sql = f"SELECT rowid AS place, * FROM {table} NOT INDEXED WHERE {condition} ORDER BY rowid {order}"
            try:
                for row in self._open_db.query(sql, values):
                    found[row["place"]] = row
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                _log.error("A part of %s cannot be read: %s", table, error)
        return [found[place] for place in sorted(found)]

    def _execute(self, sql: str, *values: object) -> int:
        """One statement; how many rows it changed."""
        return self._run(sql, values).rowcount

    def _insert(self, table: str, row: dict[str, object]) -> int:
        """A row into `schema.table`; its rowid."""
        columns, places = ", ".join(row), ", ".join("?" * len(row))
        return self._run(f"INSERT INTO {table} ({columns}) VALUES ({places})", tuple(row.values())).lastrowid or 0

    def _insert_many(self, table: str, rows: Sequence[dict[str, object]]) -> None:
        """All rows, of the same columns, in order, in one statement: FTS5 writes its index out at the end of each."""
        if not rows:
            return
        columns, places = ", ".join(rows[0]), ", ".join("?" * len(rows[0]))
        with self.transaction():
            self._open_db.execute(f"CREATE TEMP TABLE incoming ({columns})")
            incoming = [tuple(row.values()) for row in rows]
            self._open_db.conn.executemany(f"INSERT INTO temp.incoming VALUES ({places})", incoming)
            self._execute(f"INSERT OR IGNORE INTO {table} ({columns}) SELECT * FROM temp.incoming ORDER BY rowid")
            self._open_db.execute("DROP TABLE temp.incoming")

    def _change(self, table: str, key: str | int, **values: object) -> int:
        """Set columns of one row; how many it was: a row that is gone is no error, a late event may speak of it."""
        columns = ", ".join(f"{column} = ?" for column in values)
        sql = f"UPDATE {schema_of(key)}.{table} SET {columns} WHERE id = ?"
        return self._execute(sql, *values.values(), key)

    def _run(self, sql: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        """A statement that writes. Where only the search index is broken, it is made anew and nothing is lost."""
        with self.transaction():
            try:
                return self._open_db.execute(sql, values)
            except UnicodeEncodeError:
                return self._run(
                    sql, tuple(well_formed(value) if isinstance(value, str) else value for value in values)
                )
            except sqlite3.DatabaseError as error:
                broken = [schema for schema in SCHEMAS if is_index_broken(self._open_db, schema, error)]
                if not broken:
                    raise
                for schema in broken:
                    rebuild_index(self._open_db, schema)
                return self._open_db.execute(sql, values)

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise from_sqlite_error(error, self._path) from error
        except OSError as error:
            raise from_os_error(error, self._path) from error
        except UnicodeDecodeError as error:  # in a name of the schema, or in what SQLite says of it
            raise damaged(self._path, "it is damaged") from error


def now() -> str:
    """UTC with a fixed width, so that the texts sort as the times do."""
    return as_text(datetime.now(UTC))


def as_text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def as_list(ids: Iterable[int]) -> str:
    """Ids for `IN (SELECT value FROM json_each(?))`, which takes any number of them."""
    return json.dumps(list(ids))
