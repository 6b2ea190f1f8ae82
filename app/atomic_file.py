"""JSON files that a crash leaves whole: the old content or the new one, never half of either."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from app.errors import from_os_error

_log = logging.getLogger(__name__)


def write_json(path: Path, content: object) -> None:
    """Write `content` to `path`, making its folder. Raises StorageError, and leaves what was there then."""
    temporary = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, indent=2)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise from_os_error(error, path) from error


def set_aside(path: Path) -> Path:
    """Move a damaged file out of the way, so that it can still be looked at. Where it lies then."""
    aside = path.with_name(path.name + ".damaged")
    try:
        path.replace(aside)
    except OSError as error:
        _log.warning("%s is damaged (and cannot be moved: %s); the defaults are used.", path, error)
        return path
    _log.warning("%s was damaged; it lies in %s now, and the defaults are used.", path, aside)
    return aside
