"""About how tall a message will be, from its text alone: close enough for a scroll bar, corrected when it is built."""

from __future__ import annotations

import math

from app.conversation import Message
from engine.protocol.commands import Role
from ui.tokens import LINE_HEIGHT_PX

_CHARACTER_PX = 6.8  # of 14 px text, on average
_WIDE_CHARACTER_PX = 13.0  # Hangul and Han
_BUBBLE_SHARE = 0.72
_CODE_LINE_PX, _CODE_HEAD_PX = 20, 60
_PARAGRAPH_PX = 8
_USER_PX, _REPLY_PX = 46, 30  # padding, the line below
_CHIPS_PX = 34
_LONGEST = 20_000  # characters looked at; the rest is taken to be alike


def estimated_height(message: Message, width: int) -> int:
    """Pixels at a column `width`."""
    text = message.text[:_LONGEST]
    share = len(message.text) / max(1, len(text))
    if message.role is Role.USER:
        lines = _lines(text, width * _BUBBLE_SHARE)
        chips = _CHIPS_PX if message.attachments else 0
        return round(lines * LINE_HEIGHT_PX * share) + _USER_PX + chips
    return round(_reply_px(text, width) * share) + _REPLY_PX


def _reply_px(text: str, width: float) -> int:
    pixels = 0
    for number, part in enumerate(text.split("```")):
        if number % 2:
            pixels += part.count("\n") * _CODE_LINE_PX + _CODE_HEAD_PX
        else:
            pixels += _lines(part.strip("\n"), width) * LINE_HEIGHT_PX
            pixels += part.count("\n\n") * (_PARAGRAPH_PX - LINE_HEIGHT_PX)
    return pixels


def _lines(text: str, width: float) -> int:
    if not text:
        return 0
    pixels = _WIDE_CHARACTER_PX if _is_wide(text) else _CHARACTER_PX
    most = max(1.0, width / pixels)
    return sum(max(1, math.ceil(len(line) / most)) for line in text.split("\n"))


def _is_wide(text: str) -> bool:
    sample = text[:200]
    return sum(character >= "\u2e80" for character in sample) * 2 > len(sample)
