"""Which key-value pairs a chat can do without: those that the model does not need to repeat its context.

KVzip (arXiv 2505.23416, section 3): the model is made to repeat the context, chunk by chunk, and a pair's score is the
most attention that it receives meanwhile. One threshold for all layers and heads then decides, so that heads keep as
much as they need. Inference thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.kv.attention import observing
from engine.kv.geometry import KVGeometry
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass

CHUNK_TOKENS = 512  # repeated at once
LEAST_CHUNK = 64  # for less, the words around it cost more than what is repeated
SINK_TOKENS = 4  # the first of any text take the attention that goes nowhere else (arXiv 2309.17453)
_QUOTED_TOKENS = 8  # of the chunk before, in the words that ask for the next one
_SLICE_NUMBERS = 1 << 22  # attention weights of a layer looked at together


@dataclass(frozen=True, slots=True)
class RepeatPrompts:
    """What asks for the first chunk, what asks for each later one (a quotation follows), and what begins the answer."""

    first: tuple[int, ...]
    later: tuple[int, ...]
    answer: tuple[int, ...] = ()

    @property
    def most_tokens(self) -> int:
        """Fed before a chunk."""
        return max(len(self.first), len(self.later) + _QUOTED_TOKENS) + len(self.answer)

    def before(self, context: Sequence[int], start: int) -> list[int]:
        """The ids to feed before the chunk of `context` that begins at `start`."""
        if start == 0:
            return [*self.first, *self.answer]
        return [*self.later, *context[max(0, start - _QUOTED_TOKENS) : start], *self.answer]


def score(
    forward: ForwardPass,
    cache: WorkingCache,
    prompts: RepeatPrompts,
    stop: int,
    is_cancelled: Callable[[], bool],
    on_progress: Callable[[int, int], None],
    chunk: int = CHUNK_TOKENS,
) -> torch.Tensor | None:
    """The most attention each pair of the first `stop` tokens receives: float32 `[lanes, stop]` in host memory.

    What was moved together has been scored then, and is 0. The cache is fed beyond its end and cut back; it may have an
    encoded cold part, but no other pruned one. Returns None when
    cancelled, which acts between chunks. `on_progress(done, total)` tells tokens. Raises ValueError for a pruned cache.
    """
    first = cache.moved_tokens
    if cache.cold is not None and cache.cold.is_pruned and not first:
        raise ValueError("what is left of a pruned cache cannot be scored")
    ids, length = list(cache.token_ids), cache.length
    scores = torch.zeros(cache.geometry.num_lanes, stop)
    step, forward.step = forward.step, None  # it shows no one its queries
    try:
        for start in range(first, stop, chunk):
            on_progress(start - first, stop - first)
            if is_cancelled():
                return None
            end = min(start + chunk, stop)
            with observing(_ChunkScorer(cache, scores, start, end)):
                forward([*prompts.before(ids, start), *ids[start:end]], cache)
            cache.rollback(length)
    finally:
        forward.step = step
        cache.rollback(length)
    on_progress(stop - first, stop - first)
    return None if is_cancelled() else scores


def select(scores: torch.Tensor, keep: float, protected: torch.Tensor) -> torch.Tensor:
    """Mark the best pairs of all lanes together: bool `[lanes, tokens]`, exactly the share `keep` of them.

    scores: float32 `[lanes, tokens]`; protected: bool `[tokens]`, kept in every lane and counted, even where they are
    more than `keep`. Of equal scores the first ones win.
    """
    lanes, tokens = scores.shape
    kept = protected.expand(lanes, tokens).clone()
    wanted = round(keep * lanes * tokens) - int(kept.sum())
    if wanted > 0:
        open_scores = scores.masked_fill(kept, -torch.inf).reshape(-1)
        order = torch.sort(open_scores, descending=True, stable=True).indices
        kept.view(-1)[order[:wanted]] = True
    return kept


def streaming_kept(geometry: KVGeometry, keep: float, protected: torch.Tensor) -> torch.Tensor:
    """What StreamingLLM (arXiv 2309.17453) leaves: those protected, and the most recent of the others, in every lane.

    The share `keep` of all `[lanes, tokens]`, in whole tokens; 0 leaves those protected alone.
    """
    kept = protected.clone()
    wanted = round(keep * len(kept)) - int(kept.sum())
    if wanted > 0:
        kept[(~protected).nonzero().flatten()[-wanted:]] = True
    return kept.expand(geometry.num_lanes, -1).clone()


class _ChunkScorer:
    """An attention observer that writes the scores of the positions `start` to `end`."""

    def __init__(self, cache: WorkingCache, scores: torch.Tensor, start: int, end: int) -> None:
        self._cache, self._scores = cache, scores
        self._start, self._end = start, end

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, lse: torch.Tensor, scale: float) -> None:
        lanes = self._cache.geometry.lanes(layer)
        keys = self._keys(layer, key)
        weights = most_attention(query, keys, lse, scale)
        self._scores[lanes.start : lanes.stop, self._start : self._end] = weights.cpu()

    def _keys(self, layer: int, hot: torch.Tensor) -> torch.Tensor:
        """Of the chunk, `[kv_heads, tokens, head_dim]`, from both parts of the cache."""
        first = self._cache.hot_start
        parts: list[torch.Tensor] = []
        if self._cache.cold is not None and self._start < first:
            position = self._cache.moved_tokens
            for piece, _ in self._cache.cold.read(layer, hot.dtype):
                low, high = max(self._start - position, 0), min(self._end - position, piece.shape[2])
                if low < high:
                    parts.append(piece[0, :, low:high].clone())
                position += piece.shape[2]
                if position >= self._end:
                    break
        if self._end > first:
            parts.append(hot[0, :, max(self._start - first, 0) : self._end - first])
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def most_attention(query: torch.Tensor, keys: torch.Tensor, lse: torch.Tensor, scale: float) -> torch.Tensor:
    """The largest softmax weight each key gets from any query of its group, float32 `[kv_heads, keys]`.

    query: `[1, heads, q, head_dim]`; keys: `[kv_heads, keys, head_dim]`; lse: `[1, heads, q]`, over all keys.
    The log-sum-exp takes part in the product as two further channels, high and low half: the sum is then rounded after
    the subtraction, which leaves large weights exact in 16 bits too, and no difference is ever written out.
    """
    kv_heads, num_keys, head_dim = keys.shape
    group_queries = query.shape[1] // kv_heads * query.shape[2]
    packed = (query * scale).reshape(kv_heads, group_queries, head_dim)
    sums = lse.reshape(kv_heads, group_queries, 1)
    high = sums.to(query.dtype)
    low = (sums - high).to(query.dtype)
    packed = torch.cat([packed, -high, -low], 2)
    keys = torch.cat([keys, keys.new_ones(kv_heads, num_keys, 2)], 2)
    best = torch.full((kv_heads, num_keys), -torch.inf, device=keys.device)
    size = max(1, _SLICE_NUMBERS // (kv_heads * num_keys))
    for at in range(0, group_queries, size):
        logs = keys @ packed[:, at : at + size].transpose(1, 2)
        best = torch.maximum(best, logs.amax(2).float())
    return best.exp_()
