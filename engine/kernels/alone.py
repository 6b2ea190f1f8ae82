"""Attention of one KV head over all of a cache on one thread, to be measured by itself; replies run it in `team`."""

from __future__ import annotations

from numba import njit

from engine.kernels.attention import attend_segment, merge_segments
from engine.kernels.plan import SEGMENT


@njit
def attend_alone(query, keys, values, count, group, head_dim, scale, scores, partial, head_bytes, weights, out):
    """Addresses, as of `attend_segment`: `group` queries over `count` tokens; `out`: float32 `[group, head_dim]`."""
    segments = (count + SEGMENT - 1) // SEGMENT
    row = 2 * head_dim
    for segment in range(segments):
        first = segment * SEGMENT
        k, v, here = keys + first * row, values + first * row, min(SEGMENT, count - first)
        attend_segment(query, k, v, row, here, group, head_dim, scale, scores, partial, segment, segments, 0)
    for head in range(group):
        merge_segments(partial + head * head_bytes, segments, segments, head_dim, weights, out + 2 * row * head)
