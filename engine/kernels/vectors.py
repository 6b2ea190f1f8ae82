"""The small steps between matrices: norms, the residual, activations, embedding. Vectors are float32 unless said."""

from __future__ import annotations

import numpy as np
from numba import njit

from engine.kernels import plan as p
from engine.kernels.matrices import BF16, GROUP, Q4, ROWS
from engine.kernels.simd import (
    LANES,
    add,
    divide,
    exp_lanes,
    fma,
    get_f16,
    get_word,
    load_bf16,
    load_f32,
    multiply,
    put_f32,
    splat,
    store_bf16,
    store_f32,
    subtract,
    sum_lanes,
)

_ZERO = np.float32(0)
_ONE = np.float32(1)


@njit(nogil=True)
def inverse_rms(x, width, epsilon):
    total = splat(_ZERO)
    for i in range(0, width, LANES):
        value = load_f32(x + 4 * i)
        total = fma(value, value, total)
    return np.float32(1) / np.float32(np.sqrt(sum_lanes(total) / np.float32(width) + epsilon))


@njit(nogil=True)
def store_input(x, width, factor, weight, out, sums):
    """Write x * factor * weight (float32 `[width]`; no weight if 0) as bfloat16, and the sum of every 32 of them."""
    spread = splat(factor)
    for i in range(0, width, GROUP):
        low = multiply(load_f32(x + 4 * i), spread)
        high = multiply(load_f32(x + 4 * i + 64), spread)
        if weight != 0:
            low = multiply(low, load_f32(weight + 4 * i))
            high = multiply(high, load_f32(weight + 4 * i + 64))
        store_bf16(out + 2 * i, low)
        store_bf16(out + 2 * i + 32, high)
        total = add(load_bf16(out + 2 * i), load_bf16(out + 2 * i + 32))
        put_f32(sums + i // GROUP * 4, sum_lanes(total))


@njit(nogil=True)
def add_delta(x, delta, bias, norm, width, scale, epsilon):
    """The residual x += scale * norm(delta + bias); delta is changed by no one, it is shared."""
    factor = scale
    if norm != 0:
        factor = scale * inverse_rms(delta, width, epsilon)
    spread = splat(factor)
    for i in range(0, width, LANES):
        value = load_f32(delta + 4 * i)
        if bias != 0:
            value = add(value, load_f32(bias + 4 * i))
        if norm != 0:
            value = multiply(value, load_f32(norm + 4 * i))
        store_f32(x + 4 * i, fma(value, spread, load_f32(x + 4 * i)))


@njit(nogil=True)
def activate(gate, gate_bias, up, up_bias, kind, first, last, out, sums):
    """act(gate) * up for the numbers `first` to `last` (multiples of 32), as bfloat16 with the sums of every 32."""
    one = splat(_ONE)
    for i in range(first, last, GROUP):
        for j in range(i, i + GROUP, LANES):
            g = load_f32(gate + 4 * j)
            u = load_f32(up + 4 * j)
            if gate_bias != 0:
                g = add(g, load_f32(gate_bias + 4 * j))
            if up_bias != 0:
                u = add(u, load_f32(up_bias + 4 * j))
            z = g
            if kind == p.GELU_TANH:  # x * sigmoid(2 t) is x/2 * (1 + tanh t), t = sqrt(2 / pi) (x + 0.044715 x^3)
                z = multiply(g, fma(multiply(g, g), splat(np.float32(0.0713548163)), splat(np.float32(1.5957691216))))
            g = divide(g, add(one, exp_lanes(subtract(splat(_ZERO), z))))
            store_bf16(out + 2 * j, multiply(g, u))
        total = add(load_bf16(out + 2 * i), load_bf16(out + 2 * i + 32))
        put_f32(sums + i // GROUP * 4, sum_lanes(total))


@njit(nogil=True)
def embed(matrix, token, scale, out):
    """The row of the embedding matrix for `token`, float32."""
    columns = matrix[5]
    if matrix[0] == BF16:
        for i in range(0, columns, LANES):
            store_f32(out + 4 * i, multiply(load_bf16(matrix[1] + (token * columns + i) * 2), splat(scale)))
        return
    block, row = token // ROWS, token % ROWS
    groups = columns // GROUP
    for i in range(columns):
        at = matrix[2] + ((block * groups + i // GROUP) * ROWS + row) * 2
        if matrix[0] == Q4:
            word = get_word(matrix[1] + (((block * columns // 8 + i // 8) * ROWS + row) * 2 + i % 2) * 2)
            q = np.float32((word >> (i % 8 // 2 * 4)) & 15)
            low = get_f16(matrix[3] + ((block * groups + i // GROUP) * ROWS + row) * 2)
        else:
            word = get_word(matrix[1] + (((block * columns // 4 + i // 4) * ROWS + row) * 2 + i % 2) * 2)
            q = np.float32((word >> (i % 4 // 2 * 8)) & 255) - np.float32(128)
            low = _ZERO
        put_f32(out + 4 * i, (q * get_f16(at) + low) * scale)
