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
    store_four_sums,
    subtract,
    sum_lanes,
)

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
    `segments`, of which this is number `segment`; ahead: how many bytes further the keys and values
    are that are needed soon, and fetched meanwhile.
    """
    stride = 4 * head_floats(segments, head_dim)
    result = partial + 8 * _padded(segments) + 4 * segment * head_dim
    pieces = head_dim // 32
    fours = count // 4 * 4
    for t in range(0, fours, 4):
        key = keys + t * row_bytes
        for d in range(pieces):
            for i in range(4):
                prefetch(key + i * row_bytes + ahead + 64 * d)
        for h in range(group):
            a = splat(_ZERO)
            b = splat(_ZERO)
            c = splat(_ZERO)
            e = splat(_ZERO)
            for d in range(pieces):
                part = load_pairs(query + (h * pieces + d) * 64)
                place = key + 64 * d
                a = dot_pairs(a, part, load_pairs(place))
                b = dot_pairs(b, part, load_pairs(place + row_bytes))
                c = dot_pairs(c, part, load_pairs(place + 2 * row_bytes))
                e = dot_pairs(e, part, load_pairs(place + 3 * row_bytes))
            store_four_sums(scores + 4 * (h * SEGMENT + t), a, b, c, e)
    for t in range(fours, count):
        for h in range(group):
            total = splat(_ZERO)
            for d in range(pieces):
                part = load_pairs(query + (h * pieces + d) * 64)
                total = dot_pairs(total, part, load_pairs(keys + t * row_bytes + 64 * d))
            put_f32(scores + 4 * (h * SEGMENT + t), sum_lanes(total))
    for h in range(group):
        weigh_scores(scores + 4 * h * SEGMENT, count, scale, _ZERO, partial + h * stride + 4 * segment, segments)
    for d in range(0, head_dim, 2 * LANES):
        value = values + 2 * d
        h = 0
        while h + 3 <= group:
            out = result + h * stride + 4 * d
            _weigh_three(value, row_bytes, count, scores + 4 * h * SEGMENT, out, stride, ahead if h == 0 else 0)
            h += 3
        while h < group:
            _weigh(
                value, row_bytes, count, scores + 4 * h * SEGMENT, result + h * stride + 4 * d, ahead if h == 0 else 0
            )
            h += 1


@njit(nogil=True)
def weigh_scores(scores, count, scale, bias, out, segments):
    """Turn one head's scores, (score + bias) * scale, into weights; their largest and the weights' sum go to `out`."""
    vectors = (count + LANES - 1) // LANES
    for t in range(count, vectors * LANES):
        put_f32(scores + 4 * t, _LOWEST)
    factor, shift = splat(scale), splat(bias * scale)
    best = splat(_LOWEST)
    for i in range(vectors):
        scaled = fma(load_f32(scores + 64 * i), factor, shift)
        store_f32(scores + 64 * i, scaled)
        best = maximum(best, scaled)
    largest = max_lanes(best)
    best = splat(largest)
    total = splat(_ZERO)
    for i in range(vectors):
        weight = exp_lanes(subtract(load_f32(scores + 64 * i), best))
        store_f32(scores + 64 * i, weight)
        total = add(total, weight)
    put_f32(out, largest)
    put_f32(out + 4 * _padded(segments), sum_lanes(total))


@njit(nogil=True)
def _weigh(values, row_bytes, count, weights, out, ahead):
    """Sum of weight * value over the tokens, for 32 of the numbers of a head."""
    low = splat(_ZERO)
    high = splat(_ZERO)
    for t in range(count):
        prefetch(values + t * row_bytes + ahead)
        weight = splat_f32(weights + 4 * t)
        low = fma(weight, load_bf16(values + t * row_bytes), low)
        high = fma(weight, load_bf16(values + t * row_bytes + 32), high)
    store_f32(out, low)
    store_f32(out + 64, high)


@njit(nogil=True)
def _weigh_three(values, row_bytes, count, weights, out, out_stride, ahead):
    """The same for three heads, which read each value once."""
    low0 = splat(_ZERO)
    high0 = splat(_ZERO)
    low1 = splat(_ZERO)
    high1 = splat(_ZERO)
    low2 = splat(_ZERO)
    high2 = splat(_ZERO)
    for t in range(count):
        prefetch(values + t * row_bytes + ahead)
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
