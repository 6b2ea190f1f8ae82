"""Writing an export to a file that people chose."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from app.errors import ExportFailedError


def write_export(path: Path, text: str) -> None:
    """In UTF-8, whole or not at all: what was there before is replaced at the end. Raises ExportFailedError."""
    new = path.with_name(f".{uuid4().hex}.part")
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if path.exists() and not path.is_file():  # a pipe, or /dev/stdout
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        new.write_text(text, encoding="utf-8", newline="\n")
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise ExportFailedError(
            f"Ember cannot write {path} ({reason}); choose another place for it.", path=str(path), reason=reason
        ) from error
