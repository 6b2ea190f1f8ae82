"""sqlite-utils, the one place that imports it.

WORKAROUND sqlite-utils 4.2: it imports numpy wherever that is installed, only to know its types by name, which no row
here ever has. That costs a tenth of a second before the window is there, so numpy is hidden meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from app.folding import fold

_is_hidden = "numpy" not in sys.modules
if _is_hidden:
    sys.modules["numpy"] = None  # type: ignore[assignment]  # Python's own way to say: not to be found
try:
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations
finally:
    if _is_hidden:
        del sys.modules["numpy"]

__all__ = ["Database", "Migrations", "make_private", "open_database"]


def open_database(path: Path, *, busy_timeout_s: float) -> Database:
    """Connect to the file at `path`. No plug-ins: a stranger's code has no business among the conversations.

    The triggers of the search index call `fold`; the schema is trusted with that wherever SQLite was built not to.
    """
    connection = sqlite3.connect(path, timeout=busy_timeout_s)
    connection.create_function("fold", 1, fold, deterministic=True)
    connection.execute("PRAGMA trusted_schema = ON")
    return Database(connection, execute_plugins=False)


def make_private(path: Path) -> None:
    """Make `path` a file that only its owner may read; a new one is made empty. The log beside it gets its mode.

    An older Ember left it with the mode that the system gives new files. A share that knows no modes is no failure.
    """
    if os.name != "posix":
        return
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        return
    for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        try:
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)
        except OSError:
            continue
