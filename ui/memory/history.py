"""The last minutes of a number: kept while the panel is closed too, so that it opens with a past. No Qt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

_KEPT_S = 15 * 60.0
_LEAST_GAP_S = 0.5  # what comes sooner takes the place of the one before
_BREAK_S = 4.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float  # of the clock
    value: float


class History:
    """`is_continuous`: the number goes on between samples, as bytes do; else a longer silence is a gap."""

    def __init__(self, *, is_continuous: bool, clock: Callable[[], float] = monotonic) -> None:
        self.is_continuous = is_continuous
        self._clock = clock
        self._samples: deque[Sample] = deque()

    @property
    def samples(self) -> list[Sample]:
        return list(self._samples)

    @property
    def last(self) -> float | None:
        return self._samples[-1].value if self._samples else None

    @property
    def mean(self) -> float | None:
        return sum(one.value for one in self._samples) / len(self._samples) if self._samples else None

    def add(self, value: float) -> None:
        now = self._clock()
        if len(self._samples) > 1 and now - self._samples[-2].at_s < _LEAST_GAP_S:
            self._samples.pop()
        self._samples.append(Sample(now, value))
        while self._samples[0].at_s < now - _KEPT_S:
            self._samples.popleft()

    def lines(self) -> list[list[Sample]]:
        """What is drawn without lifting the pen."""
        lines: list[list[Sample]] = []
        for one in self._samples:
            if lines and (self.is_continuous or one.at_s - lines[-1][-1].at_s <= _BREAK_S):
                lines[-1].append(one)
            else:
                lines.append([one])
        return lines
