"""Decode speed of a cache beside the full one, in turn, so that whatever else the machine does meets both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.fidelity.divergence import StoppedError
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass

ROUNDS = 5
STEPS = 9  # of a round, the first of which is not counted: it finds the other cache in the processor's
MOST_STEPS = ROUNDS * STEPS


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds a token, medians."""

    own_s: float
    full_s: float

    def figures(self) -> dict[str, float]:
        return {"decode_tps": 1 / self.own_s, "decode_ratio": self.full_s / self.own_s}


def compare_speed(
    forward: ForwardPass,
    cache: WorkingCache,
    full: WorkingCache,
    ids: Sequence[int],
    is_cancelled: Callable[[], bool],
) -> Speed:
    """Feed `ids` (at least `MOST_STEPS`) to both, `STEPS` at a time, and cut both back. Raises StoppedError."""
    lengths = (cache.length, full.length)
    times: tuple[list[float], list[float]] = ([], [])
    for start in range(0, MOST_STEPS, STEPS):
        for one, measured in zip((cache, full), times, strict=True):
            measured += _times(forward, one, ids[start : start + STEPS], is_cancelled)[1:]
    cache.rollback(lengths[0])
    full.rollback(lengths[1])
    return Speed(statistics.median(times[0]), statistics.median(times[1]))


def _times(
    forward: ForwardPass, cache: WorkingCache, ids: Sequence[int], is_cancelled: Callable[[], bool]
) -> list[float]:
    found = []
    for token_id in ids:
        if is_cancelled():
            raise StoppedError
        started = time.perf_counter()
        forward([token_id], cache)
        found.append(time.perf_counter() - started)
    return found
