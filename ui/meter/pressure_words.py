"""What was done to free memory or disk, in one sentence of the window's language."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import PressureActed
from ui import numbers

_LONGEST_TITLE = 40


def _tr(source: str) -> str:
    return QCoreApplication.translate("Pressure", source)


def pressure_words(step: PressureActed, title: str) -> str:
    """`title` is "" for a chat that has none."""
    short = title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"
    words = _template(step).format(title=short or _tr("New chat"), size=numbers.size(step.bytes_freed))
    if step.comes_back_s is None:
        return words
    back = _tr("It comes back in about {time}.").format(time=numbers.seconds(step.comes_back_s))
    return f"{words} {back}"


def _template(step: PressureActed) -> str:
    match step.action:
        case "save":
            return _tr("Chat “{title}” was saved to disk, so that its memory can be freed.")
        case "quantize":
            return _quantize_template(step.precision)
        case "compress":
            return _tr(
                "Chat “{title}” was compressed, which freed {size}; "
                "“Undo compression” in its menu brings everything back."
            )
        case "to_host":
            return _tr("Chat “{title}” was moved off the graphics card to free {size}.")
        case "drop":
            return _tr("Chat “{title}” was put away to free {size}.")
        case "evict_disk":
            return _tr("The saved cache of chat “{title}” was removed to free {size} on disk.")
    return _tr("Chat “{title}” made room: {size} were freed.")


def _quantize_template(precision: str) -> str:
    match precision:
        case "int8" | "bnb-8bit":
            return _tr("Chat “{title}” is kept in 8 bits now, which freed {size}.")
        case "balanced":
            return _tr("Chat “{title}” is kept in 8 bits (keys) and 4 bits (values) now, which freed {size}.")
        case "compact" | "bnb-nf4":
            return _tr("Chat “{title}” is kept in 4 bits now, which freed {size}.")
    return _tr("Chat “{title}” is kept in less precision now, which freed {size}.")
