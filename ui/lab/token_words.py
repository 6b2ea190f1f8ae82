"""A token so that one sees all of it: its spaces and line breaks too."""

from __future__ import annotations

_VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}


def token_words(text: str) -> str:
    """ " the" -> "·the"; nothing at all -> "∅"."""
    shown = "".join(_VISIBLE.get(one, one if one.isprintable() else "�") for one in text)
    return shown or "∅"
