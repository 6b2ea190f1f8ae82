"""One forward pass of a Llama-like model for one to eight new tokens, the whole of it in one kernel.

Every thread runs `forward` with its own number and does its share of each matrix; they meet five times a layer. Small
things (norms, the residual, merging attention) each thread does for itself, because meeting would cost more.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from engine.kernels import plan as p
from engine.kernels.atomics import meet
from engine.kernels.attention import head_floats, merge_segments
from engine.kernels.heads import attend, share
from engine.kernels.matrices import GROUP, ROWS, multiply_rows
from engine.kernels.plan import SEGMENT
from engine.kernels.simd import (
    LANES,
    get_int64,
    load_f32,
    multiply,
    splat,
    store_f32,
)
from engine.kernels.vectors import activate, add_delta, embed, inverse_rms, store_input

_ONE = np.float32(1)


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
    hot = sizes[p.HOT_START]
    segments = sizes[p.MOST_SLOTS] + (start + count - hot + SEGMENT - 1) // SEGMENT
    head_bytes = 4 * head_floats(segments, head_dim)
    embedding = matrices[sizes[p.LAYERS] * p.MATRICES_A_LAYER]
    for i in range(count):
        embed(embedding, control[p.TOKENS + i], numbers[p.EMBEDDING_SCALE], x + 4 * i * hidden)
    for layer in range(sizes[p.LAYERS]):
        at = layer * p.MATRICES_A_LAYER
        norm = vectors[layer, p.ATTENTION_NORM]
        for i in range(count):
            residual = x + 4 * i * hidden
            if layer > 0:
                add_delta(
                    residual,
                    sizes[p.DELTA] + 4 * i * hidden,
                    vectors[layer - 1, p.DOWN_BIAS],
                    vectors[layer - 1, p.POST_MLP_NORM],
                    hidden,
                    residual_scale,
                    epsilon,
                )
            factor = inverse_rms(residual, hidden, epsilon) if norm != 0 else _ONE
            store_input(residual, hidden, factor, norm, vector + i * stride, sums + i * sums_stride)
        out = sizes[p.QKV]
        for which in (p.QUERY_PROJECTION, p.KEY_PROJECTION, p.VALUE_PROJECTION):
            matrix = matrices[at + which]
            blocks = matrix[4] // ROWS
            multiply_rows(
                matrix,
                vector,
                stride,
                sums,
                sums_stride,
                out,
                4 * width,
                count,
                share(blocks, thread, num_threads),
                share(blocks, thread + 1, num_threads),
            )
            out += 4 * matrix[4]
        rounds = meet(meeting, rounds, num_threads)
        attend(layer, thread, start, count, sizes, numbers, vectors, cache, mine)
        rounds = meet(meeting, rounds, num_threads)
        for i in range(count):
            hot_seen = (start + i - hot + SEGMENT) // SEGMENT
            for h in range(heads):
                cold_seen = get_int64(sizes[p.COLD_SLOTS] + 8 * (layer * kv_heads + h // (heads // kv_heads)))
                head = mine + sizes[p.HEAD]
                merge_segments(
                    sizes[p.PARTIAL] + (i * heads + h) * head_bytes,
                    cold_seen + hot_seen,
                    segments,
                    head_dim,
                    mine + sizes[p.SCORES],
                    head,
                )
                done = h * head_dim
                store_input(
                    head, head_dim, _ONE, 0, vector + i * stride + 2 * done, sums + i * sums_stride + done // GROUP * 4
                )
        matrix = matrices[at + p.OUTPUT_PROJECTION]
        blocks = hidden // ROWS
        first, last = share(blocks, thread, num_threads), share(blocks, thread + 1, num_threads)
        multiply_rows(matrix, vector, stride, sums, sums_stride, sizes[p.DELTA], 4 * hidden, count, first, last)
        rounds = meet(meeting, rounds, num_threads)
        norm = vectors[layer, p.MLP_NORM]
        for i in range(count):
            residual = x + 4 * i * hidden
            add_delta(
                residual,
                sizes[p.DELTA] + 4 * i * hidden,
                vectors[layer, p.OUTPUT_BIAS],
                vectors[layer, p.POST_ATTENTION_NORM],
                hidden,
                residual_scale,
                epsilon,
            )
            factor = inverse_rms(residual, hidden, epsilon) if norm != 0 else _ONE
            store_input(residual, hidden, factor, norm, vector + i * stride, sums + i * sums_stride)
        pairs = intermediate // GROUP
        low, high = 2 * share(pairs, thread, num_threads), 2 * share(pairs, thread + 1, num_threads)
        multiply_rows(
            matrices[at + p.GATE_PROJECTION],
            vector,
            stride,
            sums,
            sums_stride,
            sizes[p.GATE],
            4 * intermediate,
            count,
            low,
            high,
        )
        multiply_rows(
            matrices[at + p.UP_PROJECTION],
            vector,
            stride,
            sums,
            sums_stride,
            sizes[p.UP],
            4 * intermediate,
            count,
            low,
            high,
        )
        for i in range(count):
            activate(
                sizes[p.GATE] + 4 * i * intermediate,
                vectors[layer, p.GATE_BIAS],
                sizes[p.UP] + 4 * i * intermediate,
                vectors[layer, p.UP_BIAS],
                sizes[p.ACTIVATION],
                ROWS * low,
                ROWS * high,
                sizes[p.ACTIVATED] + 2 * i * intermediate,
                sizes[p.ACTIVATED_SUMS] + 4 * i * pairs,
            )
        rounds = meet(meeting, rounds, num_threads)
        multiply_rows(
            matrices[at + p.DOWN_PROJECTION],
            sizes[p.ACTIVATED],
            2 * intermediate,
            sizes[p.ACTIVATED_SUMS],
            4 * pairs,
            sizes[p.DELTA],
            4 * hidden,
            count,
            first,
            last,
        )
        rounds = meet(meeting, rounds, num_threads)
    wanted = control[p.FIRST_LOGITS]
    layer = sizes[p.LAYERS] - 1
    for i in range(wanted, count):
        residual = x + 4 * i * hidden
        add_delta(
            residual,
            sizes[p.DELTA] + 4 * i * hidden,
            vectors[layer, p.DOWN_BIAS],
            vectors[layer, p.POST_MLP_NORM],
            hidden,
            residual_scale,
            epsilon,
        )
        store_input(
            residual,
            hidden,
            inverse_rms(residual, hidden, epsilon),
            sizes[p.FINAL_NORM],
            vector + i * stride,
            sums + i * sums_stride,
        )
    head = matrices[sizes[p.LAYERS] * p.MATRICES_A_LAYER + 1]
    blocks = head[4] // ROWS
    first, last = share(blocks, thread, num_threads), share(blocks, thread + 1, num_threads)
    if wanted < count:
        multiply_rows(
            head,
            vector + wanted * stride,
            stride,
            sums + wanted * sums_stride,
            sums_stride,
            sizes[p.LOGITS] + 4 * wanted * head[4],
            4 * head[4],
            count - wanted,
            first,
            last,
        )
    scale = numbers[p.LOGITS_SCALE]
    if scale != _ONE:
        for i in range(wanted, count):
            for j in range(first * ROWS, last * ROWS, LANES):
                address = sizes[p.LOGITS] + 4 * (i * head[4] + j)
                store_f32(address, multiply(load_f32(address), splat(scale)))
    return meet(meeting, rounds, num_threads)
