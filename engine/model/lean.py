"""Runs a Llama-like model's small steps (one to eight tokens) as one kernel, in place of transformers' forward.

Owned by the inference thread. The kernels read and write memory by address: this module owns every tensor that an
address in the tables points to, and is the only one that fills them in.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.kernels import plan as p
from engine.kernels.packing import Matrix
from engine.kernels.plan import SEGMENT, head_floats
from engine.kernels.team import Team
from engine.kv.arena import KVArena
from engine.kv.cold import ColdPrefix
from engine.kv.cold_table import cold_table
from engine.kv.working_cache import WorkingCache
from engine.model.lean_weights import PROJECTIONS, LeanWeights

_CACHE_LINE = 64
_FIRST_SEGMENTS = 16
_PARTIAL_BYTES = 32 * 1024**2  # most that partial attention results may take: it bounds how many tokens are fed at once
_NORMS = {
    "attention": p.ATTENTION_NORM,
    "mlp": p.MLP_NORM,
    "post_attention": p.POST_ATTENTION_NORM,
    "post_mlp": p.POST_MLP_NORM,
    "q": p.QUERY_NORM,
    "k": p.KEY_NORM,
}
_BIASES = {
    "q": p.QUERY_BIAS,
    "k": p.KEY_BIAS,
    "v": p.VALUE_BIAS,
    "o": p.OUTPUT_BIAS,
    "gate": p.GATE_BIAS,
    "up": p.UP_BIAS,
    "down": p.DOWN_BIAS,
}


class LeanStep:
    """Feeds up to `max_fed` tokens over a cache. Close it to end its threads."""

    def __init__(self, weights: LeanWeights, context_length: int, num_threads: int) -> None:
        self._weights = weights
        self._context_length = context_length
        self._num_threads = num_threads
        self._arena: weakref.ref[KVArena] | None = None
        self._cold: Callable[[], ColdPrefix | None] | None = None
        self._first = 0
        self._control = _aligned(p.CONTROL_WORDS)
        self._sizes = np.zeros(p.NUM_SIZES, dtype=np.int64)
        self._matrices = self._matrix_table()
        self._vectors = self._vector_table()
        self._cache = np.zeros((len(weights.layers), 2), dtype=np.int64)
        self._numbers = np.array(
            [
                weights.epsilon,
                weights.attention_scale,
                weights.residual_scale,
                weights.embedding_scale,
                weights.logits_scale,
            ],
            dtype=np.float32,
        )
        self._fill_sizes()
        self._lay_out_scratch()
        self._cos = self._sin = torch.empty(0)
        self._partial = torch.empty(0)
        self._grow(1, 1, 1)
        self._team = Team(self._control, self._sizes, self._numbers, self._matrices, self._vectors, self._cache)

    def max_fed(self, length: int) -> int:
        """How many tokens may be fed at once after `length` cached ones."""
        segments = -(-(length + p.MAX_FED) // SEGMENT)  # at least as many as there are with a cold part
        return max(1, min(p.MAX_FED, _PARTIAL_BYTES // self._partial_bytes(segments)))

    def takes(self, cache: WorkingCache) -> bool:
        """Whether it can read this cache: numbers in its scales have to be bfloat16, and codecs those it knows."""
        return cache.cold is None or all(block.is_read_in_place for block in cache.cold.blocks)

    def feed(self, token_ids: Sequence[int], cache: WorkingCache, num_logits: int = 1) -> torch.Tensor:
        """Logits after the last `num_logits` ids, `[num_logits, vocab]` float32: valid until the next call.

        The keys and values are in the cache then; the caller records the ids. Raises ValueError for too many ids or one
        outside the vocabulary, RuntimeError when memory runs out.
        """
        count, start = len(token_ids), cache.length
        if not 1 <= count <= self.max_fed(start):
            raise ValueError(f"{count} tokens cannot be fed at once")
        if min(token_ids) < 0 or max(token_ids) >= self._weights.embedding.rows:
            raise ValueError(f"a token id is outside the vocabulary: {max(token_ids)}")
        cache.reserve(start + count)
        self._bind(cache)
        segments = int(self._sizes[p.MOST_SLOTS]) + -(-(start + count - cache.hot_start) // SEGMENT)
        self._grow(start + count - cache.shift, segments, count)
        # The kernels look a token's rotation up by its number: the tables seem to begin `shift` rows earlier.
        ahead = cache.shift * self._cos.stride(0) * self._cos.itemsize if self._weights.rope_dim else 0
        self._sizes[p.COS], self._sizes[p.SIN] = self._cos.data_ptr() - ahead, self._sin.data_ptr() - ahead
        control = self._control
        control[p.START], control[p.COUNT], control[p.FIRST_LOGITS] = start, count, count - num_logits
        control[p.TOKENS : p.TOKENS + count] = token_ids
        self._team.step()
        return self._logits[count - num_logits : count]

    def close(self) -> None:
        """End the helper threads."""
        self._team.close()

    def _bind(self, cache: WorkingCache) -> None:
        """Point the tables to this cache's layers, and to its cold part."""
        arena, cold = cache.arena, cache.cold
        is_same_arena = self._arena is not None and self._arena() is arena
        if is_same_arena and self._first == arena.first and self._cold is not None and self._cold() is cold:
            return
        row_bytes = arena.keys[0].stride(0) * arena.keys[0].itemsize
        for layer, (keys, values) in enumerate(zip(arena.keys, arena.values, strict=True)):
            # Where position 0 would be.
            self._cache[layer] = keys.data_ptr() - arena.first * row_bytes, values.data_ptr() - arena.first * row_bytes
        sizes = self._sizes
        sizes[p.KV_ROW_BYTES], sizes[p.HOT_START] = row_bytes, arena.first
        self._table = table = cold_table(cold, arena.geometry)
        sizes[p.COLD_UNITS], sizes[p.COLD_FIRST] = table.units.ctypes.data, table.first.ctypes.data
        sizes[p.COLD_SLOTS], sizes[p.MOST_SLOTS] = table.slots.ctypes.data, table.most_slots
        self._arena, self._first = weakref.ref(arena), arena.first
        self._cold = weakref.ref(cold) if cold is not None else _nothing

    def _grow(self, num_tokens: int, segments: int, count: int) -> None:
        """Rotary tables for `num_tokens`, and partial results for `segments` of `count` tokens fed, in steps."""
        if num_tokens > len(self._cos) and self._weights.rope_dim:
            roomy = min(max(2 * num_tokens, 1024), max(self._context_length, num_tokens))
            positions = torch.arange(roomy)[None]
            cos, sin = self._weights.rotary(torch.zeros(1, 1, 1, dtype=self._weights.compute_dtype), positions)
            half = self._weights.rope_dim // 2
            self._cos = cos[0, :, :half].float().contiguous()
            self._sin = sin[0, :, :half].float().contiguous()
        if count * self._partial_bytes(segments) > self._partial.nbytes:
            roomy = max(2 * segments, _FIRST_SEGMENTS)
            fed = max(count, min(p.MAX_FED, _PARTIAL_BYTES // self._partial_bytes(roomy)))
            self._partial = torch.empty(fed * self._partial_bytes(roomy) // 4)
            self._sizes[p.PARTIAL] = self._partial.data_ptr()

    def _partial_bytes(self, segments: int) -> int:
        """Bytes of one token's partial attention results."""
        return self._weights.heads * 4 * head_floats(segments, self._weights.head_dim)

    def _fill_sizes(self) -> None:
        one, sizes = self._weights, self._sizes
        sizes[p.LAYERS] = len(one.layers)
        sizes[p.HIDDEN], sizes[p.HEADS], sizes[p.KV_HEADS] = one.hidden, one.heads, one.kv_heads
        sizes[p.HEAD_DIM], sizes[p.ROPE_DIM], sizes[p.INTERMEDIATE] = one.head_dim, one.rope_dim, one.intermediate
        sizes[p.VOCABULARY] = one.head.rows
        sizes[p.QK_NORM] = {None: p.NO_NORM, "per_head": p.PER_HEAD, "full_width": p.FULL_WIDTH}[one.qk_norm]
        sizes[p.ACTIVATION] = {"silu": p.SILU, "gelu_tanh": p.GELU_TANH}[one.activation]
        sizes[p.THREADS] = self._num_threads
        sizes[p.FINAL_NORM] = one.final_norm.data_ptr()

    def _lay_out_scratch(self) -> None:
        one, sizes, fed = self._weights, self._sizes, p.MAX_FED
        width = (one.heads + 2 * one.kv_heads) * one.head_dim
        widest = max(one.hidden, one.heads * one.head_dim)
        group = one.heads // one.kv_heads
        shared = {
            p.QKV: 4 * fed * width,
            p.DELTA: 4 * fed * one.hidden,
            p.GATE: 4 * fed * one.intermediate,
            p.UP: 4 * fed * one.intermediate,
            p.ACTIVATED: 2 * fed * one.intermediate,
            p.ACTIVATED_SUMS: 4 * fed * one.intermediate // 32,
        }
        private = {
            p.RESIDUAL: 4 * fed * one.hidden,
            p.INPUT: 2 * fed * widest,
            p.INPUT_SUMS: 4 * fed * widest // 32,
            p.QUERY: 2 * fed * one.heads * one.head_dim,
            p.SCORES: 4 * group * SEGMENT,
            p.HEAD: 4 * one.head_dim,
            p.SCALED: 4 * group * one.head_dim,
        }
        sizes[p.INPUT_BYTES] = 2 * widest
        offset = 0
        for name, nbytes in private.items():
            sizes[name] = offset
            offset += _rounded(nbytes)
        sizes[p.PRIVATE_BYTES] = offset
        shared[p.PRIVATE] = offset * self._num_threads
        buffer = torch.zeros(sum(_rounded(nbytes) for nbytes in shared.values()) + _CACHE_LINE, dtype=torch.uint8)
        address = buffer.data_ptr() + -buffer.data_ptr() % _CACHE_LINE
        for name, nbytes in shared.items():
            sizes[name] = address
            address += _rounded(nbytes)
        self._scratch = buffer
        self._logits = torch.zeros(fed, one.head.rows)
        sizes[p.LOGITS] = self._logits.data_ptr()

    def _matrix_table(self) -> np.ndarray:
        one = self._weights
        matrices = [layer.projections[name] for layer in one.layers for name in PROJECTIONS]
        return np.array([_row(matrix) for matrix in [*matrices, one.embedding, one.head]], dtype=np.int64)

    def _vector_table(self) -> np.ndarray:
        table = np.zeros((len(self._weights.layers), p.NUM_VECTORS), dtype=np.int64)
        for row, layer in zip(table, self._weights.layers, strict=True):
            for name, vector in layer.norms.items():
                row[_NORMS[name]] = vector.data_ptr()
            for name, vector in layer.biases.items():
                row[_BIASES[name]] = vector.data_ptr()
            row[p.HAS_ROPE] = layer.has_rope
        return table


def _nothing() -> None:
    return None


def _row(matrix: Matrix) -> tuple[int, int, int, int, int, int]:
    scales = 0 if matrix.scales is None else matrix.scales.data_ptr()
    minima = 0 if matrix.minima is None else matrix.minima.data_ptr()
    return int(matrix.format), matrix.words.data_ptr(), scales, minima, matrix.rows, matrix.columns


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _CACHE_LINE) * _CACHE_LINE


def _aligned(words: int) -> np.ndarray:
    """Zeroed int64 words that start on a cache line."""
    buffer = np.zeros(words + _CACHE_LINE // 8, dtype=np.int64)
    start = -buffer.ctypes.data % _CACHE_LINE // 8
    return buffer[start : start + words]
