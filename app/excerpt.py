"""The piece of a text that a search shows: one line around the first match, and where in it the words lie."""

from __future__ import annotations

import re

from app.folding import Folded, character_at, flat, fold_flat

_LENGTH = 120  # characters
_BEFORE = 40  # of them, at most, before the match
_CUT = "…"


def excerpt_of(text: str, words: tuple[str, ...]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The line, and the (start, length) of the folded `words` in it, in characters of the line, in order."""
    shown = flat(text)
    folded = fold_flat(shown)
    places = [(folded.find(word), len(word)) for word in words]
    place, length = min((found for found in places if found[0] >= 0), default=(0, 1))
    begin = character_at(shown, place) if shown else 0
    start = _word_start(shown, max(0, begin - _BEFORE), begin)
    end = max(begin + length, _word_end(shown, start + _LENGTH))  # a text is hardly ever longer than its folded form
    piece = Folded(shown[start:end])
    head, tail = (_CUT if start else ""), (_CUT if end < len(shown) else "")
    matches = tuple((len(head) + first, last - first) for first, last in _merged(_spans(piece, words)))
    return f"{head}{piece.shown}{tail}", matches


def _spans(piece: Folded, words: tuple[str, ...]) -> list[tuple[int, int]]:
    return [
        piece.span(*match.span(1)) for word in words for match in re.finditer(f"(?=({re.escape(word)}))", piece.folded)
    ]


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _word_start(shown: str, start: int, match: int) -> int:
    """A little later, so that no word is cut, where a space lies before the match."""
    if start == 0:
        return 0
    space = shown.find(" ", start - 1, match)
    return space + 1 if space >= 0 else start


def _word_end(shown: str, end: int) -> int:
    if end >= len(shown):
        return len(shown)
    space = shown.rfind(" ", end - _BEFORE, end + 1)
    return space if space >= 0 else end
