"""Whether a step is better run by one thread for a while: pure logic.

Threads that meet hundreds of times a step lose a time slice at each meeting when other programs use their cores: a
step then takes a hundred times as long, and one thread alone, which meets nobody, only a few times. The results
are the same.
"""

from __future__ import annotations

_SLOW = 5.0  # times the usual
_SLOW_STEPS = 2  # in a row, before one thread goes on alone
_DRIFT = 1.02  # a step: what is usual grows with what is cached
_FIRST_ALONE, _MOST_ALONE = 16, 256  # steps alone before the next attempt


class Pace:
    """Told how long each step took, in seconds, for how many tokens over how many cached ones."""

    def __init__(self) -> None:
        self._usual_s: dict[tuple[int, int], float] = {}  # by tokens fed, and the binary places of the length
        self._num_slow = 0
        self._alone = 0
        self._next_alone = _FIRST_ALONE

    @property
    def is_alone(self) -> bool:
        """Whether the next step is one thread's."""
        return self._alone > 0

    def took(self, num_fed: int, length: int, seconds: float) -> None:
        if self._alone:
            self._alone -= 1
            return
        kind = num_fed, length.bit_length()
        usual_s = self._usual_s.get(kind, seconds)
        self._usual_s[kind] = min(seconds, usual_s * _DRIFT)
        if seconds < _SLOW * usual_s:
            self._num_slow = 0
            self._next_alone = _FIRST_ALONE
            return
        self._num_slow += 1
        if self._num_slow >= _SLOW_STEPS:
            self._alone = self._next_alone
            self._next_alone = min(2 * self._next_alone, _MOST_ALONE)
            self._num_slow = _SLOW_STEPS - 1  # the attempt after them decides at once
