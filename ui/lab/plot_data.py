"""What a plot shows, without any drawing: lines over numbers, or bars over words. Values are in the plot's unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ui.lab import figures


class PlotKind(StrEnum):
    LINES = "lines"
    BARS = "bars"  # the series side by side
    STACKED = "stacked"  # the series on one another


@dataclass(frozen=True, slots=True)
class Series:
    """A value for every place of the plot; None where there is none.

    `colours` are keys of the theme, a precision or a role: one for all values, or one for each. A colour always comes
    with the same pattern or mark. `is_fit`: a straight line through what was measured.
    """

    name: str
    colours: tuple[str, ...]
    values: tuple[float | None, ...]
    is_fit: bool = False

    def colour(self, place: int) -> str:
        return self.colours[place % len(self.colours)]


@dataclass(frozen=True, slots=True)
class Plot:
    """`places`: the words below; for LINES `xs` has their numbers, and `x_range` what the axis spans from the start,
    so that it stands still while the rows arrive. `note` is written at the last value of the first series.
    """

    title: str
    unit: str
    kind: PlotKind
    places: tuple[str, ...]
    series: tuple[Series, ...]
    xs: tuple[float, ...] = ()
    x_range: tuple[float, float] | None = None
    x_title: str = ""
    note: str = ""
    most: float | None = field(default=None)  # the top of the axis, where it is known (100 %)

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def top(self) -> float:
        """The largest value drawn, 0 where there is none."""
        if self.kind is PlotKind.STACKED:
            sums = [sum(one.values[place] or 0.0 for one in self.series) for place in range(len(self.places))]
            return max(sums, default=0.0)
        return max((value for one in self.series for value in one.values if value is not None), default=0.0)

    @property
    def is_empty(self) -> bool:
        return not any(value is not None for one in self.series for value in one.values)

    def value_words(self, value: float | None) -> str:
        words = figures.figure(value)
        return f"{words} {self.unit}" if self.unit and value is not None else words

    def place_words(self, place: int) -> str:
        """All that is drawn at a place, a line each."""
        head = f"{self.x_title} {self.places[place]}".strip() if self.x_title else self.places[place]
        shown = [one for one in self.series if not one.is_fit]
        return "\n".join([head, *(f"{one.name}: {self.value_words(one.values[place])}" for one in shown)])

    def words(self) -> str:
        """The whole plot for someone who does not see it."""
        lines = (self.place_words(place).replace("\n", ", ") for place in range(len(self.places)))
        return "; ".join([self.heading, *lines])
