"""Small steps of a Llama-like model (one to eight tokens) on CUDA, in plain torch.

Shapes and addresses stay the same from step to step, so that a step of one token is a recorded graph: attention looks
at a whole bucket of the cache, and a mask hides what is not filled. Owned by the inference thread. On the CPU it runs,
for tests; it wins 5 to 12 % over transformers' forward there, where torch's multiplications take the time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch.nn import functional

from engine.kv.arena import KVArena
from engine.kv.transfer import synchronize
from engine.kv.working_cache import WorkingCache
from engine.model.cuda_graph import GraphedCall, GraphRecorder
from engine.model.lean_weights import LeanWeights
from engine.model.torch_layers import Attend, TorchLayers

BUCKET = 256
_MAX_FED = 8
_MAX_GRAPHS = 2
_FIRST_POSITIONS = 1024


class TorchStep:
    """Feeds up to `max_fed` tokens over a cache. Close it to free its graphs; `graphs_recorded` counts them."""

    def __init__(self, weights: LeanWeights, context_length: int) -> None:
        self._layers = TorchLayers(weights)
        device = self._layers.device
        self._device = device
        self._weights = weights
        self._context_length = context_length
        self._recorder = GraphRecorder(device)
        self._graphs: dict[int, GraphedCall] = {}  # by bucket, the latest last
        self.graphs_recorded = 0
        self._arena: weakref.ref[KVArena] | None = None
        self._finite_tokens = 0
        # Addresses of graphs: ids, then positions; logits `[tokens, vocab]`.
        self._inputs = torch.zeros(2, _MAX_FED, dtype=torch.long, device=device)
        self._logits = torch.zeros(_MAX_FED, weights.head.rows, device=device)
        self._cos = self._sin = torch.empty(0, 0, device=device)

    def max_fed(self, length: int) -> int:
        """How many tokens may be fed at once after `length` cached ones."""
        return _MAX_FED

    def takes(self, cache: WorkingCache) -> bool:
        """Not those with a cold part: the model itself reads them."""
        return cache.cold is None

    @torch.inference_mode()
    def feed(self, token_ids: Sequence[int], cache: WorkingCache, num_logits: int = 1) -> torch.Tensor:
        """Logits after the last `num_logits` ids, `[num_logits, vocab]` float32: valid until the next call.

        The keys and values are in the cache then; the caller records the ids. Raises ValueError for too many ids or one
        outside the vocabulary, RuntimeError when memory runs out.
        """
        count, start = len(token_ids), cache.length
        if not 1 <= count <= _MAX_FED:
            raise ValueError(f"{count} tokens cannot be fed at once")
        if min(token_ids) < 0 or max(token_ids) >= self._weights.embedding.rows:
            raise ValueError(f"a token id is outside the vocabulary: {max(token_ids)}")
        end = start + count
        bucket = -(-end // BUCKET) * BUCKET
        cache.reserve(bucket)  # so it seldom moves; given back when the reply has ended
        self._bind(cache.arena, end, bucket)
        self._grow_tables(bucket)
        padding = [0] * (_MAX_FED - count)
        self._inputs.copy_(torch.tensor([[*token_ids, *padding], [*range(start, end), *padding]]))
        if count == 1:
            self._graph(cache.arena, bucket).run()
        else:
            self._run(self._attend_bucket(cache.arena, count, bucket), count, num_logits)
        synchronize(self._device)  # errors show here, cancelling acts at once, and times are true
        return self._logits[:num_logits]

    def close(self) -> None:
        """Free the graphs and what they calculate in."""
        self._graphs.clear()

    def _graph(self, arena: KVArena, bucket: int) -> GraphedCall:
        """One token's step over this bucket, recorded with the inputs as they are now if it was not before."""
        graph = self._graphs.pop(bucket, None)
        if graph is None:
            while len(self._graphs) >= _MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            # Not a cycle, which would keep graphs and weights until Python's next collection.
            this, of_arena = weakref.proxy(self), weakref.proxy(arena)
            graph = GraphedCall(lambda: this._run(this._attend_bucket(of_arena, 1, bucket), 1, 1), self._recorder)
            self.graphs_recorded += 1
        self._graphs[bucket] = graph
        return graph

    def _run(self, attend: Attend, count: int, num_logits: int) -> None:
        """From the inputs to the logits; calling it again changes nothing."""
        ids, positions = self._inputs[0, :count], self._inputs[1, :count]
        cos, sin = self._cos, self._sin
        if self._weights.rope_dim:
            cos, sin = cos.index_select(0, positions), sin.index_select(0, positions)
        logits = self._logits[: max(num_logits, 1)]
        logits.copy_(self._layers(ids, cos, sin, attend, len(logits)))
        if self._weights.logits_scale != 1.0:
            logits *= self._weights.logits_scale

    def _attend_bucket(self, arena: KVArena, count: int, bucket: int) -> Attend:
        """Attention over the first `bucket` tokens of the arena, up to the position of each token."""
        kv_heads, scale = self._weights.kv_heads, self._weights.attention_scale
        group = self._weights.heads // kv_heads
        positions = self._inputs[1, :count]
        is_hidden = torch.arange(bucket, device=self._device) > positions[:, None]
        mask = torch.zeros(count, bucket, dtype=self._layers.dtype, device=self._device)
        mask = mask.masked_fill_(is_hidden, -torch.inf).repeat(group, 1)

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys = arena.keys[layer].index_copy_(0, positions, key)[:bucket].transpose(0, 1)
            values = arena.values[layer].index_copy_(0, positions, value)[:bucket].transpose(0, 1)
            packed = query.reshape(count, kv_heads, group, -1).permute(1, 2, 0, 3).reshape(kv_heads, group * count, -1)
            attended = functional.scaled_dot_product_attention(
                packed[None], keys[None], values[None], attn_mask=mask, scale=scale
            )
            return attended.view(kv_heads, group, count, -1).permute(2, 0, 1, 3).reshape(count, -1)

        return attend

    def _bind(self, arena: KVArena, end: int, bucket: int) -> None:
        """Throw graphs of another arena away, and see to it that what the mask hides are numbers."""
        if self._arena is None or self._arena() is not arena:
            self._graphs.clear()
            self._arena = weakref.ref(arena)
            self._finite_tokens = 0
        if bucket > self._finite_tokens:
            for group in arena.groups:
                group[:, max(end, self._finite_tokens) : bucket].zero_()
            self._finite_tokens = bucket

    def _grow_tables(self, num_tokens: int) -> None:
        if self._weights.rope_dim and num_tokens > len(self._cos):
            roomy = min(max(2 * num_tokens, _FIRST_POSITIONS), max(self._context_length, num_tokens))
            self._graphs.clear()
            self._cos, self._sin = self._layers.rotary_tables(roomy)
