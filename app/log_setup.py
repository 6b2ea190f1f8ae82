"""The log: a file in the data folder that renews itself. It never stops Ember, and never writes to the terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

_MAX_BYTES = 1_000_000
_FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"


class _QuietFileHandler(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (overrides logging's)
        """A full disk must not fill the terminal with tracebacks."""


@contextmanager
def logging_to(path: Path) -> Iterator[Path | None]:
    """Log to `path` while the block runs. Gives the path, or None where no log can be written."""
    root = logging.getLogger()
    handler = _open(path)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield path if isinstance(handler, _QuietFileHandler) else None
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()


def _open(path: Path) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _QuietFileHandler(
            path, maxBytes=_MAX_BYTES, backupCount=3, encoding="utf-8", errors="backslashreplace"
        )
    except OSError:
        return logging.NullHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    return handler
