"""How long reading takes here: fitted to what reading took, since a token costs more the more there is before it.

Seconds of n tokens after c cached ones: start + n * (token + pair * (c + n / 2)); a few tokens go another way than many
(`engine.model.forward`), so they have a fit of their own. Weighted least squares on relative errors, the newest
measurements counting most; where few are known, the cost of a pair keeps close to what the model's sizes say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEW_TOKENS = 32
_REMEMBERED = 24
_FADING = 0.8  # weight of a measurement against the next newer one
_OUTLIER = 1.5  # times the usual cost: a pass that something else got in the way of, the first one of all mostly
_OUTLIER_WEIGHT = 0.1
_TRUST = 0.3  # of the model's sizes, and of there being no start-up cost, against one measurement


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement: `tokens` fed after `cached` ones in `seconds`."""

    tokens: int
    cached: int
    seconds: float


class PrefillSpeed:
    """`pair_share`: what attending to one earlier token costs, as a share of the rest of a token's cost."""

    def __init__(self, pair_share: float) -> None:
        self._pair_share = pair_share
        self._few: deque[Reading] = deque(maxlen=_REMEMBERED)
        self._many: deque[Reading] = deque(maxlen=_REMEMBERED)
        self._step_s: float | None = None
        self._fits: dict[bool, tuple[float, float, float]] = {}

    def add(self, reading: Reading) -> None:
        if reading.tokens > 0 and reading.seconds > 0:
            is_few = reading.tokens <= FEW_TOKENS
            (self._few if is_few else self._many).append(reading)
            self._fits.pop(is_few, None)

    def decoded(self, step_s: float) -> None:
        """Seconds that one new token took: what a few tokens take at most, until that is measured."""
        self._step_s = step_s

    def seconds(self, tokens: int, cached: int) -> float | None:
        """None while nothing like it was measured."""
        is_few = tokens <= FEW_TOKENS
        known = self._few if is_few else self._many
        if not known and not is_few:
            return None
        if not known:  # upper bounds: a short pass of the other way, and one token at a time
            bounds = [self._fitted(False, FEW_TOKENS, cached)] if self._many else []
            bounds += [tokens * self._step_s] if self._step_s is not None else []
            return min(bounds, default=None)
        return self._fitted(is_few, tokens, cached)

    def readings(self) -> list[Reading]:
        return [*self._few, *self._many]

    def _fitted(self, is_few: bool, tokens: int, cached: int) -> float:
        if is_few not in self._fits:
            fading = [_FADING**age for age in reversed(range(len(self._few if is_few else self._many)))]
            self._fits[is_few] = _fit(self._few if is_few else self._many, fading, self._pair_share, is_few=is_few)
        start, token, pair = self._fits[is_few]
        return start + tokens * (token + pair * (cached + tokens / 2))


def _fit(
    readings: Sequence[Reading], fading: Sequence[float], pair_share: float, *, is_few: bool
) -> tuple[float, float, float]:
    """Costs of a start, a token and a pair, none of them negative."""
    weights = list(fading)
    if not is_few:
        by_token = [_cost(one, pair_share) for one in readings]
        usual = sorted(by_token)[(len(by_token) - 1) // 2]
        weights = [
            weight * (_OUTLIER_WEIGHT if cost > _OUTLIER * usual else 1.0)
            for weight, cost in zip(weights, by_token, strict=True)
        ]
    rows = [_row(one, weight) for one, weight in zip(readings, weights, strict=True)]
    scale = _shared_scale(readings, weights, pair_share)
    prior = np.array([0.0, scale, scale * pair_share])
    strength = _TRUST * np.array([1 / max(1e-9, 20 * scale), 0.05 / scale, 1 / max(1e-15, scale * pair_share)])
    matrix = np.vstack([*rows, np.diag(strength)])
    wanted = np.concatenate([weights, strength * prior])
    free = np.ones(3, dtype=bool)
    costs = np.zeros(3)
    for _ in range(3):  # what would come out negative is left out, and the rest fitted again
        costs = np.zeros(3)
        costs[free] = np.linalg.lstsq(matrix[:, free], wanted, rcond=None)[0]
        if (costs >= 0).all():
            break
        free &= costs >= 0
    start, token, pair = (float(cost) for cost in np.maximum(costs, 0.0))
    return start, token, pair


def _row(one: Reading, weight: float) -> np.ndarray:
    middle = one.cached + one.tokens / 2
    return weight / one.seconds * np.array([1.0, one.tokens, one.tokens * middle])


def _shared_scale(readings: Sequence[Reading], weights: Sequence[float], pair_share: float) -> float:
    """The cost of a token if the model's sizes were all that counts."""
    return float(np.average([_cost(one, pair_share) for one in readings], weights=weights))


def _cost(one: Reading, pair_share: float) -> float:
    return one.seconds / (one.tokens * (1 + pair_share * (one.cached + one.tokens / 2)))
