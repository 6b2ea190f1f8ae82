"""Matrix times vector, for one to eight vectors at once, on weights packed for it.

A matrix `[rows, columns]` (rows a multiple of 16, columns of 32) is stored in blocks of 16 rows, so that a vector
register holds one number of each row and no sum ever runs across a register. Three formats:

- BF16: row-major bfloat16, as torch keeps it (no second copy).
- Q4: weight = scale * q + minimum, q in 0..15; scale and minimum in float16 for every 32 columns of a row. Words of 16
  bits `[rows / 16, columns / 8, 16, 2]`: bits 4p.. of word [b, j, r, l] are q of row 16b + r, column 8j + 2p + l.
- Q8: weight = scale * q, q in -128..127. Words `[rows / 16, columns / 4, 16, 2]`: the low and the high byte of word
  [b, j, r, l] are q + 128 of columns 4j + l and 4j + 2 + l.

Q4 holds GGUF's Q4_0 and Q4_1 without loss, Q8 its Q8_0. Vectors are bfloat16, sums float32. The result for a vector
does not depend, to the last bit, on how many others are multiplied with it or on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from engine.kernels.simd import (
    add,
    dot_pairs,
    fma,
    load_f16,
    load_f32,
    load_pairs,
    nibbles,
    prefetch,
    put_f32,
    splat,
    splat_f32,
    splat_pair,
    store_f32,
    sum_lanes,
)

BF16, Q4, Q8 = 0, 1, 2
ROWS = 16
GROUP = 32
_OFFSET_4 = np.float32(-128)  # what `nibbles` adds to each number
_OFFSET_8 = np.float32(-(128 * 16 + 128 + 128))
_SIXTEEN = np.float32(16)
_AHEAD = 3072  # bytes of weights to fetch ahead of their use: what comes from memory takes 56 ms without, 38 with
_ZERO = np.float32(0)


@njit(nogil=True)
def _q4_block(words, scales, minima, x, sums, groups, y):
    """One block of 16 rows times one vector."""
    zero = splat(_ZERO)
    offset = splat(_OFFSET_4)
    total = zero
    for _ in range(groups):
        a = zero
        b = zero
        c = zero
        d = zero
        for j in range(4):
            prefetch(words + _AHEAD + 64 * j)
            packed = load_pairs(words + 64 * j)
            a = dot_pairs(a, nibbles(packed, 0), splat_pair(x + 16 * j))
            b = dot_pairs(b, nibbles(packed, 1), splat_pair(x + 16 * j + 4))
            c = dot_pairs(c, nibbles(packed, 2), splat_pair(x + 16 * j + 8))
            d = dot_pairs(d, nibbles(packed, 3), splat_pair(x + 16 * j + 12))
        scale = load_f16(scales)
        total = fma(add(add(a, b), add(c, d)), scale, total)
        total = fma(fma(scale, offset, load_f16(minima)), splat_f32(sums), total)
        words += 256
        scales += 32
        minima += 32
        x += 64
        sums += 4
    store_f32(y, total)


@njit(nogil=True)
def _q4_block_many(words, scales, minima, x, x_stride, sums, sums_stride, groups, y, y_stride, count):
    """One block of 16 rows times `count` vectors: the weights are unpacked once for all of them."""
    zero = splat(_ZERO)
    offset = splat(_OFFSET_4)
    for i in range(count):
        store_f32(y + i * y_stride, zero)
    for _ in range(groups):
        for j in range(4):
            prefetch(words + _AHEAD + 64 * j)
        p0 = load_pairs(words)
        p1 = load_pairs(words + 64)
        p2 = load_pairs(words + 128)
        p3 = load_pairs(words + 192)
        a0, b0, c0, d0 = nibbles(p0, 0), nibbles(p0, 1), nibbles(p0, 2), nibbles(p0, 3)
        a1, b1, c1, d1 = nibbles(p1, 0), nibbles(p1, 1), nibbles(p1, 2), nibbles(p1, 3)
        a2, b2, c2, d2 = nibbles(p2, 0), nibbles(p2, 1), nibbles(p2, 2), nibbles(p2, 3)
        a3, b3, c3, d3 = nibbles(p3, 0), nibbles(p3, 1), nibbles(p3, 2), nibbles(p3, 3)
        scale = load_f16(scales)
        shift = fma(scale, offset, load_f16(minima))
        for i in range(count):
            v = x + i * x_stride
            a = dot_pairs(zero, a0, splat_pair(v))
            b = dot_pairs(zero, b0, splat_pair(v + 4))
            c = dot_pairs(zero, c0, splat_pair(v + 8))
            d = dot_pairs(zero, d0, splat_pair(v + 12))
            a = dot_pairs(a, a1, splat_pair(v + 16))
            b = dot_pairs(b, b1, splat_pair(v + 20))
            c = dot_pairs(c, c1, splat_pair(v + 24))
            d = dot_pairs(d, d1, splat_pair(v + 28))
            a = dot_pairs(a, a2, splat_pair(v + 32))
            b = dot_pairs(b, b2, splat_pair(v + 36))
            c = dot_pairs(c, c2, splat_pair(v + 40))
            d = dot_pairs(d, d2, splat_pair(v + 44))
            a = dot_pairs(a, a3, splat_pair(v + 48))
            b = dot_pairs(b, b3, splat_pair(v + 52))
            c = dot_pairs(c, c3, splat_pair(v + 56))
            d = dot_pairs(d, d3, splat_pair(v + 60))
            total = load_f32(y + i * y_stride)
            total = fma(add(add(a, b), add(c, d)), scale, total)
            total = fma(shift, splat_f32(sums + i * sums_stride), total)
            store_f32(y + i * y_stride, total)
        words += 256
        scales += 32
        minima += 32
        x += 64
        sums += 4


@njit(nogil=True)
def _q8_block_many(words, scales, x, x_stride, sums, sums_stride, groups, y, y_stride, count):
    """One block of 16 rows times `count` vectors; a byte is two 4-bit numbers."""
    zero = splat(_ZERO)
    offset = splat(_OFFSET_8)
    sixteen = splat(_SIXTEEN)
    for i in range(count):
        total = zero
        for g in range(groups):
            w = words + 512 * g
            v = x + i * x_stride + 64 * g
            a = zero
            b = zero
            c = zero
            d = zero
            for j in range(8):
                prefetch(w + _AHEAD + 64 * j)
                packed = load_pairs(w + 64 * j)
                a = dot_pairs(a, nibbles(packed, 0), splat_pair(v + 8 * j))
                b = dot_pairs(b, nibbles(packed, 1), splat_pair(v + 8 * j))
                c = dot_pairs(c, nibbles(packed, 2), splat_pair(v + 8 * j + 4))
                d = dot_pairs(d, nibbles(packed, 3), splat_pair(v + 8 * j + 4))
            low = add(a, c)
            value = fma(add(b, d), sixteen, low)
            value = fma(offset, splat_f32(sums + i * sums_stride + 4 * g), value)
            total = fma(value, load_f16(scales + 32 * g), total)
        store_f32(y + i * y_stride, total)


@njit(nogil=True)
def _bf16_block(weights, row_bytes, x, groups, y):
    """16 rows of a row-major matrix times one vector, four rows at a time."""
    zero = splat(_ZERO)
    for quarter in range(4):
        w0 = weights + 4 * quarter * row_bytes
        w1 = w0 + row_bytes
        w2 = w1 + row_bytes
        w3 = w2 + row_bytes
        a = zero
        b = zero
        c = zero
        d = zero
        for g in range(groups):
            for row in (w0, w1, w2, w3):
                prefetch(row + _AHEAD + 64 * g)
            vector = load_pairs(x + 64 * g)
            a = dot_pairs(a, load_pairs(w0 + 64 * g), vector)
            b = dot_pairs(b, load_pairs(w1 + 64 * g), vector)
            c = dot_pairs(c, load_pairs(w2 + 64 * g), vector)
            d = dot_pairs(d, load_pairs(w3 + 64 * g), vector)
        put_f32(y + 16 * quarter, sum_lanes(a))
        put_f32(y + 16 * quarter + 4, sum_lanes(b))
        put_f32(y + 16 * quarter + 8, sum_lanes(c))
        put_f32(y + 16 * quarter + 12, sum_lanes(d))


@njit(nogil=True)
def multiply_rows(matrix, x, x_stride, sums, sums_stride, y, y_stride, count, first, last):
    """Blocks `first` to `last` of `matrix` times `count` vectors.

    matrix: a row of the plan, (format, weights, scales, minima, rows, columns). x: bfloat16 vectors; sums: the sum of
    every 32 numbers of them, float32; y: float32 results. Strides are bytes from one vector to the next.
    """
    kind, words, scales, minima = matrix[0], matrix[1], matrix[2], matrix[3]
    groups = matrix[5] // GROUP
    for block in range(first, last):
        out = y + 4 * ROWS * block
        if kind == Q4:
            w = words + 256 * groups * block
            s = scales + 32 * groups * block
            m = minima + 32 * groups * block
            if count == 1:
                _q4_block(w, s, m, x, sums, groups, out)
            else:
                _q4_block_many(w, s, m, x, x_stride, sums, sums_stride, groups, out, y_stride, count)
        elif kind == Q8:
            w = words + 512 * groups * block
            s = scales + 32 * groups * block
            _q8_block_many(w, s, x, x_stride, sums, sums_stride, groups, out, y_stride, count)
        else:
            w = words + 64 * groups * ROWS * block
            for i in range(count):
                _bf16_block(w, 64 * groups, x + i * x_stride, groups, out + i * y_stride)
