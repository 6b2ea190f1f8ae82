"""sqlite-utils, the one place that imports it.

WORKAROUND sqlite-utils 4.2: it imports numpy wherever that is installed, only to know its types by name, which no row
here ever has. That costs a tenth of a second before the window is there, so numpy is hidden meanwhile.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

_is_hidden = "numpy" not in sys.modules
if _is_hidden:
    sys.modules["numpy"] = None  # type: ignore[assignment]  # Python's own way to say: not to be found
try:
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations
finally:
    if _is_hidden:
        del sys.modules["numpy"]

__all__ = ["Database", "Migrations", "open_database"]


def open_database(path: Path, *, busy_timeout_s: float) -> Database:
    """Connect to the file at `path`. No plug-ins: a stranger's code has no business among the conversations."""
    return Database(sqlite3.connect(path, timeout=busy_timeout_s), execute_plugins=False)
