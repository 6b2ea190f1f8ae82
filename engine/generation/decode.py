"""The manual decode loop: sample, hand out, feed, repeat. The last token sampled is never fed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from engine.generation.lookahead import Lookahead
from engine.generation.sampler import Sampler
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass
from engine.protocol.events import FinishReason


class Decode:
    """Iterates over the new token ids of one reply, end-of-turn ids excluded; `finish_reason` is set at the end.

    Where it changes no token (the cache can be cropped, the forward pass is exact for several tokens), what the chat
    seems to repeat is fed ahead of being sampled, as long as that is faster by `clock`, in seconds.
    """

    def __init__(
        self,
        forward: ForwardPass,
        cache: WorkingCache,
        sampler: Sampler,
        stop_ids: frozenset[int],
        max_new_tokens: int,
        is_cancelled: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.finish_reason = FinishReason.CANCELLED
        self._forward = forward
        self._cache = cache
        self._sampler = sampler
        self._stop_ids = stop_ids
        self._max_new_tokens = max_new_tokens
        self._is_cancelled = is_cancelled
        can_look_ahead = forward.multi_token_is_exact and cache.can_crop
        self._lookahead = Lookahead(forward, cache, stop_ids, clock) if can_look_ahead else None

    @property
    def drafted_tokens(self) -> int:
        """How many tokens were fed as guesses."""
        return self._lookahead.drafted_tokens if self._lookahead is not None else 0

    @property
    def accepted_tokens(self) -> int:
        """How many of them the model then chose."""
        return self._lookahead.accepted_tokens if self._lookahead is not None else 0

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
            logits = self._feed(token_id, self._max_new_tokens - count)

    def _feed(self, token_id: int, num_more: int) -> torch.Tensor:
        if self._lookahead is not None:
            return self._lookahead.feed(token_id, num_more)
        return self._forward([token_id], self._cache)
