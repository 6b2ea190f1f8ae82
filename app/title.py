"""The title of a conversation, made from its first message. No model is asked."""

from __future__ import annotations

import unicodedata

MAX_TITLE = 60


def title_from(text: str) -> str:
    """The first line that says something, shortened to 60 characters, at a word boundary where one is near."""
    lines = (" ".join(line.split()) for line in unicodedata.normalize("NFC", text).splitlines())
    line = next((line for line in lines if line), "")
    if len(line) <= MAX_TITLE:
        return line
    whole_words = line[:MAX_TITLE].rpartition(" ")[0]
    kept = whole_words if len(whole_words) >= MAX_TITLE // 2 else line[: MAX_TITLE - 1]
    return kept.rstrip(" ,.;:") + "…"


def shortened(text: str, at_most: int) -> str:
    """`text` in at most that many characters; "…" stands for what was cut off."""
    return text if len(text) <= at_most else text[: at_most - 1] + "…"
