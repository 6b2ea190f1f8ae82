"""Where words are in a text, whatever normal form either is in and however they are capitalised. No Qt here."""

from __future__ import annotations

import unicodedata


def find_words(text: str, query: str) -> list[tuple[int, int]]:
    """(start, length) in UTF-16 units, as a QTextDocument counts, of all places of `query`; or of each of its words
    where it is nowhere as a whole. In order."""
    folded = _Folded(text)
    whole = folded.find(query)
    if whole or len(query.split()) < 2:
        return whole
    return sorted({place for word in query.split() for place in folded.find(word)})


class _Folded:
    """A text decomposed and casefolded, which remembers what every character of it came from."""

    def __init__(self, text: str) -> None:
        letters: list[str] = []
        self._from: list[int] = []  # the UTF-16 unit that a letter came from
        place = 0
        for character in text:
            folded = _fold(character)
            letters.append(folded)
            self._from.extend([place] * len(folded))
            place += 2 if ord(character) > 0xFFFF else 1
        self._from.append(place)
        self._letters = "".join(letters)

    def find(self, query: str) -> list[tuple[int, int]]:
        wanted = _fold(query.strip())
        found: list[tuple[int, int]] = []
        at = self._letters.find(wanted) if wanted else -1
        while at >= 0:
            end = at + len(wanted)
            if not self._is_inside(end):
                found.append((self._from[at], self._from[end] - self._from[at]))
            at = self._letters.find(wanted, end)
        return found

    def _is_inside(self, end: int) -> bool:
        """Whether what is cut there is one letter to a reader: 가 is not in 각."""
        return end < len(self._letters) and (
            bool(unicodedata.combining(self._letters[end])) or "\u1160" <= self._letters[end] <= "\u11ff"
        )


def _fold(text: str) -> str:
    return unicodedata.normalize("NFD", text.casefold())
