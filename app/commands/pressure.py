"""What the engine did to free memory or disk, in one English sentence."""

from __future__ import annotations

from app.title import MAX_TITLE, shortened
from engine.protocol.events import PressureActed

_WORDS = {
    "save": "{chat} was saved to disk, so that its memory can be freed",
    "quantize": "{chat} is kept in {precision} now, which freed {size}",
    "compress": "{chat} was compressed, which freed {size}: only the parts that matter most are kept",
    "to_host": "{chat} was moved off the graphics card to free {size}",
    "drop": "{chat} was put away to free {size}",
    "evict_disk": "The saved cache of {chat} was removed to free {size} on disk",
}
_PRECISIONS = {
    "int8": "8 bits",
    "balanced": "8 bits (keys) and 4 bits (values)",
    "compact": "4 bits",
    "bnb-8bit": "8 bits (bitsandbytes)",
    "bnb-nf4": "4 bits (NF4)",
}
_OTHER = "{chat} made room: {size} were freed"


def pressure_words(step: PressureActed, title: str | None) -> str:
    """`title` is None for a chat that is not known here."""
    chat = f"“{shortened(title, MAX_TITLE)}”" if title else f"chat {step.conversation_id[:8]}"
    words = _WORDS.get(step.action, _OTHER).format(
        chat=chat,
        size=f"{step.bytes_freed / 1e6:,.1f} MB",
        precision=_PRECISIONS.get(step.precision, step.precision or "less precision"),
    )
    back = "" if step.comes_back_s is None else f"; it comes back in about {step.comes_back_s:.1f} s"
    return f"{words[:1].upper()}{words[1:]}{back}."
