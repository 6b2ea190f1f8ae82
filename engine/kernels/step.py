"""One forward pass of a Llama-like model for one to eight new tokens, the whole of it in one kernel.

Every thread runs `forward` with its own number and does its share of each matrix; they meet five times a layer. Small
things (norms, the residual, merging attention) each thread does for itself, because meeting would cost more.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from engine.kernels import plan as p
from engine.kernels.attention import SEGMENT, attend_segment, merge_segments, head_floats
from engine.kernels.atomics import meet
from engine.kernels.matrices import BF16, GROUP, Q4, ROWS, multiply_rows
from engine.kernels.simd import (
    LANES,
    add,
    divide,
    exp_lanes,
    fma,
    get_f16,
    get_f32,
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
def _inverse_rms(x, width, epsilon):
    total = splat(_ZERO)
    for i in range(0, width, LANES):
        value = load_f32(x + 4 * i)
        total = fma(value, value, total)
    return np.float32(1) / np.float32(np.sqrt(sum_lanes(total) / np.float32(width) + epsilon))


@njit(nogil=True)
def _store_input(x, width, factor, weight, out, sums):
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
def _add_delta(x, delta, bias, norm, width, scale, epsilon):
    """The residual x += scale * norm(delta + bias); delta is changed by no one, it is shared."""
    factor = scale
    if norm != 0:
        factor = scale * _inverse_rms(delta, width, epsilon)
    spread = splat(factor)
    for i in range(0, width, LANES):
        value = load_f32(delta + 4 * i)
        if bias != 0:
            value = add(value, load_f32(bias + 4 * i))
        if norm != 0:
            value = multiply(value, load_f32(norm + 4 * i))
        store_f32(x + 4 * i, fma(value, spread, load_f32(x + 4 * i)))


@njit(nogil=True)
def _rotate(head, cos, sin, half):
    """Rotary embedding of one head in place, first half against second half of the rotated numbers."""
    for i in range(half):
        a = get_f32(head + 4 * i)
        b = get_f32(head + 4 * (i + half))
        c = get_f32(cos + 4 * i)
        s = get_f32(sin + 4 * i)
        put_f32(head + 4 * i, a * c - b * s)
        put_f32(head + 4 * (i + half), b * c + a * s)


@njit(nogil=True)
def _project_head(source, bias, norm, factor, head_dim, cos, sin, half, scratch, out):
    """One head from the projection's result to bfloat16: bias, norm (factor 0: of this head alone), rotation."""
    for i in range(0, head_dim, LANES):
        value = load_f32(source + 4 * i)
        if bias != 0:
            value = add(value, load_f32(bias + 4 * i))
        store_f32(scratch + 4 * i, value)
    if norm != 0:
        spread = splat(factor)
        for i in range(0, head_dim, LANES):
            value = multiply(multiply(load_f32(scratch + 4 * i), spread), load_f32(norm + 4 * i))
            store_f32(scratch + 4 * i, value)
    if half > 0:
        _rotate(scratch, cos, sin, half)
    for i in range(0, head_dim, LANES):
        store_bf16(out + 2 * i, load_f32(scratch + 4 * i))


@njit(nogil=True)
def _activate(gate, gate_bias, up, up_bias, kind, first, last, out, sums):
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
def _embed(matrix, token, scale, out):
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


@njit(nogil=True)
def _share(total, thread, num_threads):
    return total * thread // num_threads


