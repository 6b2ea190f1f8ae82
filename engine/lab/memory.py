"""`ember bench memory`: what a real mix of chats needs, and what each way of keeping it holds beyond that.

Allocated with the loaded model's own shapes, chat after chat: arenas and blocks are real tensors, and their sizes are
added up. What would be too much to allocate is computed, and its row says so. No chat of the user's is touched.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.kv.arena import KVArena, grown_capacity
from engine.kv.block_keys import BLOCK_TOKENS
from engine.kv.blocks import BlockPool
from engine.kv.resident import Resident
from engine.lab.lab import Lab, Row

USUAL = 8192
NUM_CHATS = 50
MEDIAN_TOKENS, SIGMA = 640, 1.0  # of a log-normal distribution: most chats are short, a few are very long
BLOCK_SIZES = (16, 32, 64)
_LEAST = 64
_FIRST_CAPACITY = 64  # of a buffer that doubles
_MOST_BYTES = 512 * 2**20  # of one chat that is really allocated
_TURN_TOKENS = 192  # a chat grows by so many at once


@dataclass(frozen=True, slots=True)
class _Way:
    """`allocate` returns the bytes held for a chat of so many tokens, of real tensors; `tokens_held` computes how many
    tokens' worth of them there are, where that would be too much.
    """

    scheme: str
    allocate: Callable[[int], int]
    tokens_held: Callable[[int], int]
    block_tokens: int | None = None


def memory(lab: Lab, context: int | None) -> dict[str, object]:
    """`context`: what is reserved for a chat that gets all it might ever need.

    Raises ContextOverflowError, CannotMeasureError, StoppedError.
    """
    lab.need_keys()
    context = lab.length(context, USUAL, least=_LEAST, room=0)
    lengths = chat_lengths(context)
    ways = _ways(lab, context)
    lab.plan(len(ways) * (len(lengths) + 1))
    rows: list[Row] = []
    for way in ways:
        rows.append(_measure(lab, way, lengths, context))
        lab.step(rows[-1])
    return {
        "context": context,
        "rows": rows,
        "chats": len(lengths),
        "tokens": sum(lengths),
        "median_tokens": statistics.median(lengths),
        "longest_tokens": max(lengths),
        "lengths": lengths,
        "bytes_per_token": lab.model.geometry.bytes_per_token,
        **lab.facts(),
    }


def chat_lengths(context: int, count: int = NUM_CHATS) -> list[int]:
    """Tokens of `count` chats, always the same: even steps through a log-normal distribution, cut at `context`.

    Its median is scaled down for models that read little.
    """
    bell = statistics.NormalDist()
    median = min(MEDIAN_TOKENS, context / 8)
    steps = [(index + 0.5) / count for index in range(count)]
    lengths = [round(median * 2.718281828 ** (SIGMA * bell.inv_cdf(step))) for step in steps]
    return [max(1, min(length, context)) for length in lengths]


def _measure(lab: Lab, way: _Way, lengths: list[int], context: int) -> Row:
    per_token = lab.model.geometry.bytes_per_token
    allocated, num_computed = 0, 0
    for length in lengths:
        lab.check()
        held = way.tokens_held(length) * per_token
        if held > _MOST_BYTES:
            num_computed += 1
        else:
            held = way.allocate(length)
        allocated += held
        lab.step()
    used = sum(lengths) * per_token
    return {
        "scheme": way.scheme,
        "block_tokens": way.block_tokens,
        "chats": len(lengths),
        "allocated_bytes": allocated,
        "used_bytes": used,
        "waste_bytes": allocated - used,
        "waste_ratio": (allocated - used) / allocated,
        "chats_per_gib": len(lengths) / (allocated / 2**30),
        "is_measured": not num_computed,
        "computed_chats": num_computed,
    }


def _ways(lab: Lab, context: int) -> list[_Way]:
    model = lab.model

    def contiguous(capacity: int) -> int:
        arena = KVArena(model.geometry, capacity, model.device)
        return sum(tensor.nbytes for tensor in arena.groups)

    def doubled(length: int) -> int:
        capacity = min(_FIRST_CAPACITY, context)
        while capacity < length:
            capacity = min(2 * capacity, context)
        return capacity

    def paged(size: int) -> _Way:
        def tokens_held(length: int) -> int:
            return -(-length // size) * size

        return _Way(f"paged-{size}", lambda length: _paged_bytes(lab, length, size), tokens_held, size)

    return [
        _Way("contiguous-whole", lambda length: contiguous(context), lambda length: context),
        _Way("contiguous-doubling", lambda length: contiguous(doubled(length)), doubled),
        *map(paged, BLOCK_SIZES),
        _Way("ember-active", lambda length: _active_bytes(lab, length), grown_capacity),
        _Way("ember-parked", lambda length: _parked_bytes(lab, length), lambda length: length, BLOCK_TOKENS),
    ]


def _paged_bytes(lab: Lab, length: int, size: int) -> int:
    """Whole blocks of `size` tokens in a pool: what a paged cache holds, the last one as large as the others."""
    geometry = lab.model.geometry
    pool = BlockPool(b"lab", geometry)
    empty = [torch.empty(group.shape(size), dtype=geometry.dtype) for group in geometry.groups]
    blocks = []
    for start in range(0, length, size):
        ids = range(start, min(start + size, length))
        blocks.append(pool.obtain(None, tuple(ids), empty, is_on_host=True))
    held = pool.nbytes
    for block in blocks:
        pool.release(block)
    return held


def _active_bytes(lab: Lab, length: int) -> int:
    """The buffer of an active chat of Ember's, grown turn by turn."""
    cache = lab.model.new_cache(min(_TURN_TOKENS, length))
    for end in range(_TURN_TOKENS, length + _TURN_TOKENS, _TURN_TOKENS):
        cache.reserve(min(end, length))
    cache.publish(range(length))
    cache.compact()
    return cache.held_bytes


def _parked_bytes(lab: Lab, length: int) -> int:
    """The blocks of a chat of Ember's that another one has taken the place of."""
    pool = BlockPool(b"lab", lab.model.geometry)
    chat = Resident("lab", pool)
    chat.is_incognito = True
    chat.working = lab.model.new_cache(length)
    chat.working.reserve(length)
    chat.working.publish(range(length))
    chat.park(is_to_host=True)
    held = pool.nbytes
    chat.give_up()
    return held
