"""Attention of one new token over tokens that are encoded: decoded in registers, on the way through.

A number is `offset + code * scale`, keys with a scale per channel and values with one per token (the layouts of
`engine.kv.codecs.affine`). So the scales of keys go into the query before its products with the codes, their offsets
make one product for all tokens, and the scales and offsets of values go into the weights: a code costs one
multiplication, as a number in full precision does.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from engine.kernels import plan as p
from engine.kernels.attention import attend_segment, head_floats, weigh_scores
from engine.kernels.plan import SEGMENT, padded
from engine.kernels.simd import (
    LANES,
    fma,
    get_bf16,
    get_f32,
    get_int64,
    load_bf16,
    load_f32,
    load_high_nibbles,
    load_i8,
    load_low_nibbles,
    multiply,
    prefetch,
    put_f32,
    splat,
    splat_f32,
    store_f32,
    store_four_sums,
    sum_lanes,
)

_ZERO = np.float32(0)
_padded = njit(nogil=True)(padded)


@njit(nogil=True)
def attend_cold(query, unit, soon, group, head_dim, scale, scores, scaled, partial, segments):
    """Partial results of `group` query heads over one cold unit.

    query: bfloat16 `[group, head_dim]`; unit: address of its row in the table; soon: of a row whose keys and values are
    needed soon, and fetched meanwhile; scores: scratch, float32 `[group, 128]`; scaled: scratch, float32
    `[group, head_dim]`; partial: the first head's partial results, of which there are `segments`.
    """
    count = get_int64(unit + 8 * p.COLD_COUNT)
    slot = get_int64(unit + 8 * p.COLD_SLOT)
    kind = get_int64(unit + 8 * p.COLD_FORMAT)
    keys, key_row = get_int64(unit + 8 * p.COLD_KEYS), get_int64(unit + 8 * p.COLD_KEY_ROW)
    values, value_row = get_int64(unit + 8 * p.COLD_VALUES), get_int64(unit + 8 * p.COLD_VALUE_ROW)
    if kind == p.PLAIN:
        attend_segment(query, keys, values, key_row, count, group, head_dim, scale, scores, partial, slot, segments, 0)
        return
    stride = 4 * head_floats(segments, head_dim)
    result = partial + 8 * _padded(segments) + 4 * slot * head_dim
    key_scale, key_offset = get_int64(unit + 8 * p.COLD_KEY_SCALE), get_int64(unit + 8 * p.COLD_KEY_OFFSET)
    value_scale, value_offset = get_int64(unit + 8 * p.COLD_VALUE_SCALE), get_int64(unit + 8 * p.COLD_VALUE_OFFSET)
    soon_keys, soon_values = get_int64(soon + 8 * p.COLD_KEYS), get_int64(soon + 8 * p.COLD_VALUES)
    for h in range(group):
        for d in range(0, head_dim, LANES):
            number = load_bf16(query + 2 * (h * head_dim + d))
            store_f32(scaled + 4 * (h * head_dim + d), multiply(number, load_bf16(key_scale + 2 * d)))
    if kind == p.KEYS_4_VALUES_4:
        _score_4(keys, key_row, count, group, head_dim, scaled, scores, soon_keys)
    else:
        _score_8(keys, key_row, count, group, head_dim, scaled, scores, soon_keys)
    for h in range(group):
        bias = splat(_ZERO)
        for d in range(0, head_dim, LANES):
            bias = fma(load_bf16(query + 2 * (h * head_dim + d)), load_bf16(key_offset + 2 * d), bias)
        mine = scores + 4 * h * SEGMENT
        weigh_scores(mine, count, scale, sum_lanes(bias), partial + h * stride + 4 * slot, segments)
        put_f32(scaled + 4 * h, _scale_weights(mine, count, value_scale, value_offset))
    if kind == p.KEYS_8_VALUES_8:
        _weigh_8(values, value_row, count, group, head_dim, scores, scaled, result, stride, soon_values)
    else:
        _weigh_4(values, value_row, count, group, head_dim, scores, scaled, result, stride, soon_values)


@njit(nogil=True)
def _scale_weights(weights, count, scales, offsets):
    """Multiply one head's weights by the values' scales; returns the sum of weight * offset."""
    total = splat(_ZERO)
    whole = count // LANES * LANES
    for t in range(0, whole, LANES):
        weight = load_f32(weights + 4 * t)
        total = fma(weight, load_bf16(offsets + 2 * t), total)
        store_f32(weights + 4 * t, multiply(weight, load_bf16(scales + 2 * t)))
    shift = sum_lanes(total)
    for t in range(whole, count):
        weight = get_f32(weights + 4 * t)
        shift += weight * get_bf16(offsets + 2 * t)
        put_f32(weights + 4 * t, weight * get_bf16(scales + 2 * t))
    return shift


@njit(nogil=True)
def _second_byte(address):
    return load_i8(address + LANES)


def _make_score(first, second, bits):
    """Products of the codes of `count` tokens with the scaled queries. A piece is what makes two vectors of codes:
    32 bytes of 8 bits or 16 bytes of twice 4 bits, whose halves are half a head apart."""
    piece_bytes = 4 * bits

    @njit(nogil=True)
    def three(keys, row, count, head_dim, scaled, scores, soon):
        """For three heads, which decode each key once."""
        apart = 64 if bits == 8 else 2 * head_dim
        step = 128 if bits == 8 else 64
        two, three_ = 4 * head_dim, 8 * head_dim
        pieces = head_dim // 32
        fours = count // 4 * 4
        for t in range(0, fours, 4):
            key = keys + t * row
            for i in range(4):
                prefetch(soon + (t + i) * row)
            a0 = splat(_ZERO)
            b0 = splat(_ZERO)
            c0 = splat(_ZERO)
            e0 = splat(_ZERO)
            a1 = splat(_ZERO)
            b1 = splat(_ZERO)
            c1 = splat(_ZERO)
            e1 = splat(_ZERO)
            a2 = splat(_ZERO)
            b2 = splat(_ZERO)
            c2 = splat(_ZERO)
            e2 = splat(_ZERO)
            for d in range(pieces):
                place = key + piece_bytes * d
                part = scaled + step * d
                a = first(place)
                b = first(place + row)
                c = first(place + 2 * row)
                e = first(place + 3 * row)
                q = load_f32(part)
                a0, b0, c0, e0 = fma(q, a, a0), fma(q, b, b0), fma(q, c, c0), fma(q, e, e0)
                q = load_f32(part + two)
                a1, b1, c1, e1 = fma(q, a, a1), fma(q, b, b1), fma(q, c, c1), fma(q, e, e1)
                q = load_f32(part + three_)
                a2, b2, c2, e2 = fma(q, a, a2), fma(q, b, b2), fma(q, c, c2), fma(q, e, e2)
                a = second(place)
                b = second(place + row)
                c = second(place + 2 * row)
                e = second(place + 3 * row)
                part += apart
                q = load_f32(part)
                a0, b0, c0, e0 = fma(q, a, a0), fma(q, b, b0), fma(q, c, c0), fma(q, e, e0)
                q = load_f32(part + two)
                a1, b1, c1, e1 = fma(q, a, a1), fma(q, b, b1), fma(q, c, c1), fma(q, e, e1)
                q = load_f32(part + three_)
                a2, b2, c2, e2 = fma(q, a, a2), fma(q, b, b2), fma(q, c, c2), fma(q, e, e2)
            store_four_sums(scores + 4 * t, a0, b0, c0, e0)
            store_four_sums(scores + 4 * (SEGMENT + t), a1, b1, c1, e1)
            store_four_sums(scores + 4 * (2 * SEGMENT + t), a2, b2, c2, e2)
        for h in range(3):
            tail(keys, row, fours, count, head_dim, scaled + 4 * h * head_dim, scores + 4 * h * SEGMENT)

    @njit(nogil=True)
    def one(keys, row, count, head_dim, scaled, scores, soon):
        apart = 64 if bits == 8 else 2 * head_dim
        step = 128 if bits == 8 else 64
        pieces = head_dim // 32
        fours = count // 4 * 4
        for t in range(0, fours, 4):
            key = keys + t * row
            for i in range(4):
                prefetch(soon + (t + i) * row)
            a = splat(_ZERO)
            b = splat(_ZERO)
            c = splat(_ZERO)
            e = splat(_ZERO)
            for d in range(pieces):
                place = key + piece_bytes * d
                q = load_f32(scaled + step * d)
                a = fma(q, first(place), a)
                b = fma(q, first(place + row), b)
                c = fma(q, first(place + 2 * row), c)
                e = fma(q, first(place + 3 * row), e)
                q = load_f32(scaled + step * d + apart)
                a = fma(q, second(place), a)
                b = fma(q, second(place + row), b)
                c = fma(q, second(place + 2 * row), c)
                e = fma(q, second(place + 3 * row), e)
            store_four_sums(scores + 4 * t, a, b, c, e)
        tail(keys, row, fours, count, head_dim, scaled, scores)

    @njit(nogil=True)
    def tail(keys, row, start, count, head_dim, scaled, scores):
        """What is left of the tokens, one by one."""
        apart = 64 if bits == 8 else 2 * head_dim
        step = 128 if bits == 8 else 64
        for t in range(start, count):
            total = splat(_ZERO)
            for d in range(head_dim // 32):
                place = keys + t * row + piece_bytes * d
                total = fma(load_f32(scaled + step * d), first(place), total)
                total = fma(load_f32(scaled + step * d + apart), second(place), total)
            put_f32(scores + 4 * t, sum_lanes(total))

    @njit(nogil=True)
    def score(keys, row, count, group, head_dim, scaled, scores, soon):
        h = 0
        while h + 3 <= group:
            three(keys, row, count, head_dim, scaled + 4 * h * head_dim, scores + 4 * h * SEGMENT, soon)
            h += 3
        while h < group:
            one(keys, row, count, head_dim, scaled + 4 * h * head_dim, scores + 4 * h * SEGMENT, soon)
            h += 1

    return score


def _make_weigh(first, second, bits):
    """Sums of weight * code over the tokens, and what the offsets add to each: `shifts[h]`."""
    piece_bytes = 4 * bits

    @njit(nogil=True)
    def three(values, row, count, weights, shifts, out, stride, apart, soon):
        """For three heads, which decode each value once."""
        low0 = splat_f32(shifts)
        high0 = splat_f32(shifts)
        low1 = splat_f32(shifts + 4)
        high1 = splat_f32(shifts + 4)
        low2 = splat_f32(shifts + 8)
        high2 = splat_f32(shifts + 8)
        for t in range(count):
            place = values + t * row
            prefetch(soon + t * row)
            low, high = first(place), second(place)
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
        store_f32(out + apart, high0)
        store_f32(out + stride, low1)
        store_f32(out + stride + apart, high1)
        store_f32(out + 2 * stride, low2)
        store_f32(out + 2 * stride + apart, high2)

    @njit(nogil=True)
    def one(values, row, count, weights, shifts, out, apart, soon):
        low = splat_f32(shifts)
        high = splat_f32(shifts)
        for t in range(count):
            place = values + t * row
            prefetch(soon + t * row)
            weight = splat_f32(weights + 4 * t)
            low = fma(weight, first(place), low)
            high = fma(weight, second(place), high)
        store_f32(out, low)
        store_f32(out + apart, high)

    @njit(nogil=True)
    def weigh(values, row, count, group, head_dim, weights, shifts, result, stride, soon):
        apart = 64 if bits == 8 else 2 * head_dim
        step = 128 if bits == 8 else 64
        for d in range(head_dim // 32):
            place, out = values + piece_bytes * d, result + step * d
            h = 0
            while h + 3 <= group:
                mine = weights + 4 * h * SEGMENT
                three(place, row, count, mine, shifts + 4 * h, out + h * stride, stride, apart, soon)
                h += 3
            while h < group:
                mine = weights + 4 * h * SEGMENT
                one(place, row, count, mine, shifts + 4 * h, out + h * stride, apart, soon)
                h += 1

    return weigh


_score_8 = _make_score(load_i8, _second_byte, 8)
_score_4 = _make_score(load_low_nibbles, load_high_nibbles, 4)
_weigh_8 = _make_weigh(load_i8, _second_byte, 8)
_weigh_4 = _make_weigh(load_low_nibbles, load_high_nibbles, 4)