@njit(nogil=True)
def _attend(layer, thread, start, count, sizes, numbers, vectors, cache, mine):
    """This thread's share of a layer's attention: rotate, write the new keys and values, attend."""
    heads, kv_heads, head_dim = sizes[p.HEADS], sizes[p.KV_HEADS], sizes[p.HEAD_DIM]
    group = heads // kv_heads
    width = (heads + 2 * kv_heads) * head_dim
    half = sizes[p.ROPE_DIM] // 2 if vectors[layer, p.HAS_ROPE] else 0
    row_bytes = sizes[p.KV_ROW_BYTES]
    epsilon = numbers[p.EPSILON]
    q_norm, k_norm = vectors[layer, p.QUERY_NORM], vectors[layer, p.KEY_NORM]
    norm_kind = sizes[p.QK_NORM]
    query, scores, scratch = mine + sizes[p.QUERY], mine + sizes[p.SCORES], mine + sizes[p.HEAD]
    head_bytes = 4 * head_floats((start + count + SEGMENT - 1) // SEGMENT, head_dim)
    segments = (start + count + SEGMENT - 1) // SEGMENT
    units = kv_heads * segments
    mine_from = _share(units, thread, sizes[p.THREADS])
    mine_to = _share(units, thread + 1, sizes[p.THREADS])
    for kv_head in range(kv_heads if mine_to > mine_from else 0):
        for i in range(count):
            row = sizes[p.QKV] + 4 * i * width
            turn = (start + i) * half * 4
            full = _ZERO
            if norm_kind == p.FULL_WIDTH:
                full = _inverse_rms(row, heads * head_dim, epsilon)
            for h in range(group):
                at = (kv_head * group + h) * head_dim
                factor = full
                if norm_kind == p.PER_HEAD:
                    factor = _inverse_rms(row + 4 * at, head_dim, epsilon)
                bias = vectors[layer, p.QUERY_BIAS]
                if bias != 0:
                    bias += 4 * at
                norm = q_norm
                if norm_kind == p.FULL_WIDTH:
                    norm += 4 * at
                _project_head(row + 4 * at, bias, norm, factor, head_dim, sizes[p.COS] + turn, sizes[p.SIN] + turn,
                              half, scratch, query + 2 * ((kv_head * count + i) * group + h) * head_dim)
    fetched = -1
    for unit in range(mine_from, mine_to):  # the KV heads of a segment lie side by side in memory: one after the other
        segment, kv_head = unit // kv_heads, unit % kv_heads
        first = segment * SEGMENT
        for i in range(count):
            position = start + i
            if position // SEGMENT == segment:
                row = sizes[p.QKV] + 4 * i * width
                turn = position * half * 4
                keys = row + 4 * heads * head_dim
                at = 4 * kv_head * head_dim
                factor = _ZERO
                norm = k_norm
                if norm_kind == p.FULL_WIDTH:
                    factor = _inverse_rms(keys, kv_heads * head_dim, epsilon)
                    norm += at
                elif norm_kind == p.PER_HEAD:
                    factor = _inverse_rms(keys + at, head_dim, epsilon)
                bias = vectors[layer, p.KEY_BIAS]
                if bias != 0:
                    bias += at
                place = position * row_bytes + 2 * kv_head * head_dim
                _project_head(keys + at, bias, norm, factor, head_dim, sizes[p.COS] + turn, sizes[p.SIN] + turn, half,
                              scratch, cache[layer, 0] + place)
                bias = vectors[layer, p.VALUE_BIAS]
                if bias != 0:
                    bias += at
                _project_head(keys + 4 * kv_heads * head_dim + at, bias, 0, _ZERO, head_dim, 0, 0, 0, scratch,
                              cache[layer, 1] + place)
        place = first * row_bytes + 2 * kv_head * head_dim
        for i in range(count):
            visible = min(SEGMENT, start + i + 1 - first)
            if visible > 0:
                out = sizes[p.PARTIAL] + (i * heads + kv_head * group) * head_bytes
                ahead = row_bytes - 2 * kv_head * head_dim if segment != fetched else 0
                attend_segment(query + 2 * (kv_head * count + i) * group * head_dim, cache[layer, 0] + place,
                               cache[layer, 1] + place, row_bytes, visible, group, head_dim,
                               numbers[p.ATTENTION_SCALE], scores, out, segment, segments, ahead)
                fetched = segment


@njit(nogil=True)
def forward(thread, rounds, control, sizes, numbers, matrices, vectors, cache):
    """Feed control[TOKENS:][:COUNT] at position START; logits and cache are written. Returns the rounds met so far."""
    num_threads = sizes[p.THREADS]
    meeting = control.ctypes.data + 8 * p.ARRIVED
    start, count = control[p.START], control[p.COUNT]
    hidden, heads, head_dim = sizes[p.HIDDEN], sizes[p.HEADS], sizes[p.HEAD_DIM]
    kv_heads, intermediate = sizes[p.KV_HEADS], sizes[p.INTERMEDIATE]
    width = (heads + 2 * kv_heads) * head_dim
    epsilon, residual_scale = numbers[p.EPSILON], numbers[p.RESIDUAL_SCALE]
    mine = sizes[p.PRIVATE] + thread * sizes[p.PRIVATE_BYTES]
    x, vector, sums = mine + sizes[p.RESIDUAL], mine + sizes[p.INPUT], mine + sizes[p.INPUT_SUMS]
    stride = sizes[p.INPUT_BYTES]
    sums_stride = stride // 16
    segments = (start + count + SEGMENT - 1) // SEGMENT
    head_bytes = 4 * head_floats(segments, head_dim)
    embedding = matrices[sizes[p.LAYERS] * p.MATRICES_A_LAYER]
    for i in range(count):
        _embed(embedding, control[p.TOKENS + i], numbers[p.EMBEDDING_SCALE], x + 4 * i * hidden)
    for layer in range(sizes[p.LAYERS]):
        at = layer * p.MATRICES_A_LAYER
        norm = vectors[layer, p.ATTENTION_NORM]
        for i in range(count):
            residual = x + 4 * i * hidden
            if layer > 0:
                _add_delta(residual, sizes[p.DELTA] + 4 * i * hidden, vectors[layer - 1, p.DOWN_BIAS],
                           vectors[layer - 1, p.POST_MLP_NORM], hidden, residual_scale, epsilon)
            factor = _inverse_rms(residual, hidden, epsilon) if norm != 0 else _ONE
            _store_input(residual, hidden, factor, norm, vector + i * stride, sums + i * sums_stride)
        out = sizes[p.QKV]
        for which in (p.QUERY_PROJECTION, p.KEY_PROJECTION, p.VALUE_PROJECTION):
            matrix = matrices[at + which]
            blocks = matrix[4] // ROWS
            multiply_rows(matrix, vector, stride, sums, sums_stride, out, 4 * width, count,
                          _share(blocks, thread, num_threads), _share(blocks, thread + 1, num_threads))
            out += 4 * matrix[4]
        rounds = meet(meeting, rounds, num_threads)
        _attend(layer, thread, start, count, sizes, numbers, vectors, cache, mine)
        rounds = meet(meeting, rounds, num_threads)
        for i in range(count):
            seen = (start + i + SEGMENT) // SEGMENT
            for h in range(heads):
                head = mine + sizes[p.HEAD]
                merge_segments(sizes[p.PARTIAL] + (i * heads + h) * head_bytes, seen, segments, head_dim,
                               mine + sizes[p.SCORES], head)
                done = h * head_dim
                _store_input(head, head_dim, _ONE, 0, vector + i * stride + 2 * done,
                             sums + i * sums_stride + done // GROUP * 4)
        matrix = matrices[at + p.OUTPUT_PROJECTION]
        blocks = hidden // ROWS
        first, last = _share(blocks, thread, num_threads), _share(blocks, thread + 1, num_threads)
        multiply_rows(matrix, vector, stride, sums, sums_stride, sizes[p.DELTA], 4 * hidden, count, first, last)
        rounds = meet(meeting, rounds, num_threads)
        norm = vectors[layer, p.MLP_NORM]
        for i in range(count):
            residual = x + 4 * i * hidden
            _add_delta(residual, sizes[p.DELTA] + 4 * i * hidden, vectors[layer, p.OUTPUT_BIAS],
                       vectors[layer, p.POST_ATTENTION_NORM], hidden, residual_scale, epsilon)
            factor = _inverse_rms(residual, hidden, epsilon) if norm != 0 else _ONE
            _store_input(residual, hidden, factor, norm, vector + i * stride, sums + i * sums_stride)
        pairs = intermediate // GROUP
        low, high = 2 * _share(pairs, thread, num_threads), 2 * _share(pairs, thread + 1, num_threads)
        multiply_rows(matrices[at + p.GATE_PROJECTION], vector, stride, sums, sums_stride, sizes[p.GATE],
                      4 * intermediate, count, low, high)
        multiply_rows(matrices[at + p.UP_PROJECTION], vector, stride, sums, sums_stride, sizes[p.UP],
                      4 * intermediate, count, low, high)
        for i in range(count):
            _activate(sizes[p.GATE] + 4 * i * intermediate, vectors[layer, p.GATE_BIAS],
                      sizes[p.UP] + 4 * i * intermediate, vectors[layer, p.UP_BIAS], sizes[p.ACTIVATION], ROWS * low,
                      ROWS * high, sizes[p.ACTIVATED] + 2 * i * intermediate,
                      sizes[p.ACTIVATED_SUMS] + 4 * i * pairs)
        rounds = meet(meeting, rounds, num_threads)
        multiply_rows(matrices[at + p.DOWN_PROJECTION], sizes[p.ACTIVATED], 2 * intermediate, sizes[p.ACTIVATED_SUMS],
                      4 * pairs, sizes[p.DELTA], 4 * hidden, count, first, last)
        rounds = meet(meeting, rounds, num_threads)
    layer = sizes[p.LAYERS] - 1
    for i in range(count):
        residual = x + 4 * i * hidden
        _add_delta(residual, sizes[p.DELTA] + 4 * i * hidden, vectors[layer, p.DOWN_BIAS],
                   vectors[layer, p.POST_MLP_NORM], hidden, residual_scale, epsilon)
        _store_input(residual, hidden, _inverse_rms(residual, hidden, epsilon), sizes[p.FINAL_NORM],
                     vector + i * stride, sums + i * sums_stride)
    head = matrices[sizes[p.LAYERS] * p.MATRICES_A_LAYER + 1]
    blocks = head[4] // ROWS
    first, last = _share(blocks, thread, num_threads), _share(blocks, thread + 1, num_threads)
    multiply_rows(head, vector, stride, sums, sums_stride, sizes[p.LOGITS], 4 * head[4], count, first, last)
    scale = numbers[p.LOGITS_SCALE]
    if scale != _ONE:
        for i in range(count):
            for j in range(first * ROWS, last * ROWS, LANES):
                address = sizes[p.LOGITS] + 4 * (i * head[4] + j)
                store_f32(address, multiply(load_f32(address), splat(scale)))
    return meet(meeting, rounds, num_threads)
