"""What the settings are called in the window's language. A test holds these against the settings' own definitions."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication

from app.settings import Effect, Group
from engine.protocol.config import ContextPolicy, Weights
from ui.language import LANGUAGES


@dataclass(frozen=True, slots=True)
class FieldWords:
    label: str
    help: str


def _tr(source: str) -> str:
    return QCoreApplication.translate("Settings", source)


def group_words(group: Group) -> str:
    return {
        Group.GENERAL: _tr("General"),
        Group.REPLIES: _tr("Replies"),
        Group.CONTEXT: _tr("Context"),
        Group.MEMORY: _tr("Memory and disk"),
    }[group]


def unit_words(unit: str) -> str:
    """Behind a number."""
    return {"": "", "%": " %", "MB": " MB", "tokens": _tr(" tokens")}[unit]


def effect_words(effect: Effect) -> str:
    """When a new value counts; "" where that is at once."""
    return {
        Effect.AT_ONCE: "",
        Effect.NEXT_LOAD: _tr("A change loads the model again."),
        Effect.NEXT_START: _tr("Counts from Ember's next start on."),
    }[effect]


def field_words(name: str) -> FieldWords:
    """Raises KeyError for a field without words."""
    return FieldWords(*(_general(name) or _replies(name) or _memory(name) or _missing(name)))


def choice_words(name: str) -> dict[str, str]:
    """The values that a field can be chosen from, in words. Raises KeyError for a field without words."""
    as_system = _tr("As the system")
    choices: dict[str, dict[str, str]] = {
        "language": {"system": as_system, **LANGUAGES},
        "theme": {"system": as_system, "light": _tr("Light"), "dark": _tr("Dark")},
        "send_with": {"enter": _tr("Enter"), "ctrl+enter": _tr("Ctrl+Enter")},
        "weights": {
            Weights.BITS_16: _tr("16-bit"),
            Weights.BITS_8: _tr("8-bit"),
            Weights.BITS_4: _tr("4-bit"),
        },
        "context_policy": {
            ContextPolicy.STOP: _tr("Stop and say so"),
            ContextPolicy.DROP_OLDEST: _tr("Go on, forget the oldest messages"),
            ContextPolicy.COMPRESS: _tr("Go on with a thinned-out memory"),
        },
        "kv_precision": {
            "auto": _tr("Full, or less if memory is short"),
            "int8": _tr("8 bit (int8)"),
            "balanced": _tr("K 8 bit, V 4 bit (balanced)"),
            "compact": _tr("4 bit (compact)"),
            "bnb-8bit": _tr("8 bit (bitsandbytes)"),
            "bnb-nf4": _tr("4 bit (NF4)"),
        },
    }
    return choices[name]


def _general(name: str) -> tuple[str, str] | None:
    match name:
        case "language":
            return _tr("Language"), _tr("Language of the window.")
        case "theme":
            return _tr("Theme"), _tr("Colours of the window.")
        case "scale_percent":
            return _tr("Size of the window's contents"), _tr(
                "Enlarges text and all else, on top of the system's own scale."
            )
        case "send_with":
            return _tr("Send with"), _tr("Key that sends the message; Shift+Enter always breaks the line.")
    return None


def _replies(name: str) -> tuple[str, str] | None:
    match name:
        case "model":
            return _tr("Model"), _tr("Model that answers where a chat has none of its own.")
        case "weights":
            return _tr("Weights"), _tr(
                "Precision the model's weights are stored in: fewer bits take less memory and answer less exactly."
            )
        case "system_prompt":
            return _tr("System prompt"), _tr("What the model is told before a new chat begins.")
        case "temperature":
            return _tr("Temperature"), _tr("How freely the next word is drawn; at 0 it is always the likeliest.")
        case "top_k":
            return _tr("Top k"), _tr("Draw among this many likeliest tokens; 0 is off.")
        case "top_p":
            return _tr("Top p"), _tr("Draw among the likeliest tokens that make up this part together; 1 is off.")
        case "min_p":
            return _tr("Min p"), _tr("Drop tokens less likely than this part of the likeliest; 0 is off.")
        case "repetition_penalty":
            return _tr("Repetition penalty"), _tr("Above 1, what was said already becomes less likely; 1 is off.")
        case "max_new_tokens":
            return _tr("Longest reply"), _tr("A reply is stopped here; it can be continued.")
    return None


def _memory(name: str) -> tuple[str, str] | None:
    match name:
        case "context_policy":
            return _tr("When a chat is full"), _tr(
                "What happens when a chat is longer than what its model can read; its text stays whole in any case."
            )
        case "prefill_chunk":
            return _tr("Tokens read per step"), _tr(
                "While a text is read; fewer let a stop act sooner, more read a little faster."
            )
        case "memory_budget_mb":
            return _tr("Memory for chats"), _tr(
                "Most that the caches of all chats may take; those used least go to disk."
            )
        case "kv_precision":
            return _tr("Precision of caches"), _tr("Fewer bits let more chats stay in memory.")
        case "allow_compression":
            return _tr("Compress chats by itself"), _tr(
                "Let Ember compress the chat in use when nothing else makes room; it can be undone."
            )
        case "disk_cap_mb":
            return _tr("Disk for chats"), _tr(
                "Most that saved caches may take; the oldest go first, the text of the chats never does."
            )
        case "disk_floor_mb":
            return _tr("Disk left free"), _tr("Space that saving caches leaves alone.")
    return None


def _missing(name: str) -> tuple[str, str]:
    raise KeyError(name)
