"""A straight line through measured points, and how well it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope * x. `r2`: the share of the variance that it explains; None where all y are the same.

    `spread`: the root mean square of what it leaves, in the unit of y. `growth`: the line at the last x by that at the
    first one.
    """

    slope: float
    intercept: float
    r2: float | None
    spread: float
    growth: float | None

    def figures(self) -> dict[str, object]:
        return asdict(self)


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> Line | None:
    """Least squares; None for fewer than two different x."""
    count = len(xs)
    if len(set(xs)) < 2:
        return None
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    var_x = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / var_x
    intercept = mean_y - slope * mean_x
    left = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    total = sum((y - mean_y) ** 2 for y in ys)
    first, last = intercept + slope * min(xs), intercept + slope * max(xs)
    return Line(
        slope,
        intercept,
        1 - left / total if total > 0 else None,
        (left / count) ** 0.5,
        last / first if first > 0 else None,
    )
