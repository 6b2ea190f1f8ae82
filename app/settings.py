"""The settings: one frozen dataclass, kept as JSON in the data folder.

Each field carries its default, its bounds, its group, a label and one line of help, from which the dialog, the command
line and the docs are made. A bad value costs its own field only; a file that is no JSON is set aside. Both are logged
and told once in the dialog, neither is fatal.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.atomic_file import set_aside, write_json
from engine.protocol.config import KV_AUTO, KV_PRECISIONS, ContextPolicy, Sampling, Weights

_log = logging.getLogger(__name__)
MB = 1000**2  # decimal, as all sizes that are shown


class Group(StrEnum):
    """Where the dialog shows a field."""

    GENERAL = "general"
    REPLIES = "replies"
    CONTEXT = "context"
    MEMORY = "memory"


class Effect(StrEnum):
    """When a new value counts: at once, after the model was loaded again (which follows), or at Ember's next start."""

    AT_ONCE = "at_once"
    NEXT_LOAD = "next_load"
    NEXT_START = "next_start"


def _setting(
    group: Group,
    label: str,
    text: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    step: float = 1,
    unit: str = "",
    choices: tuple[str, ...] = (),
    effect: Effect = Effect.AT_ONCE,
    slider_end: float | None = None,
    is_long: bool = False,
    is_hidden: bool = False,
) -> dict[str, Any]:
    """`slider_end`: a slider goes with the number, from `minimum` to there. `is_long`: a text of several lines."""
    return {
        "group": group,
        "label": label,
        "help": text,
        "minimum": minimum,
        "maximum": maximum,
        "step": step,
        "unit": unit,
        "choices": choices,
        "effect": effect,
        "slider_end": slider_end,
        "is_long": is_long,
        "is_hidden": is_hidden,
    }


def _hidden(text: str) -> dict[str, Any]:
    return _setting(Group.GENERAL, "", text, is_hidden=True)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose. `is_hidden` fields are remembered, but neither shown in the dialog nor exported."""

    language: str = field(
        default="system",
        metadata=_setting(Group.GENERAL, "Language", "Language of the window.", choices=("system", "en", "ko")),
    )
    theme: str = field(
        default="system",
        metadata=_setting(Group.GENERAL, "Theme", "Colours of the window.", choices=("system", "light", "dark")),
    )
    scale_percent: int = field(
        default=100,
        metadata=_setting(
            Group.GENERAL,
            "Size of the window's contents",
            "Enlarges text and all else, on top of the system's own scale.",
            minimum=100,
            maximum=200,
            step=5,
            unit="%",
            slider_end=200,
            effect=Effect.NEXT_START,
        ),
    )
    send_with: str = field(
        default="enter",
        metadata=_setting(
            Group.GENERAL,
            "Send with",
            "Key that sends the message; Shift+Enter always breaks the line.",
            choices=("enter", "ctrl+enter"),
        ),
    )
    model: str = field(
        default="",
        metadata=_setting(
            Group.REPLIES,
            "Model",
            "Model that answers where a chat has none of its own.",
            effect=Effect.NEXT_LOAD,
        ),
    )
    weights: Weights = field(
        default=Weights.BITS_16,
        metadata=_setting(
            Group.REPLIES,
            "Weights",
            "Precision the model's weights are stored in: fewer bits take less memory and answer less exactly.",
            choices=tuple(weights.value for weights in Weights),
            effect=Effect.NEXT_LOAD,
        ),
    )
    system_prompt: str = field(
        default="",
        metadata=_setting(
            Group.REPLIES, "System prompt", "What the model is told before a new chat begins.", is_long=True
        ),
    )
    temperature: float = field(
        default=0.7,
        metadata=_setting(
            Group.REPLIES,
            "Temperature",
            "How freely the next word is drawn; at 0 it is always the likeliest.",
            minimum=0.0,
            maximum=5.0,
            step=0.05,
            slider_end=2.0,
        ),
    )
    top_k: int = field(
        default=0,
        metadata=_setting(
            Group.REPLIES,
            "Top k",
            "Draw among this many likeliest tokens; 0 is off.",
            minimum=0,
            maximum=1000,
            unit="tokens",
        ),
    )
    top_p: float = field(
        default=0.95,
        metadata=_setting(
            Group.REPLIES,
            "Top p",
            "Draw among the likeliest tokens that make up this part together; 1 is off.",
            minimum=0.01,
            maximum=1.0,
            step=0.01,
            slider_end=1.0,
        ),
    )
    min_p: float = field(
        default=0.0,
        metadata=_setting(
            Group.REPLIES,
            "Min p",
            "Drop tokens less likely than this part of the likeliest; 0 is off.",
            minimum=0.0,
            maximum=1.0,
            step=0.01,
            slider_end=1.0,
        ),
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata=_setting(
            Group.REPLIES,
            "Repetition penalty",
            "Above 1, what was said already becomes less likely; 1 is off.",
            minimum=0.5,
            maximum=2.0,
            step=0.05,
            slider_end=2.0,
        ),
    )
    max_new_tokens: int = field(
        default=1024,
        metadata=_setting(
            Group.REPLIES,
            "Longest reply",
            "A reply is stopped here; it can be continued.",
            minimum=1,
            maximum=1_000_000,
            step=128,
            unit="tokens",
        ),
    )
    context_policy: ContextPolicy = field(
        default=ContextPolicy.DROP_OLDEST,  # a chat goes on, as people expect of one; a mark shows what is out of view
        metadata=_setting(
            Group.CONTEXT,
            "When a chat is full",
            "What happens when a chat is longer than what its model can read; its text stays whole in any case.",
            choices=tuple(policy.value for policy in ContextPolicy),
        ),
    )
    prefill_chunk: int = field(
        default=512,
        metadata=_setting(
            Group.CONTEXT,
            "Tokens read per step",
            "While a text is read; fewer let a stop act sooner, more read a little faster.",
            minimum=16,
            maximum=8192,
            step=16,
            unit="tokens",
        ),
    )
    memory_budget_mb: int = field(
        default=2048,
        metadata=_setting(
            Group.MEMORY,
            "Memory for chats",
            "Most that the caches of all chats may take; those used least go to disk.",
            minimum=64,
            maximum=1_048_576,
            step=256,
            unit="MB",
        ),
    )
    kv_precision: str = field(
        default=KV_AUTO,
        metadata=_setting(
            Group.MEMORY,
            "Precision of caches",
            "Fewer bits let more chats stay in memory.",
            choices=KV_PRECISIONS,
        ),
    )
    allow_compression: bool = field(
        default=False,
        metadata=_setting(
            Group.MEMORY,
            "Compress chats by itself",
            "Let Ember compress the chat in use when nothing else makes room; it can be undone.",
        ),
    )
    disk_cap_mb: int = field(
        default=20_480,
        metadata=_setting(
            Group.MEMORY,
            "Disk for chats",
            "Most that saved caches may take; the oldest go first, the text of the chats never does.",
            minimum=256,
            maximum=16_777_216,
            step=1024,
            unit="MB",
        ),
    )
    disk_floor_mb: int = field(
        default=1024,
        metadata=_setting(
            Group.MEMORY,
            "Disk left free",
            "Space that saving caches leaves alone.",
            minimum=0,
            maximum=16_777_216,
            step=256,
            unit="MB",
        ),
    )
    window_geometry: str = field(default="", metadata=_hidden("Place of the window."))
    last_conversation: str = field(default="", metadata=_hidden("Chat shown last."))
    new_draft: str = field(default="", metadata=_hidden("What is being written to a chat that is not stored yet."))
    collapsed_folders: str = field(default="", metadata=_hidden("Folders that are closed in the list, by number."))

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


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """A stored value that cannot be used. `name` is the field's, or whatever the file says."""

    name: str
    value: object
    why: str


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """`damaged`: where the file lies now that could not be read at all."""

    settings: Settings
    problems: tuple[SettingProblem, ...] = ()
    damaged: Path | None = None


