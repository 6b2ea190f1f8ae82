"""How large a KV cache gets, and what fits: arithmetic on a `CacheShape`, for the window and `ember size`.

The codecs' sizes are those of `engine.kv.codecs`, their scales counted (`tests/engine/test_cache_bytes.py` holds both
against each other). What they share among 64 tokens makes the bytes of one token an average; the bytes of a whole chat
at rest are exact in every precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from app.cache_shape import GROWING, CacheShape, HeadKind, LayerGroup, LayerKind
from app.errors import UserError

BLOCK_TOKENS = 64  # that a codec encodes together; a rest of fewer stays in 16 bit
MOST_TOKENS = 10**12
MOST_BATCH = 10**6
MOST_LAYERS, MOST_HEADS, MOST_HEAD_DIM = 10_000, 65_536, 65_536
_HALF, _FLOAT = 2, 4
_SCALE_NUMBERS = 64  # that share one of bitsandbytes' scales


class Precision(StrEnum):
    BITS_16 = "16bit"
    FLOAT32 = "float32"
    INT8 = "int8"
    BALANCED = "balanced"
    COMPACT = "compact"
    BNB_8BIT = "bnb-8bit"
    BNB_NF4 = "bnb-nf4"


@dataclass(frozen=True, slots=True)
class _Codec:
    """Bits of a key's and a value's number; `first` and `recent` tokens of a chat stay in 16 bit. `is_blockwise`: one
    scale for 64 numbers; else a scale and an offset for a key's channel in 64 tokens and for a value's head and token.
    """

    key_bits: int
    value_bits: int
    first: int = 0
    recent: int = 0
    is_blockwise: bool = False

    def block_bytes(self, group: LayerGroup) -> int:
        """Of 64 tokens of one layer."""
        keys, values = (BLOCK_TOKENS * group.kv_heads * dim for dim in (group.key_dim, group.value_dim))
        codes = keys * self.key_bits // 8 + values * self.value_bits // 8
        if self.is_blockwise:
            return codes + _HALF * (keys + values) // _SCALE_NUMBERS
        return codes + 2 * _HALF * (group.kv_heads * group.key_dim + BLOCK_TOKENS * group.kv_heads)

    def encoded_tokens(self, tokens: int) -> int:
        """Of a chat at rest; the others are in 16 bit."""
        return max(0, max(0, tokens - self.recent) // BLOCK_TOKENS * BLOCK_TOKENS - self.first)


_CODECS = {
    Precision.INT8: _Codec(8, 8),
    Precision.BALANCED: _Codec(8, 4),
    Precision.COMPACT: _Codec(4, 4, first=64, recent=128),
    Precision.BNB_8BIT: _Codec(8, 8, is_blockwise=True),
    Precision.BNB_NF4: _Codec(4, 4, is_blockwise=True),
}


class OutOfBoundsError(UserError):
    """A number that no model has. params: what, most."""

    code = "size_bounds"


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """What the layers of one group hold of a chat: `nbytes` of all of them, for the whole batch. None: not told."""

    group: LayerGroup
    tokens_kept: int
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """`total_bytes` is exact. `bytes_per_token`: of one more token while no window is full; `is_average` where a
    codec's scales are shared among tokens. `further_bytes_per_token`: once all windows are full. `has_untold_state`:
    the layers that keep a state are not counted, as the configuration does not tell its size.
    """

    precision: Precision
    tokens: int
    batch: int
    total_bytes: int
    bytes_per_token: float
    further_bytes_per_token: float
    is_average: bool
    layers: tuple[LayerBytes, ...]
    has_untold_state: bool

    @property
    def gib(self) -> float:
        return self.total_bytes / 2**30


def typed_shape(layers: int, kv_heads: int, head_dim: int, heads: int | None = None) -> CacheShape:
    """Of numbers that were typed in: every layer keeps every token. Raises OutOfBoundsError, UserError."""
    _check("layers", layers, MOST_LAYERS)
    _check("KV heads", kv_heads, MOST_HEADS)
    _check("head dimension", head_dim, MOST_HEAD_DIM)
    if heads is not None:
        _check("query heads", heads, MOST_HEADS)
        if heads % kv_heads:
            raise UserError(
                f"{heads:,} query heads cannot share {kv_heads:,} KV heads evenly; give a multiple of them."
            )
    return CacheShape((LayerGroup(LayerKind.FULL, layers, kv_heads, head_dim, head_dim),), heads)


def cache_bytes(shape: CacheShape, tokens: int, precision: Precision = Precision.BITS_16, batch: int = 1) -> CacheBytes:
    """Of `batch` chats of `tokens` tokens each, at rest, nothing shared. Raises OutOfBoundsError."""
    _check("tokens", tokens, MOST_TOKENS)
    _check("batch", batch, MOST_BATCH)
    rows = tuple(
        LayerBytes(group, group.tokens_kept(tokens), None if one is None else one * batch)
        for group in shape.groups
        for one in [_group_bytes(group, tokens, precision)]
    )
    attention = shape.attention
    return CacheBytes(
        precision=precision,
        tokens=tokens,
        batch=batch,
        total_bytes=sum(row.nbytes or 0 for row in rows),
        bytes_per_token=_whole(sum(_token_bytes(group, precision) for group in attention)),
        further_bytes_per_token=_whole(
            sum(_token_bytes(group, precision) for group in attention if group.window is None)
        ),
        is_average=precision in _CODECS,
        layers=rows,
        has_untold_state=any(row.nbytes is None for row in rows),
    )


def largest_context(shape: CacheShape, precision: Precision, room_bytes: int, batch: int = 1) -> int | None:
    """The most tokens a chat may have so that `batch` of them fit into `room_bytes`; None where it grows no further."""
    if not any(group.window is None for group in shape.attention):
        return None
    codec = _CODECS.get(precision)

    def fits(tokens: int) -> bool:
        return tokens == 0 or cache_bytes(shape, tokens, precision, batch).total_bytes <= room_bytes

    # A full block takes less than the tokens of it did before: sizes only grow from block to block, and within one.
    recent = codec.recent if codec is not None else 0
    blocks = _last(lambda count: fits(recent + count * BLOCK_TOKENS), (MOST_TOKENS - recent) // BLOCK_TOKENS - 1)
    if blocks is None:
        return _last(fits, recent) or 0
    start = recent + blocks * BLOCK_TOKENS
    return start + (_last(lambda more: fits(start + more), BLOCK_TOKENS - 1) or 0)


@dataclass(frozen=True, slots=True)
class HeadsChoice:
    """The same model with other KV heads: `multiple` of what one KV head for all would take."""

    kind: HeadKind
    kv_heads: int
    bytes_per_token: float
    multiple: float


def heads_compared(shape: CacheShape, precision: Precision = Precision.BITS_16) -> tuple[HeadsChoice, ...]:
    """MHA, GQA and MQA at the width of this model; empty where its query heads are not known, or it keeps latents.

    GQA has the KV heads the model has, else 8, or as many as divide its query heads.
    """
    if shape.heads is None or shape.first is None or shape.is_latent:
        return ()
    own = shape.first.kv_heads
    grouped = (
        own if 1 < own < shape.heads else next((n for n in (8, 4, 2) if n < shape.heads and not shape.heads % n), None)
    )
    wanted = [(HeadKind.MHA, shape.heads), (HeadKind.GQA, grouped), (HeadKind.MQA, 1)]
    found = []
    for kind, kv_heads in wanted:
        if kv_heads is None:
            continue
        groups = [replace(group, kv_heads=kv_heads) if group.kind in GROWING else group for group in shape.groups]
        one = _whole(sum(_token_bytes(group, precision) for group in replace(shape, groups=tuple(groups)).attention))
        found.append((kind, kv_heads, one))
    least = found[-1][2]
    return tuple(HeadsChoice(kind, kv_heads, one, one / least) for kind, kv_heads, one in found)


def _group_bytes(group: LayerGroup, tokens: int, precision: Precision) -> int | None:
    if group.kind is LayerKind.SHARED:
        return 0
    if group.kind is LayerKind.RECURRENT:
        if group.state_half is None or group.state_float is None:
            return None
        half = _FLOAT if precision is Precision.FLOAT32 else _HALF
        return group.num_layers * (group.state_half * half + group.state_float * _FLOAT)
    kept = group.tokens_kept(tokens)
    codec = _CODECS.get(precision) if group.kind is LayerKind.FULL else None
    encoded = codec.encoded_tokens(kept) if codec is not None else 0
    nbytes = (kept - encoded) * group.numbers_per_token * (_FLOAT if precision is Precision.FLOAT32 else _HALF)
    if codec is not None:
        nbytes += encoded // BLOCK_TOKENS * codec.block_bytes(group)
    return group.num_layers * nbytes


def _token_bytes(group: LayerGroup, precision: Precision) -> float:
    """Of all layers of a group; what a codec encodes, on average over a block."""
    codec = _CODECS.get(precision) if group.kind is LayerKind.FULL else None
    if codec is not None:
        return group.num_layers * codec.block_bytes(group) / BLOCK_TOKENS
    return group.num_layers * group.numbers_per_token * (_FLOAT if precision is Precision.FLOAT32 else _HALF)


def _last(holds: Callable[[int], bool], most: int) -> int | None:
    """The largest number from 0 to `most` that it holds for, which it does for all smaller ones; None for none."""
    if not holds(0):
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


def _check(what: str, number: int, most: int) -> None:
    if not 1 <= number <= most:
        shown = f"{number:,}" if abs(number) < 10**15 else "that"
        raise OutOfBoundsError(
            f"{what[:1].upper() + what[1:]} must be between 1 and {most:,}, not {shown}.", what=what, most=f"{most:,}"
        )
