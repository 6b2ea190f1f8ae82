"""Presets: a system prompt, sampling and perhaps a model under a name, kept as JSON beside the settings.

Those that come with Ember are not in the file; the window words their names. A preset that cannot be read is left out,
a file that is no JSON is set aside. Both are logged.
"""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from app.atomic_file import set_aside, write_json
from app.conversation import ChatOptions
from app.errors import PresetBuiltInError, PresetNameError, PresetNameTakenError, UnknownPresetError
from app.settings import Settings, checked

_log = logging.getLogger(__name__)
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class Preset:
    """What it sets in a chat. `system_prompt` None leaves the chat's own, and so does `model`."""

    name: str
    system_prompt: str | None = None
    options: ChatOptions = field(default_factory=ChatOptions)
    model: str | None = None
    is_built_in: bool = False


BUILT_IN = (
    Preset("Precise", options=ChatOptions(0.2, 40, 0.9, 0.0, 1.0), is_built_in=True),
    Preset("Balanced", options=ChatOptions(0.7, 0, 0.95, 0.0, 1.0), is_built_in=True),
    Preset("Creative", options=ChatOptions(1.1, 0, 0.98, 0.05, 1.05), is_built_in=True),
)


class Presets:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = {_key(preset.name): preset for preset in _read(path)}

    def all(self) -> list[Preset]:
        """Those that come with Ember first, then the user's by name."""
        return [*BUILT_IN, *self.own()]

    def own(self) -> list[Preset]:
        return sorted(self._own.values(), key=lambda preset: _key(preset.name))

    def save(self, preset: Preset) -> Preset:
        """Keep it; one of the same name is replaced. Raises PresetNameError, StorageError."""
        kept = replace(preset, name=_checked_name(preset.name), is_built_in=False)
        self._write(self._own | {_key(kept.name): kept})
        return kept

    def save_all(self, presets: Iterable[Preset]) -> None:
        """All of them or, where that fails, none. Raises PresetNameError, StorageError."""
        self._write(self._own | {_key(one.name): replace(one, name=_checked_name(one.name)) for one in presets})

    def rename(self, name: str, new_name: str) -> Preset:
        """Raises UnknownPresetError, PresetNameError (also where another one has that name), StorageError."""
        preset = self._find(name)
        renamed = replace(preset, name=_checked_name(new_name))
        others = {key: one for key, one in self._own.items() if one is not preset}
        if _key(renamed.name) in others:
            raise PresetNameTakenError(
                f"Another preset is called {renamed.name}; choose another name.", name=renamed.name
            )
        self._write(others | {_key(renamed.name): renamed})
        return renamed

    def delete(self, name: str) -> Preset:
        """The preset that is gone now; `save` brings it back. Raises UnknownPresetError, StorageError."""
        preset = self._find(name)
        self._write({key: one for key, one in self._own.items() if one is not preset})
        return preset

    def _find(self, name: str) -> Preset:
        try:
            return self._own[_key(name)]
        except KeyError:
            raise UnknownPresetError(f"There is no preset {name} of yours.", name=name) from None

    def _write(self, presets: dict[str, Preset]) -> None:
        write_json(self._path, {"presets": [as_json(preset) for preset in presets.values()]})
        self._own = presets


def as_json(preset: Preset) -> dict[str, Any]:
    values = asdict(preset)
    del values["is_built_in"]
    return values


def preset_from(stored: object) -> Preset:
    """A preset from JSON values. Raises ValueError where any of them cannot be used."""
    if not isinstance(stored, dict) or not isinstance(options := stored.get("options", {}), dict):
        raise ValueError("it is no preset")
    try:
        name = _checked_name(_text(stored.get("name")) or "")
    except PresetNameError as error:
        raise ValueError(str(error)) from None
    return Preset(name, _text(stored.get("system_prompt")), _options(options), _text(stored.get("model")))


def _options(stored: dict[str, object]) -> ChatOptions:
    settings = {setting.name: setting for setting in fields(Settings)}
    values: dict[str, Any] = {}
    for option in fields(ChatOptions):
        if (value := stored.get(option.name)) is not None:
            setting = settings[option.name]
            values[option.name] = checked(setting.default, value, setting.metadata)
    return ChatOptions(**values)


def _text(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    value.encode()  # half a surrogate pair could not be saved
    return value


def _checked_name(name: str) -> str:
    """Without white space around it. Raises PresetNameError."""
    stripped = unicodedata.normalize("NFC", " ".join(name.split()))
    if not stripped or len(stripped) > _LONGEST_NAME:
        raise PresetNameError(f"A preset's name has 1 to {_LONGEST_NAME} characters; choose another one.", name=name)
    if _key(stripped) in {_key(preset.name) for preset in BUILT_IN}:
        raise PresetBuiltInError(f"{stripped} comes with Ember and stays as it is; choose another name.", name=stripped)
    return stripped


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _read(path: Path) -> list[Preset]:
    try:
        stored = json.loads(path.read_bytes())["presets"]
        if not isinstance(stored, list):
            raise TypeError
    except FileNotFoundError:
        return []
    except OSError as error:
        _log.warning("The presets at %s cannot be read (%s).", path, error)
        return []
    except (ValueError, RecursionError, KeyError, TypeError):
        set_aside(path)
        return []
    presets = []
    for one in stored:
        try:
            presets.append(preset_from(one))
        except ValueError as error:
            _log.warning("A preset in %s is unusable (%s); it is left out.", path, error)
    return presets
