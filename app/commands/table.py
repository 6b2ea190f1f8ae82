"""Aligned columns of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest


def aligned(table: Sequence[Sequence[str]], left: Iterable[int] = (0,)) -> list[str]:
    """The columns in `left` to the left, the others to the right; wide letters (Hangul) are not measured."""
    to_left = set(left)
    widths = [max(map(len, column)) for column in zip_longest(*table, fillvalue="")]
    return [
        "  ".join(
            cell.ljust(width) if column in to_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=False))
        ).rstrip()
        for line in table
    ]
