"""Settings and presets as one file, to take along to another machine.

What belongs to this window only (its place, the chat shown last) stays out. A file is read as a whole before anything
changes; what cannot be used of it is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from app.atomic_file import write_json
from app.errors import NewerSettingsError, SettingsImportError, from_os_error
from app.presets import Preset, as_json, preset_from
from app.settings import SettingProblem, Settings, usable_values

FORMAT, VERSION = "ember-settings", 1
_LARGEST_BYTES = 16 * 1024**2  # no settings come near; a file chosen by mistake may be huge


@dataclass(frozen=True, slots=True)
class ImportedSettings:
    """`values`: of `Settings`, to be changed. `problems`: what was passed over, by the name of a setting or preset."""

    values: dict[str, Any]
    presets: tuple[Preset, ...]
    problems: tuple[SettingProblem, ...]


def export_settings(path: Path, settings: Settings, presets: Iterable[Preset]) -> None:
    """Raises StorageError."""
    shown = _shown_names()
    values = {name: value for name, value in asdict(settings).items() if name in shown}
    content = {
        "format": FORMAT,
        "version": VERSION,
        "settings": values,
        "presets": [as_json(preset) for preset in presets],
    }
    write_json(path, content)


def read_exported_settings(path: Path, knows_model: Callable[[str], bool]) -> ImportedSettings:
    """What the file at `path` holds. Raises SettingsImportError, StorageError."""
    stored = _read(path)
    settings, presets = stored.get("settings", {}), stored.get("presets", [])
    if not isinstance(settings, dict) or not isinstance(presets, list):
        raise _not_ours(path)
    shown = _shown_names()
    problems = [SettingProblem(name, value, "unknown") for name, value in settings.items() if name not in shown]
    values, unusable = usable_values({name: value for name, value in settings.items() if name in shown})
    problems.extend(unusable)
    if values.get("model") and not knows_model(values["model"]):
        problems.append(SettingProblem("model", values.pop("model"), "not installed"))
    usable = []
    for one in presets:
        try:
            usable.append(preset_from(one))
        except ValueError as error:
            name = one.get("name") if isinstance(one, dict) else None
            problems.append(SettingProblem("preset", name if isinstance(name, str) else one, str(error)))
    return ImportedSettings(values, tuple(usable), tuple(problems))


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise _not_ours(path)
        stored = json.loads(path.read_bytes())
    except OSError as error:
        raise from_os_error(error, path) from error
    except (ValueError, RecursionError):
        raise _not_ours(path) from None
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise _not_ours(path)
    if stored.get("version") != VERSION:
        raise NewerSettingsError(f"{path} was made by a newer Ember; update Ember to import it.", path=str(path))
    return stored


def _not_ours(path: Path) -> SettingsImportError:
    return SettingsImportError(
        f"{path} holds no settings of Ember; choose a file that was exported here.", path=str(path)
    )


def _shown_names() -> set[str]:
    return {setting.name for setting in fields(Settings) if not setting.metadata["is_hidden"]}
