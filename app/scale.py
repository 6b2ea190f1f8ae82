"""The size of the window's contents. Qt reads its scale once, so this runs before there is a QApplication."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from pathlib import Path

from app.settings import Settings, usable_values

_VARIABLE = "QT_SCALE_FACTOR"


def scale_window(settings_path: Path, environment: MutableMapping[str, str]) -> None:
    """Tell Qt the scale that the settings ask for, on top of one that `environment` has already.

    The file is only looked at: what is wrong with it is told by `read_settings`.
    """
    percent = _stored_percent(settings_path)
    if percent == 100:
        return
    try:
        before = float(environment.get(_VARIABLE) or 1)
    except ValueError:
        before = 1.0  # Qt would not understand it either
    environment[_VARIABLE] = f"{before * percent / 100:g}"


def _stored_percent(path: Path) -> int:
    try:
        stored = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        stored = None
    values, _ = usable_values(stored if isinstance(stored, dict) else {})
    return Settings(**values).scale_percent
