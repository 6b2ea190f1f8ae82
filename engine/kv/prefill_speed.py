"""How long reading takes here: fitted to what reading took, since a token costs more the more there is before it.

Seconds of n tokens after c cached ones: start + n * (token + pair * (c + n / 2)); a few tokens go another way than many
(`engine.model.forward`), so they have a fit of their own. All of it is stretched by how the newest readings went: the
machine may have more to do than before. Where few are known, a pair's cost keeps close to what the model's sizes say.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from engine.kv.rates_fit import fit_costs, level, usual_then

FEW_TOKENS = 32
_REMEMBERED = 32
_FADING = 0.96  # weight of a measurement against the next newer one
_ROUNDS = 3
_NEWEST, _NEW_WEIGHT, _OLD_ENOUGH = 6, 0.01, 8  # readings that are judged by those before, if these are so many
_BUSY = 1.25  # times as long as usual, or that part of it, for some readings: the machine had more to do, or less
_TRUST = np.array([1e-3, 0.015, 0.1])  # in there being no start, in a token's cost, in the model's sizes


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement: `tokens` fed after `cached` ones in `seconds`. `is_private`: of an incognito chat."""

    tokens: int
    cached: int
    seconds: float
    is_private: bool = False

    @property
    def is_few(self) -> bool:
        return self.tokens <= FEW_TOKENS


class PrefillSpeed:
    """`pair_share`: what attending to one earlier token costs, as a share of the rest of a token's cost."""

    def __init__(self, pair_share: float) -> None:
        self._pair_share = pair_share
        self._readings: dict[bool, deque[tuple[int, Reading]]] = {
            is_few: deque(maxlen=_REMEMBERED) for is_few in (True, False)
        }
        self._count = 0
        self._step_s: float | None = None
        self._costs: dict[bool, np.ndarray] | None = None
        self._level = 1.0
        self._loads: dict[Reading, float] = {}  # how much longer all took at the time

    def add(self, reading: Reading) -> None:
        if reading.tokens > 0 and reading.seconds > 0:
            self._count += 1
            self._readings[reading.is_few].append((self._count, reading))
            self._costs = None

    def decoded(self, step_s: float) -> None:
        """Seconds that one new token took: what a few tokens take at most, until that is measured."""
        self._step_s = step_s

    def seconds(self, tokens: int, cached: int) -> float | None:
        """None while nothing like it was measured."""
        is_few = tokens <= FEW_TOKENS
        if self._readings[is_few]:
            return self._fitted_s(is_few, tokens, cached)
        if not is_few:
            return None
        # Upper bounds: a short pass of the other way, and one token at a time.
        bounds = [self._fitted_s(False, FEW_TOKENS, cached)] if self._readings[False] else []
        bounds += [tokens * self._step_s] if self._step_s is not None else []
        return min(bounds, default=None)

    def readings(self) -> list[Reading]:
        """Oldest first."""
        return [one for _, one in sorted((*self._readings[True], *self._readings[False]), key=lambda pair: pair[0])]

    def _fitted_s(self, is_few: bool, tokens: int, cached: int) -> float:
        if self._costs is None:
            self._costs, self._level = self._learn()
        return float(_parts(tokens, cached) @ self._costs[is_few]) * self._level

    def _learn(self) -> tuple[dict[bool, np.ndarray], float]:
        """Costs as they usually are, and how much longer everything takes now."""
        readings = self.readings()
        jobs = np.array([_parts(one.tokens, one.cached) for one in readings])
        seconds = np.array([one.seconds for one in readings])
        are_few = np.array([one.is_few for one in readings])
        ratios = np.ones(len(readings))
        loads = np.array([self._loads.get(one, 1.0) for one in readings])
        costs: dict[bool, np.ndarray] = {}
        is_new = np.arange(len(readings)) >= max(_OLD_ENOUGH, len(readings) - _NEWEST)
        for number in range(_ROUNDS):  # what was read under another load is taken for what it would have been
            weights = np.where(is_new, _NEW_WEIGHT if number == 0 else 1.0, 1.0)  # at first judged by the others
            for is_few in (True, False):
                mine = are_few == is_few
                if mine.any():
                    costs[is_few] = self._fit(jobs[mine], seconds[mine] / loads[mine], weights[mine])
                    ratios[mine] = seconds[mine] / np.maximum(jobs[mine] @ costs[is_few], 1e-12)
            around = usual_then(ratios)
            loads = np.where(np.abs(np.log(around)) > np.log(_BUSY), around, 1.0)
        self._loads = dict(zip(readings, loads.tolist(), strict=True))
        return costs, level(ratios.tolist())

    def _fit(self, jobs: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Costs of a start, a token and a pair."""
        weights = weights * _FADING ** np.arange(len(jobs))[::-1]
        by_size = np.array([0.0, 1.0, self._pair_share])  # of the costs, if the model's sizes were all that counts
        scale = float(np.exp(np.average(np.log(seconds / (jobs @ by_size)), weights=weights)))
        trust = _TRUST / (scale * np.array([1.0, 1.0, max(1e-9, self._pair_share)]))
        return fit_costs(jobs, seconds, weights, scale * by_size, trust)


def _parts(tokens: int, cached: int) -> np.ndarray:
    return np.array([1.0, tokens, tokens * (cached + tokens / 2)])
