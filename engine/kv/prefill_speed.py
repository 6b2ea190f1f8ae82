"""How long reading takes here: fitted to what reading took, since a token costs more the more there is before it.

Seconds of n tokens after c cached ones: start + n * (token + pair * (c + n / 2)); a few tokens go another way than many
(`engine.model.forward`), so they have a fit of their own. Weighted least squares on relative errors, the newest
measurements counting most; where few are known, the cost of a pair keeps close to what the model's sizes say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

FEW_TOKENS = 32
_REMEMBERED = 24
_FADING = 0.9  # weight of a measurement against the next newer one
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
        self._fits: dict[bool, tuple[float, float, float]] = {}

    def add(self, reading: Reading) -> None:
        if reading.tokens > 0 and reading.seconds > 0:
            is_few = reading.tokens <= FEW_TOKENS
            (self._few if is_few else self._many).append(reading)
            self._fits.pop(is_few, None)

    def seconds(self, tokens: int, cached: int) -> float | None:
        """None while nothing like it was measured."""
        is_few = tokens <= FEW_TOKENS
        known = self._few if is_few else self._many
        if not known and not is_few:
            return None
        if not known:  # a short pass of the other way is about as slow as many tokens would be: an upper bound
            return self._fitted(False, FEW_TOKENS, cached) if self._many else None
        return self._fitted(is_few, tokens, cached)

    def readings(self) -> list[Reading]:
        return [*self._few, *self._many]

    def _fitted(self, is_few: bool, tokens: int, cached: int) -> float:
        if is_few not in self._fits:
            self._fits[is_few] = _fit(self._few if is_few else self._many, self._pair_share)
        start, token, pair = self._fits[is_few]
        return start + tokens * (token + pair * (cached + tokens / 2))


def _fit(known: Iterable[Reading], pair_share: float) -> tuple[float, float, float]:
    """Costs of a start, a token and a pair, none of them negative."""
    readings = list(known)
    weights = [_FADING ** (len(readings) - 1 - index) for index in range(len(readings))]
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
    costs = [one.seconds / (one.tokens * (1 + pair_share * (one.cached + one.tokens / 2))) for one in readings]
    return float(np.average(costs, weights=weights))
