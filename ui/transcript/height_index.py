"""The heights of the rows of a column, and where each row begins. Finding and changing one costs the logarithm of their
number (a Fenwick tree: Fenwick, A new data structure for cumulative frequency tables, 1994)."""

from __future__ import annotations

from collections.abc import Iterable


class HeightIndex:
    """Heights in pixels, none negative. `top(len(index))` is the height of all."""

    def __init__(self, heights: Iterable[int] = ()) -> None:
        self._heights = list(heights)
        self._sums = [0, *self._heights]
        for place in range(1, len(self._sums)):
            above = place + (place & -place)
            if above < len(self._sums):
                self._sums[above] += self._sums[place]
        self._largest_step = 1 << (len(self._heights).bit_length() - 1) if self._heights else 0

    def __len__(self) -> int:
        return len(self._heights)

    def __getitem__(self, row: int) -> int:
        return self._heights[row]

    def __setitem__(self, row: int, height: int) -> None:
        difference = height - self._heights[row]
        if not difference:
            return
        self._heights[row] = height
        place = row + 1
        while place < len(self._sums):
            self._sums[place] += difference
            place += place & -place

    def top(self, row: int) -> int:
        """How far below the first row's top `row` begins."""
        total = 0
        while row > 0:
            total += self._sums[row]
            row -= row & -row
        return total

    def row_at(self, y: int) -> int:
        """The row that covers `y`; the first or the last one where `y` is outside. Raises IndexError without rows."""
        if not self._heights:
            raise IndexError("there are no rows")
        row, step = 0, self._largest_step
        while step:
            if row + step < len(self._sums) and self._sums[row + step] <= y:
                row += step
                y -= self._sums[row]
            step >>= 1
        return min(row, len(self._heights) - 1)
