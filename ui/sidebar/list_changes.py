"""How one list of keys becomes another: runs to remove, whether the rest changes its order, runs to insert. No Qt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ui.sidebar.list_rows import Key

Run = tuple[int, int]  # the first and the last row


@dataclass(frozen=True, slots=True)
class ListChanges:
    """To be done in this order. `removed` counts in the old list, from its end; `inserted` in the new one, from its
    start. `kept` are the keys that stay, in their new order."""

    removed: list[Run]
    kept: list[Key]
    is_reordered: bool
    inserted: list[Run]


def list_changes(old: Sequence[Key], new: Sequence[Key]) -> ListChanges:
    """Keys are unique in each list."""
    known, wanted = set(old), set(new)
    kept = [key for key in new if key in known]
    return ListChanges(
        removed=list(reversed(runs(row for row, key in enumerate(old) if key not in wanted))),
        kept=kept,
        is_reordered=kept != [key for key in old if key in wanted],
        inserted=runs(row for row, key in enumerate(new) if key not in known),
    )


def runs(rows: Iterable[int]) -> list[Run]:
    """Ascending row numbers as runs of neighbours."""
    found: list[Run] = []
    for row in rows:
        if found and found[-1][1] == row - 1:
            found[-1] = found[-1][0], row
        else:
            found.append((row, row))
    return found
