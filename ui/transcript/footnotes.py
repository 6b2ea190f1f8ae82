"""The numbers of a reply's footnotes. A reference is met before what it refers to is known to exist."""

from __future__ import annotations


class Footnotes:
    """A label of digits is its own number at once; another one is text until its definition arrives."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def number(self, label: str) -> str | None:
        return label if _is_number(label) else self._numbers.get(label)

    def define(self, label: str) -> bool:
        """Take note of a definition. True when references drawn before have to be drawn anew."""
        if label in self._numbers:
            return False
        if _is_number(label):
            self._numbers[label] = label
            return False
        taken = set(self._numbers.values())
        self._numbers[label] = next(str(n) for n in range(1, len(taken) + 2) if str(n) not in taken)
        return True


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdigit() and len(label) <= 3
