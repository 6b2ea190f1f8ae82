"""The open database under all rooms of the store: opening, transactions, failures told. One thread, where it began.

Every change is one transaction; with a write-ahead log and the write order of SQLite, a process killed at any point
leaves the state before or after it. Every failure of the disk is a StorageError.

Incognito conversations lie in a second schema, `incognito`, attached in memory: the same tables, made from those of the
file. Ids tell which schema a row is in: `incognito-...`, and message ids from 2**48 up.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.database import Database, Migrations, make_private, open_database
from app.errors import from_os_error, from_sqlite_error
from app.migrations import MIGRATIONS, check_readable, migrate, schema_version
from app.store.incognito import attach_incognito, schema_of

IN_MEMORY = Path(":memory:")  # SQLite's own name for a database that no file holds
_BUSY_TIMEOUT_S = 5.0


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
        attach_incognito(db)
        db.execute("PRAGMA foreign_keys = ON")  # after migrating: a step may rebuild a table that others refer to

    def _query(self, sql: str, *values: object) -> list[dict[str, Any]]:
        with self._failures_told():
            return list(self._open_db.query(sql, values))

    def _execute(self, sql: str, *values: object) -> int:
        """One statement; how many rows it changed."""
        with self.transaction():
            return int(self._open_db.execute(sql, values).rowcount)

    def _insert(self, table: str, row: dict[str, object]) -> int:
        """A row into `schema.table`; its rowid."""
        columns, places = ", ".join(row), ", ".join("?" * len(row))
        with self.transaction():
            cursor = self._open_db.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", tuple(row.values()))
            return int(cursor.lastrowid or 0)

    def _change(self, table: str, key: str | int, **values: object) -> int:
        """Set columns of one row; how many it was: a row that is gone is no error, a late event may speak of it."""
        columns = ", ".join(f"{column} = ?" for column in values)
        sql = f"UPDATE {schema_of(key)}.{table} SET {columns} WHERE id = ?"
        return self._execute(sql, *values.values(), key)

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise from_sqlite_error(error, self._path) from error
        except OSError as error:
            raise from_os_error(error, self._path) from error


def now() -> str:
    """UTC with a fixed width, so that the texts sort as the times do."""
    return as_text(datetime.now(UTC))


def as_text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def as_list(ids: Iterable[int]) -> str:
    """Ids for `IN (SELECT value FROM json_each(?))`, which takes any number of them."""
    return json.dumps(list(ids))
