"""How many guessed tokens to feed along with the next one: as many as make the reply faster, none if none do.

The rule is that of speculative decoding (arXiv 2211.17192, section 3.3): with a chance of acceptance per guess, a pass
over more tokens is worth its longer time or not. Chances and times are measured as the reply goes; guesses that were
not fed count too, so the chances are known at no cost. Pure arithmetic: no clock, no torch.
"""

from __future__ import annotations

MOST_FED = 8  # tokens of one pass; up to here a pass over several tokens can be exact (see ForwardPass)
_LONGEST_MATCH = 8
_FIRST_CHANCES = (0.0, 0.1, 0.2, 0.35, 0.5)  # by match length; longer ones begin with the last
_FIRST_WEIGHT = 4  # observations that a first chance counts for
_CHANCE_MEMORY = 8  # observations: short, for what is copied ends at once
_FIRST_SHARE = 0.2  # of a single token's time: what one more is taken to cost where it was never measured
_WORTH = 1.03  # a gain that is not noise
_FEW = 3
_FIRST_RETRY, _LAST_RETRY = 8, 512  # guesses passed by between two tries


class Speculation:
    """The policy for one reply. `num_guesses` asks, `guess_was` and `pass_took` tell it what happened.

    A size of pass is tried only once half of it was measured. Where the measured times forbid what first estimates
    would allow, a try now and then, at doubling distances, shows whether they were only a disturbance.
    """

    def __init__(self) -> None:
        self._chances = [_FIRST_CHANCES[min(size, len(_FIRST_CHANCES) - 1)] for size in range(_LONGEST_MATCH + 1)]
        self._seen = [_FIRST_WEIGHT] * (_LONGEST_MATCH + 1)
        self._times: dict[int, _Time] = {}
        self._estimates_s: list[float] = []
        self._passed_by = 0
        self._retry_after = _FIRST_RETRY

    def num_guesses(self, match_length: int, most: int) -> int:
        """How many tokens to guess, at most `most`, when the guess comes from a match of `match_length` tokens."""
        most = min(most, len(self._estimates_s) - 1)
        if match_length < 1 or most < 1:
            return 0
        single_s = self._estimates_s[0]
        best, best_speed = 0, _WORTH / single_s
        least_bad, least_bad_speed = 1, 0.0
        could_pay = False
        expected, chance = 1.0, 1.0
        for count in range(1, most + 1):
            chance *= self._chances[min(match_length + count - 1, _LONGEST_MATCH)]
            expected += chance
            speed = expected / self._estimates_s[count]
            if speed > least_bad_speed:
                least_bad, least_bad_speed = count, speed
            could_pay = could_pay or expected > _WORTH * (1 + count * _FIRST_SHARE)
        if least_bad_speed > best_speed:
            best = least_bad
            self._passed_by, self._retry_after = 0, _FIRST_RETRY
        elif could_pay:
            best = self._retry(least_bad)
        return best

    def guess_was(self, match_length: int, is_right: bool) -> None:
        """A guess, fed or not, that followed a match of `match_length` tokens turned out right or wrong."""
        length = min(match_length, _LONGEST_MATCH)
        self._chances[length] += (is_right - self._chances[length]) / (self._seen[length] + 1)
        self._seen[length] = min(self._seen[length] + 1, _CHANCE_MEMORY)

    def pass_took(self, num_fed: int, seconds: float) -> None:
        """A pass over `num_fed` tokens, at most `MOST_FED`, took `seconds`."""
        if num_fed in self._times:
            self._times[num_fed].add(seconds)
        else:
            self._times[num_fed] = _Time(seconds)
        self._estimates_s = self._estimated()

    def _retry(self, count: int) -> int:
        self._passed_by += 1
        if self._passed_by < self._retry_after:
            return 0
        self._passed_by = 0
        self._retry_after = min(2 * self._retry_after, _LAST_RETRY)
        return count

    def _estimated(self) -> list[float]:
        """Seconds of a pass over 1, 2, ... tokens, as far as may be tried: measured, between, or just beyond."""
        if 1 not in self._times:
            return []
        estimates: list[float] = []
        sizes = sorted(self._times)
        single_s, largest_s = self._times[1].seconds, self._times[sizes[-1]].seconds
        more_s = _FIRST_SHARE * single_s
        if len(sizes) > 1:
            more_s = min(more_s, max(0.0, largest_s - single_s) / (sizes[-1] - 1))
        for size in range(1, min(2 * sizes[-1], MOST_FED) + 1):
            above = next((known for known in sizes if known >= size), None)
            if above is None:
                seconds = estimates[-1] + more_s
            elif above == size:
                seconds = self._times[size].seconds
            else:
                seconds = estimates[-1] + (self._times[above].seconds - estimates[-1]) / (above - size + 1)
            estimates.append(max(seconds, single_s))
        return estimates


class _Time:
    """A moving average of times that noise only lengthens: quick to fall, slow to rise, and not by one outlier."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._count = 1

    def add(self, seconds: float) -> None:
        self._count += 1
        if self._count <= _FEW:  # the first passes of a size may include its preparation
            self.seconds = min(self.seconds, seconds)
        elif seconds < self.seconds:
            self.seconds += (seconds - self.seconds) / 2
        else:
            self.seconds += (min(seconds, 3 * self.seconds) - self.seconds) / 8
