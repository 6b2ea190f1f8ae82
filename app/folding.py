"""Text as search compares it: no case, no accents, Hangul in its letters, one space wherever there is white space.

NFC and NFD become the same, "하" is found in "한" (a syllable half typed begins with the same letters), "ㅎ" in both,
and "cafe" in "Café". Folding works character by character, so the folded length of a beginning of a text tells where a
folded position lies in it: `Folded` and `character_at` rely on that.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

_ACCENTS = re.compile("[\u0300-\u036f]+")  # of Latin, Greek and Cyrillic; those of other scripts tell words apart
_HALVES = re.compile("[\ud800-\udfff]")  # lone surrogates, which no database takes
_JOINED = re.compile("[\u1160-\u11ff]")  # vowels and final consonants of decomposed Hangul
_SHORT = 2_000  # characters; up to here it is faster to fold each than to fold several beginnings


def fold(text: str) -> str:
    return fold_flat(flat(text))


def flat(text: str) -> str:
    """In one line, composed: what an excerpt is cut from. NUL, where SQLite would stop reading, is white space too."""
    one_line = " ".join(text.replace("\0", " ").split())
    return one_line if one_line.isascii() else unicodedata.normalize("NFC", _HALVES.sub("\ufffd", one_line))


def fold_flat(text: str) -> str:
    """`fold` of a text that is flat already."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return decomposed if decomposed.isascii() else _ACCENTS.sub("", decomposed)


@lru_cache(maxsize=20_000)
def _length(character: str) -> int:
    return len(fold_flat(character))


class Folded:
    """A flat text of a line's length, its folded form, and the way back from there to the characters shown."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.folded = fold_flat(shown)
        self._ends = list(accumulate(map(_length, shown)))  # of each character, in the folded text

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The characters shown (from, up to) that the folded ones come from; what is joined to them comes along."""
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, end - 1) + 1
        while first > 0 and _is_joined(self.shown[first]):
            first -= 1
        while last < len(self.shown) and _is_joined(self.shown[last]):
            last += 1
        return first, last


def character_at(shown: str, position: int) -> int:
    """The index of the character that a position in the folded text comes from; for texts of any length."""
    if shown.isascii():
        return position
    if len(shown) <= _SHORT:
        return bisect_right(list(accumulate(map(_length, shown))), position)
    low, high = 0, len(shown) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if len(fold_flat(shown[:middle])) <= position:
            low = middle
        else:
            high = middle - 1
    return low


def _is_joined(character: str) -> bool:
    return unicodedata.combining(character) != 0 or _JOINED.match(character) is not None
