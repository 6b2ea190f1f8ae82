"""File names made of titles, that every system takes: Windows forbids the most. Hangul and emoji stay."""

from __future__ import annotations

import re
import unicodedata

from ui.sidebar.row_words import one_line

_LONGEST_BYTES = 180  # of the 255 that most file systems allow: room for a number and an ending
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]+')
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)


def file_stem(title: str, fallback: str) -> str:
    """The title as a file name without its ending; `fallback` where nothing is left of it."""
    words = one_line(_FORBIDDEN.sub(" ", unicodedata.normalize("NFC", title)))
    words = words.encode("utf-8", "ignore")[:_LONGEST_BYTES].decode("utf-8", "ignore").strip(" .")
    if not words:
        return fallback
    return f"_{words}" if _RESERVED.fullmatch(words) else words
