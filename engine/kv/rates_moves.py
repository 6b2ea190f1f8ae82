"""How long it takes to make a cache ready, partly from disk and partly copied in memory: fitted to what it took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from engine.kv.rates_fit import fit_costs

_REMEMBERED = 24
_FADING = 0.9  # weight of a measurement against the next newer one
_TRUST = np.array([1e-2, 1e-4, 1e-4])  # in nothing having a cost, least of all a start, against one measurement
_NOTHING = 1_000_000  # bytes that take no time worth telling


@dataclass(frozen=True, slots=True)
class Move:
    """One measurement: so many bytes of full-precision cache from disk and so many copied, in `seconds`.

    `is_private`: of an incognito chat.
    """

    restored_bytes: int
    copied_bytes: int
    seconds: float
    is_private: bool = False


class MoveSpeed:
    """Seconds are start + restored * a + copied * b."""

    def __init__(self) -> None:
        self._moves: deque[Move] = deque(maxlen=_REMEMBERED)
        self._costs: np.ndarray | None = None

    def add(self, move: Move) -> None:
        self._moves.append(move)
        self._costs = None

    def moves(self) -> list[Move]:
        """Oldest first."""
        return list(self._moves)

    def seconds(self, restored_bytes: int, copied_bytes: int) -> float | None:
        """None while nothing like it was measured."""
        if restored_bytes + copied_bytes == 0:
            return 0.0
        is_restored = any(one.restored_bytes > _NOTHING for one in self._moves)
        is_copied = any(one.copied_bytes > _NOTHING for one in self._moves)
        if (restored_bytes > _NOTHING and not is_restored) or (copied_bytes > _NOTHING and not is_copied):
            return None
        if not self._moves:
            return 0.0
        return float(np.array([1.0, restored_bytes, copied_bytes]) @ self._fitted())

    def _fitted(self) -> np.ndarray:
        if self._costs is None:
            jobs = np.array([(1.0, one.restored_bytes, one.copied_bytes) for one in self._moves])
            seconds = np.array([one.seconds for one in self._moves])
            weights = _FADING ** np.arange(len(self._moves))[::-1]
            trust = _TRUST * np.array([1.0, jobs[:, 1].max(), jobs[:, 2].max()]) / seconds.max()
            self._costs = fit_costs(jobs, seconds, weights, np.zeros(3), trust)
        return self._costs
