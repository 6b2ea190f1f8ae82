"""The manual decode loop: sample, hand out, feed, repeat. The last token sampled is never fed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from engine.generation.sampler import Sampler
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass
from engine.protocol.events import FinishReason


class Decode:
    """Iterates over the new token ids of one reply, end-of-turn ids excluded; `finish_reason` is set at the end."""

    def __init__(
        self,
        forward: ForwardPass,
        cache: WorkingCache,
        sampler: Sampler,
        stop_ids: frozenset[int],
        max_new_tokens: int,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.finish_reason = FinishReason.CANCELLED
        self._forward = forward
        self._cache = cache
        self._sampler = sampler
        self._stop_ids = stop_ids
        self._max_new_tokens = max_new_tokens
        self._is_cancelled = is_cancelled

    def run(self, logits: torch.Tensor) -> Iterator[int]:
        """Yield ids, the first one drawn from `logits`. After n ids the cache has grown by n - 1 tokens."""
        for count in range(1, self._max_new_tokens + 1):
            token_id = self._sampler.sample(logits)
            if token_id in self._stop_ids:
                self.finish_reason = FinishReason.STOP
                return
            yield token_id
            if count == self._max_new_tokens:
                self.finish_reason = FinishReason.LENGTH
                return
            if self._is_cancelled():
                return
            logits = self._forward([token_id], self._cache)
