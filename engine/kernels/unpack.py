"""Packed weights as row-major bfloat16 or float32: the bits of `engine.kernels.packing.unpack`, many times as fast.

What `engine.model.packed_linear` calls, from any thread; it proves the addresses.
"""

from __future__ import annotations

from numba import njit, types

from engine.kernels.entry import entry
from engine.kernels.matrices import GROUP, Q4, ROWS, multiply_rows
from engine.kernels.simd import add, load_bf16, load_f16, put_f32, sum_lanes
from engine.kernels.simd_unpack import load_q4_columns, load_q8_columns, store_columns_bf16, store_columns_f32


@njit(nogil=True)
def _group(kind, words, scales, minima):
    if kind == Q4:
        return load_q4_columns(words, load_f16(scales), load_f16(minima))
    return load_q8_columns(words, load_f16(scales))


@entry
def unpack_bf16(kind, words, scales, minima, columns, first, last, out):
    """Blocks of 16 rows `first` to `last` of a Q4 or Q8 matrix, as bfloat16 from the address `out` on."""
    groups = columns // GROUP
    word_bytes = 256 if kind == Q4 else 512
    for block in range(first, last):
        for group in range(block * groups, (block + 1) * groups):
            values = _group(kind, words + word_bytes * group, scales + 32 * group, minima + 32 * group)
            place = out + 2 * (ROWS * columns * (block - first) + GROUP * (group - block * groups))
            store_columns_bf16(place, 2 * columns, values)


@entry
def unpack_f32(kind, words, scales, minima, columns, first, last, out):
    """The same as float32."""
    groups = columns // GROUP
    word_bytes = 256 if kind == Q4 else 512
    for block in range(first, last):
        for group in range(block * groups, (block + 1) * groups):
            values = _group(kind, words + word_bytes * group, scales + 32 * group, minima + 32 * group)
            place = out + 4 * (ROWS * columns * (block - first) + GROUP * (group - block * groups))
            store_columns_f32(place, 4 * columns, values)


@entry
def multiply(kind, words, scales, minima, rows, columns, x, sums, y, count):
    """A whole matrix times `count` vectors, one after the other in memory.

    x: bfloat16 `[count, columns]`; sums: float32 `[count, columns / 32]`, filled here; y: float32 `[count, rows]`.
    """
    groups = columns // GROUP
    for group in range(count * groups):
        place = x + 2 * GROUP * group
        put_f32(sums + 4 * group, sum_lanes(add(load_bf16(place), load_bf16(place + 32))))
    matrix = (kind, words, scales, minima, rows, columns)
    multiply_rows(matrix, x, 2 * columns, sums, 4 * groups, y, 4 * rows, count, 0, rows // ROWS)


def compile_entries() -> None:
    """Compile what this module is called for, or load it from disk, without running it."""
    word = types.int64
    unpack_bf16.compile((word,) * 8)
    unpack_f32.compile((word,) * 8)
    multiply.compile((word,) * 10)