def load_settings(path: Path) -> Settings:
    """The settings at `path`; the defaults where there is no file, or one that cannot be read."""
    return read_settings(path).settings


def read_settings(path: Path) -> LoadedSettings:
    """The same, with what was wrong."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return LoadedSettings(Settings())
    except OSError as error:
        _log.warning("The settings at %s cannot be read (%s); the defaults are used.", path, error)
        return LoadedSettings(Settings(), damaged=path)
    try:
        stored = json.loads(raw)
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        return LoadedSettings(Settings(), damaged=set_aside(path))
    values, problems = usable_values(stored)
    for problem in problems:
        _log.warning("The setting %s is unusable (%s); its default is used.", problem.name, problem.why)
    return LoadedSettings(Settings(**values), problems)


def usable_values(stored: Mapping[str, object]) -> tuple[dict[str, Any], tuple[SettingProblem, ...]]:
    """The values of `stored` that fields can take, and the others of those fields. Unknown names are passed over."""
    values: dict[str, Any] = {}
    problems = []
    for setting in fields(Settings):
        if setting.name not in stored:
            continue
        try:
            values[setting.name] = checked(setting.default, stored[setting.name], setting.metadata)
        except ValueError as error:
            problems.append(SettingProblem(setting.name, stored[setting.name], str(error)))
    return values, tuple(problems)


def save_settings(path: Path, settings: Settings) -> None:
    """Write the settings so that a crash leaves the old or the new ones. Raises StorageError."""
    write_json(path, asdict(settings))


def checked(default: object, value: object, metadata: Mapping[str, Any]) -> object:
    """`value` in the type of `default` and within its bounds. Raises ValueError."""
    if isinstance(default, str):
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no text")
        value.encode()  # half a surrogate pair, which JSON can hold, could not be saved: a ValueError too
        if metadata["choices"] and value not in metadata["choices"]:
            raise ValueError(f"{value!r} is none of {', '.join(metadata['choices'])}")
        return type(default)(value) if isinstance(default, StrEnum) else value
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    if isinstance(value, float) and (not math.isfinite(value) or (isinstance(default, int) and value != int(value))):
        raise ValueError(f"{value!r} is no usable number")
    if value < metadata["minimum"] or value > metadata["maximum"]:
        raise ValueError(f"{value!r} is not within {metadata['minimum']} and {metadata['maximum']}")
    return int(value) if isinstance(default, int) else float(value)
