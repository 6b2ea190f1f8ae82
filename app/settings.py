"""The settings: one frozen dataclass, kept as JSON in the data folder.

Each field carries its default, its bounds and one line of help, from which the dialog, the command line and the docs
are made. A bad value costs its own field only; a file that is no JSON is set aside. Both are logged, neither is fatal.
"""

from __future__ import annotations

import json
import logging
import math
import os
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.errors import from_os_error
from engine.protocol.config import KV_AUTO, KV_PRECISIONS, Sampling, Weights

_log = logging.getLogger(__name__)
MB = 1024**2  # as the settings count it


def _setting(
    text: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    is_hidden: bool = False,
) -> dict[str, Any]:
    return {"help": text, "minimum": minimum, "maximum": maximum, "choices": choices, "is_hidden": is_hidden}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose. `is_hidden` fields are remembered, but not shown in the dialog."""

    language: str = field(
        default="system", metadata=_setting("Language of the window.", choices=("system", "en", "ko"))
    )
    theme: str = field(default="system", metadata=_setting("Colours.", choices=("system", "light", "dark")))
    model: str = field(default="", metadata=_setting("Model of new chats, by name or path; empty is the default one."))
    weights: Weights = field(
        default=Weights.BITS_16,
        metadata=_setting("Storage precision of the weights.", choices=tuple(weights.value for weights in Weights)),
    )
    temperature: float = field(
        default=0.7, metadata=_setting("How freely the next word is drawn; 0 is greedy.", minimum=0.0, maximum=5.0)
    )
    top_k: int = field(
        default=0, metadata=_setting("Draw among this many likeliest tokens; 0 is off.", minimum=0, maximum=1000)
    )
    top_p: float = field(
        default=0.95, metadata=_setting("Draw among the likeliest tokens of this mass.", minimum=0.01, maximum=1.0)
    )
    min_p: float = field(
        default=0.0,
        metadata=_setting("Drop tokens less likely than this part of the best.", minimum=0.0, maximum=1.0),
    )
    repetition_penalty: float = field(
        default=1.0, metadata=_setting("Above 1, repeats become less likely.", minimum=0.5, maximum=2.0)
    )
    max_new_tokens: int = field(
        default=1024, metadata=_setting("Longest reply, in tokens.", minimum=1, maximum=1_000_000)
    )
    memory_budget_mb: int = field(
        default=2048,
        metadata=_setting("Memory for the caches of all chats, in MB.", minimum=64, maximum=1_048_576),
    )
    disk_cap_mb: int = field(
        default=20_480,
        metadata=_setting("Most that the saved caches may take on disk, in MB.", minimum=256, maximum=16_777_216),
    )
    disk_floor_mb: int = field(
        default=1024,
        metadata=_setting("Free disk space that saving caches leaves alone, in MB.", minimum=0, maximum=16_777_216),
    )
    prefill_chunk: int = field(
        default=512, metadata=_setting("Tokens read per step while reading a prompt.", minimum=16, maximum=8192)
    )
    kv_precision: str = field(
        default=KV_AUTO,
        metadata=_setting("Precision of the caches; auto lowers it when memory is short.", choices=KV_PRECISIONS),
    )
    allow_compression: bool = field(
        default=False,
        metadata=_setting("Let Ember compress the chat in use by itself when nothing else makes room."),
    )
    send_with: str = field(
        default="enter", metadata=_setting("Key that sends the message.", choices=("enter", "ctrl+enter"))
    )
    window_geometry: str = field(default="", metadata=_setting("Place of the window.", is_hidden=True))
    last_conversation: str = field(default="", metadata=_setting("Chat shown last.", is_hidden=True))

    @property
    def memory_budget_bytes(self) -> int:
        return self.memory_budget_mb * MB

    @property
    def disk_cap_bytes(self) -> int:
        return self.disk_cap_mb * MB

    @property
    def disk_floor_bytes(self) -> int:
        return self.disk_floor_mb * MB

    def sampling(self) -> Sampling:
        """How replies are drawn, without a seed."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


def load_settings(path: Path) -> Settings:
    """The settings at `path`; the defaults where there is no file, or one that cannot be read."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        _log.warning("The settings at %s cannot be read (%s); the defaults are used.", path, error)
        return Settings()
    try:
        stored = json.loads(raw)
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        _set_aside(path)
        return Settings()
    return settings_from(stored)


def settings_from(stored: dict[str, Any]) -> Settings:
    """Settings from JSON values. Each missing or unusable value becomes that field's default."""
    values: dict[str, Any] = {}
    for setting in fields(Settings):
        if setting.name not in stored:
            continue
        try:
            values[setting.name] = _checked(setting.default, stored[setting.name], setting.metadata)
        except ValueError as error:
            _log.warning("The setting %s is unusable (%s); its default is used.", setting.name, error)
    return Settings(**values)


def save_settings(path: Path, settings: Settings) -> None:
    """Write the settings so that a crash leaves the old or the new ones. Raises StorageError."""
    temporary = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(settings), file, ensure_ascii=False, indent=2)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise from_os_error(error, path) from error


def _checked(default: object, value: object, metadata: Any) -> object:
    """`value` in the type of `default` and within its bounds. Raises ValueError."""
    if isinstance(default, str):
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no text")
        if metadata["choices"] and value not in metadata["choices"]:
            raise ValueError(f"{value!r} is none of {', '.join(metadata['choices'])}")
        return type(default)(value) if isinstance(default, StrEnum) else value
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    if not math.isfinite(value) or (isinstance(default, int) and value != int(value)):
        raise ValueError(f"{value!r} is no usable number")
    if value < metadata["minimum"] or value > metadata["maximum"]:
        raise ValueError(f"{value!r} is not within {metadata['minimum']} and {metadata['maximum']}")
    return int(value) if isinstance(default, int) else float(value)


def _set_aside(path: Path) -> None:
    aside = path.with_name(path.name + ".damaged")
    try:
        path.replace(aside)
    except OSError as error:
        _log.warning("The settings at %s are damaged (and cannot be moved: %s); the defaults are used.", path, error)
    else:
        _log.warning("The settings at %s were damaged; they lie in %s now, and the defaults are used.", path, aside)
