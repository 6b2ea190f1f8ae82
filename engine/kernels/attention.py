"""Attention of one new token over cached keys and values, piece by piece.

The cached tokens are cut into segments of 128 at fixed places. A unit is one KV head in one segment, for all the query
heads that share it: it leaves a partial result (largest score, sum of exponentials, weighted sum of values), and the
partial results of a head are merged in the order of the segments (online softmax, arXiv 2205.14135; split over the
keys as in FlashDecoding). So the result depends neither on the number of threads nor on how many tokens are fed.

Keys and values are bfloat16 `[tokens, kv_heads, head_dim]`, head_dim a multiple of 32; sums are float32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from engine.kernels import plan
from engine.kernels.plan import SEGMENT
from engine.kernels.simd import (
    LANES,
    add,
    divide,
    dot_pairs,
    exp_lanes,
    fma,
    get_f32,
    load_bf16,
    load_f32,
    load_pairs,
    max_lanes,
    maximum,
    multiply,
    prefetch,
    put_f32,
    splat,
    splat_f32,
    store_f32,
    subtract,
    sum_lanes,
)

_TOKENS_AHEAD = 24
_ZERO = np.float32(0)
_ONE = np.float32(1)
_LOWEST = np.float32(-3.0e38)


head_floats = njit(nogil=True)(plan.head_floats)
_padded = njit(nogil=True)(plan.padded)


@njit(nogil=True)
def attend_segment(
    query, keys, values, row_bytes, count, group, head_dim, scale, scores, partial, segment, segments, ahead
):
    """Partial results of `group` query heads over `count` cached tokens (1 to 128).

    query: bfloat16 `[group, head_dim]`; keys, values: the first token of the segment, this KV head; row_bytes: from
    token to token; scores: scratch, float32 `[group, 128]`; partial: the first head's partial results over all
    `segments`, of which this is number `segment`; ahead: bytes of each token's row to fetch ahead of
    their use, 0 if they were fetched before.
    """
    stride = 4 * head_floats(segments, head_dim)
    result = partial + 8 * _padded(segments) + 4 * segment * head_dim
    pieces = head_dim // 32
    for t in range(count):
        key = keys + t * row_bytes
        for line in range(0, ahead, 64):
            prefetch(key + _TOKENS_AHEAD * row_bytes + line)
            prefetch(values + t * row_bytes + line)
        for h in range(group):
            total = splat(_ZERO)
            for d in range(pieces):
                total = dot_pairs(total, load_pairs(query + (h * pieces + d) * 64), load_pairs(key + 64 * d))
            put_f32(scores + 4 * (h * SEGMENT + t), sum_lanes(total) * scale)
    vectors = (count + LANES - 1) // LANES
    for h in range(group):
        mine = scores + 4 * h * SEGMENT
        for t in range(count, vectors * LANES):
            put_f32(mine + 4 * t, _LOWEST)
        best = load_f32(mine)
        for i in range(1, vectors):
            best = maximum(best, load_f32(mine + 64 * i))
        largest = max_lanes(best)
        best = splat(largest)
        total = splat(_ZERO)
        for i in range(vectors):
            weight = exp_lanes(subtract(load_f32(mine + 64 * i), best))
            store_f32(mine + 64 * i, weight)
            total = add(total, weight)
        out = partial + h * stride + 4 * segment
        put_f32(out, largest)
        put_f32(out + 4 * _padded(segments), sum_lanes(total))
    for d in range(0, head_dim, 2 * LANES):
        value = values + 2 * d
        h = 0
        while h + 3 <= group:
            out = result + h * stride + 4 * d
            _weigh_three(value, row_bytes, count, scores + 4 * h * SEGMENT, out, stride)
            h += 3
        while h < group:
            _weigh(value, row_bytes, count, scores + 4 * h * SEGMENT, result + h * stride + 4 * d)
            h += 1


@njit(nogil=True)
def _weigh(values, row_bytes, count, weights, out):
    """Sum of weight * value over the tokens, for 32 of the numbers of a head."""
    low = splat(_ZERO)
    high = splat(_ZERO)
    for t in range(count):
        weight = splat_f32(weights + 4 * t)
        low = fma(weight, load_bf16(values + t * row_bytes), low)
        high = fma(weight, load_bf16(values + t * row_bytes + 32), high)
    store_f32(out, low)
    store_f32(out + 64, high)


@njit(nogil=True)
def _weigh_three(values, row_bytes, count, weights, out, out_stride):
    """The same for three heads, which read each value once."""
    low0 = splat(_ZERO)
    high0 = splat(_ZERO)
    low1 = splat(_ZERO)
    high1 = splat(_ZERO)
    low2 = splat(_ZERO)
    high2 = splat(_ZERO)
    for t in range(count):
        low = load_bf16(values + t * row_bytes)
        high = load_bf16(values + t * row_bytes + 32)
        weight = splat_f32(weights + 4 * t)
        low0 = fma(weight, low, low0)
        high0 = fma(weight, high, high0)
        weight = splat_f32(weights + 4 * (t + SEGMENT))
        low1 = fma(weight, low, low1)
        high1 = fma(weight, high, high1)
        weight = splat_f32(weights + 4 * (t + 2 * SEGMENT))
        low2 = fma(weight, low, low2)
        high2 = fma(weight, high, high2)
    store_f32(out, low0)
    store_f32(out + 64, high0)
    store_f32(out + out_stride, low1)
    store_f32(out + out_stride + 64, high1)
    store_f32(out + 2 * out_stride, low2)
    store_f32(out + 2 * out_stride + 64, high2)


@njit(nogil=True)
def merge_segments(partial, seen, segments, head_dim, weights, out):
    """Combine one head's first `seen` partial results in order.

    weights: scratch, float32 `[16]`; out: float32 `[head_dim]`.
    """
    sums = partial + 4 * _padded(segments)
    values = sums + 4 * _padded(segments)
    largest = get_f32(partial)
    for s in range(1, seen):
        largest = max(largest, get_f32(partial + 4 * s))
    for d in range(0, head_dim, LANES):
        store_f32(out + 4 * d, splat(_ZERO))
    total = splat(_ZERO)
    for first in range(0, seen, LANES):
        here = min(LANES, seen - first)
        for s in range(LANES):
            put_f32(weights + 4 * s, get_f32(partial + 4 * (first + s)) if s < here else _LOWEST)
        weight = exp_lanes(subtract(load_f32(weights), splat(largest)))
        store_f32(weights, weight)
        for s in range(here):
            total = fma(splat_f32(weights + 4 * s), splat_f32(sums + 4 * (first + s)), total)
        for d in range(0, head_dim, LANES):
            value = load_f32(out + 4 * d)
            for s in range(here):
                value = fma(splat_f32(weights + 4 * s), load_f32(values + 4 * ((first + s) * head_dim + d)), value)
            store_f32(out + 4 * d, value)
    share = divide(splat(_ONE), total)
    for d in range(0, head_dim, LANES):
        store_f32(out + 4 * d, multiply(load_f32(out + 4 * d), share))
