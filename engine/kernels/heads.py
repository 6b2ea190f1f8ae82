"""One thread's share of a layer's attention: project and rotate the heads, write the new keys and values, attend."""

from __future__ import annotations

from numba import njit

from engine.kernels import plan as p
from engine.kernels.attention import attend_segment, head_floats
from engine.kernels.cold_attention import attend_cold
from engine.kernels.plan import SEGMENT
from engine.kernels.simd import (
    LANES,
    add,
    get_f32,
    get_int64,
    load_f32,
    multiply,
    put_f32,
    splat,
    store_bf16,
    store_f32,
)
from engine.kernels.vectors import inverse_rms


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
def _project_head(projected, heads, head, bias, norm, norm_kind, epsilon, head_dim, cos, sin, half, scratch, out):
    """One of the `heads` that a projection made of a token, as bfloat16: with its bias, its norm, and rotated.

    projected: float32 `[heads, head_dim]`; bias: the projection's, as long; norm: as long, or one for every head.
    """
    at = 4 * head * head_dim
    if bias != 0:
        bias += at
    for i in range(0, head_dim, LANES):
        value = load_f32(projected + at + 4 * i)
        if bias != 0:
            value = add(value, load_f32(bias + 4 * i))
        store_f32(scratch + 4 * i, value)
    if norm_kind != p.NO_NORM:
        if norm_kind == p.FULL_WIDTH:
            factor = inverse_rms(projected, heads * head_dim, epsilon)
            norm += at
        else:
            factor = inverse_rms(projected + at, head_dim, epsilon)
        spread = splat(factor)
        for i in range(0, head_dim, LANES):
            value = multiply(multiply(load_f32(scratch + 4 * i), spread), load_f32(norm + 4 * i))
            store_f32(scratch + 4 * i, value)
    if half > 0:
        _rotate(scratch, cos, sin, half)
    for i in range(0, head_dim, LANES):
        store_bf16(out + 2 * i, load_f32(scratch + 4 * i))


@njit(nogil=True)
def share(total, thread, num_threads):
    """Where the share of a thread begins, of `total` things; it ends where the next one begins."""
    return total * thread // num_threads


@njit(nogil=True)
def attend(layer, thread, start, count, sizes, numbers, vectors, cache, mine):
    """This thread's share of a layer's attention: rotate, write the new keys and values, attend."""
    heads, kv_heads, head_dim = sizes[p.HEADS], sizes[p.KV_HEADS], sizes[p.HEAD_DIM]
    group = heads // kv_heads
    width = (heads + 2 * kv_heads) * head_dim
    half = sizes[p.ROPE_DIM] // 2 if vectors[layer, p.HAS_ROPE] else 0
    row_bytes = sizes[p.KV_ROW_BYTES]
    epsilon = numbers[p.EPSILON]
    norm_kind = sizes[p.QK_NORM]
    query, scores, scratch = mine + sizes[p.QUERY], mine + sizes[p.SCORES], mine + sizes[p.HEAD]
    hot = sizes[p.HOT_START]
    hot_segments = (start + count - hot + SEGMENT - 1) // SEGMENT
    segments = sizes[p.MOST_SLOTS] + hot_segments
    head_bytes = 4 * head_floats(segments, head_dim)
    first_cold = get_int64(sizes[p.COLD_FIRST] + 8 * layer)
    cold_units = get_int64(sizes[p.COLD_FIRST] + 8 * (layer + 1)) - first_cold
    units = cold_units + kv_heads * hot_segments
    mine_from = share(units, thread, sizes[p.THREADS])
    mine_to = share(units, thread + 1, sizes[p.THREADS])
    for kv_head in range(kv_heads if mine_to > mine_from else 0):
        for i in range(count):
            row = sizes[p.QKV] + 4 * i * width
            turn = (start + i) * half * 4
            cos, sin = sizes[p.COS] + turn, sizes[p.SIN] + turn
            for h in range(group):
                out = query + 2 * ((kv_head * count + i) * group + h) * head_dim
                _project_head(
                    row, heads, kv_head * group + h, vectors[layer, p.QUERY_BIAS], vectors[layer, p.QUERY_NORM],
                    norm_kind, epsilon, head_dim, cos, sin, half, scratch, out
                )  # fmt: skip
    for unit in range(mine_from, min(mine_to, cold_units)):
        place = sizes[p.COLD_UNITS] + 8 * p.COLD_COLUMNS * (first_cold + unit)
        soon = place + 8 * p.COLD_COLUMNS * kv_heads if unit + kv_heads < cold_units else place
        kv_head = get_int64(place + 8 * p.COLD_HEAD)
        for i in range(count):
            attend_cold(
                query + 2 * (kv_head * count + i) * group * head_dim,
                place,
                soon,
                group,
                head_dim,
                numbers[p.ATTENTION_SCALE],
                scores,
                mine + sizes[p.SCALED],
                sizes[p.PARTIAL] + (i * heads + kv_head * group) * head_bytes,
                segments,
            )
    for unit in range(max(mine_from, cold_units), mine_to):
        # the KV heads of a segment lie side by side in memory: one after the other
        segment, kv_head = (unit - cold_units) // kv_heads, (unit - cold_units) % kv_heads
        slot = get_int64(sizes[p.COLD_SLOTS] + 8 * (layer * kv_heads + kv_head)) + segment
        first = hot + segment * SEGMENT
        for i in range(count):
            position = start + i
            if (position - hot) // SEGMENT == segment:
                keys = sizes[p.QKV] + 4 * (i * width + heads * head_dim)
                turn = position * half * 4
                cos, sin = sizes[p.COS] + turn, sizes[p.SIN] + turn
                place = position * row_bytes + 2 * kv_head * head_dim
                _project_head(
                    keys, kv_heads, kv_head, vectors[layer, p.KEY_BIAS], vectors[layer, p.KEY_NORM],
                    norm_kind, epsilon, head_dim, cos, sin, half, scratch, cache[layer, 0] + place
                )  # fmt: skip
                _project_head(
                    keys + 4 * kv_heads * head_dim, kv_heads, kv_head, vectors[layer, p.VALUE_BIAS], 0,
                    p.NO_NORM, epsilon, head_dim, 0, 0, 0, scratch, cache[layer, 1] + place
                )  # fmt: skip
        place = first * row_bytes + 2 * kv_head * head_dim
        for i in range(count):
            visible = min(SEGMENT, start + i + 1 - first)
            if visible > 0:
                out = sizes[p.PARTIAL] + (i * heads + kv_head * group) * head_bytes
                ahead = SEGMENT * row_bytes if i == 0 and segment + 1 < hot_segments else 0
                attend_segment(
                    query + 2 * (kv_head * count + i) * group * head_dim,
                    cache[layer, 0] + place,
                    cache[layer, 1] + place,
                    row_bytes,
                    visible,
                    group,
                    head_dim,
                    numbers[p.ATTENTION_SCALE],
                    scores,
                    out,
                    slot,
                    segments,
                    ahead,
                )
