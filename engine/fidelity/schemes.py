"""The ways of keeping a cache that `ember bench fidelity` compares, and what putting a chat through one leaves of it.

The engine's own path: a chat is parked through a codec, or pruned, and is active again from the blocks it rests in.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.compression import Extent
from engine.kv.block_keys import BLOCK_TOKENS
from engine.kv.blocks import Block, BlockPool
from engine.kv.codecs.affine import AffineCodec, encode_values
from engine.kv.codecs.encoded import ENCODED_TOKENS, BlockCodec, EncodedBlock
from engine.kv.codecs.registry import BALANCED, COMPACT, INT8, codec_named, without_ends
from engine.kv.kvzip import select, streaming_kept
from engine.kv.pruned import KVZIP, STREAMING, PrunedBlock
from engine.kv.resident import Resident
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel


class SchemeError(Exception):
    """A scheme that this model, or so short a text, has no use for; the message says why."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """`codec` encodes what is kept; `keep` is the share of pairs that `method` leaves; neither: full precision.

    `is_naive`: 4 bits a number with one scale a token, for keys too. Nothing in the engine does that.
    """

    name: str
    codec: BlockCodec | None = None
    method: str = ""
    keep: float = 1.0
    is_int8: bool = False
    is_naive: bool = False

    @property
    def needs_scores(self) -> bool:
        return self.method == KVZIP


FULL = Scheme("full")
SCHEMES = (
    FULL,
    Scheme("int8", INT8),
    Scheme("balanced", BALANCED),
    Scheme("compact", COMPACT),
    Scheme("compact-no-ends", without_ends(COMPACT)),
    Scheme("bnb-8bit", codec_named("bnb-8bit")),
    Scheme("bnb-nf4", codec_named("bnb-nf4")),
    Scheme("naive-int4", is_naive=True),
    Scheme("kvzip-70", method=KVZIP, keep=0.7),
    Scheme("kvzip-50", method=KVZIP, keep=0.5),
    Scheme("kvzip-30", method=KVZIP, keep=0.3),
    Scheme("kvzip-30-int8", method=KVZIP, keep=0.3, is_int8=True),
    Scheme("streaming-30", method=STREAMING, keep=0.3),
)
_NAIVE = AffineCodec("naive-int4", 4, 4)


@dataclass(frozen=True, slots=True)
class Kept:
    """A chat that went through a scheme, active again. `resident` holds the blocks that `cache` reads.

    `ratio`: bytes of what was encoded or pruned, by the bytes of the same tokens in full; `ratio_whole`: of the whole
    chat, with what stays in full. `steady_bytes`: at rest; `active_bytes`: while it is read; `peak_bytes`: the most
    that blocks and cache took together on the way, as counted by their sizes, pages that were given back left out.
    """

    cache: WorkingCache
    resident: Resident
    ratio: float
    ratio_whole: float
    steady_bytes: int
    active_bytes: int
    peak_bytes: int


def put_through(scheme: Scheme, source: Resident, scores: torch.Tensor | None, model: LoadedModel) -> Kept:
    """A cache with what `source`, active and in full precision, holds, and what the scheme leaves of that.

    scores: float32 `[lanes, tokens]` of the chat's `extent`, see `engine.kv.kvzip.score`. Raises SchemeError;
    RuntimeError or ValueError where a codec does not work with this model.
    """
    pool = _WatchedPool(model)
    resident = Resident("fidelity", pool)
    resident.is_incognito = True
    resident.working = model.new_cache(source.length)
    source.copy_to(resident.working, 0, source.length)
    if scheme.is_naive:
        return _naive(resident, pool)
    pool.watch(resident)
    if scheme.method:
        resident.prune(scheme.method, _chosen(scheme, source.length, scores, pool), is_int8=scheme.is_int8)
    resident.park(codec=scheme.codec)
    if scheme.codec is not None:
        resident.quantize(scheme.codec)
    blocks = list(resident.blocks)
    changed = [block for block in blocks if block.encoded is not None]
    if scheme is not FULL and not changed:
        raise SchemeError(f"{source.length} tokens are too few for it")
    steady = pool.nbytes
    ratio, ratio_whole = _ratio(changed, pool), _ratio(blocks, pool)
    cache = model.new_cache(source.length)
    if scheme.codec is None or (scheme.codec.is_read_in_place and model.reads_encoded):
        resident.resume(cache)
        active = pool.nbytes + cache.held_bytes
        peak = active if scheme is FULL else max(pool.peak_bytes, active)
        if scheme.needs_scores and source.working is not None:  # it was fed beyond its end for that
            peak = max(peak, source.working.held_bytes)
    else:
        resident.copy_to(cache, 0, resident.length)
        active = cache.held_bytes
        peak = max(pool.peak_bytes, active + steady)
    return Kept(cache, resident, ratio, ratio_whole, steady, active, peak)


class _WatchedPool(BlockPool):
    """Notes the most that its blocks and an active chat's cache take together: it grows only when blocks are added."""

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(b"fidelity", model.geometry)
        self.peak_bytes = 0
        self._resident: Resident | None = None
        self._given_back = 0  # tokens whose pages the arena has let go of

    def watch(self, resident: Resident) -> None:
        self._resident = resident

    def obtain(
        self,
        parent: bytes | None,
        token_ids: Sequence[int],
        tensors: Sequence[torch.Tensor],
        *,
        is_on_host: bool = False,
    ) -> Block:
        block = super().obtain(parent, token_ids, tensors, is_on_host=is_on_host)
        self._note()
        return block

    def add_encoded(self, token_ids: Sequence[int], encoded: EncodedBlock | PrunedBlock) -> Block:
        block = super().add_encoded(token_ids, encoded)
        self._note()
        self._given_back += len(token_ids)
        return block

    def _note(self) -> None:
        cache = self._resident.working if self._resident is not None else None
        held = cache.held_bytes if cache is not None else 0
        if cache is not None and cache.arena.is_lazy and sys.platform == "linux" and not cache.hot_start:
            held = max(0, held - self._given_back * self.geometry.bytes_per_token)
        self.peak_bytes = max(self.peak_bytes, self.nbytes + held)


def extent_of(num_tokens: int) -> Extent:
    """What pruning takes of a chat without a system prompt."""
    return Extent.of(num_tokens, 0, 0)


def _chosen(scheme: Scheme, tokens: int, scores: torch.Tensor | None, pool: BlockPool) -> torch.Tensor:
    """What pruning keeps: bool `[lanes, tokens]`."""
    extent = extent_of(tokens)
    protected = torch.arange(extent.stop) < extent.head
    if not extent.stop:
        raise SchemeError(f"{tokens} tokens are too few for it")
    if scheme.method == STREAMING:
        return streaming_kept(pool.geometry, scheme.keep, protected)
    if scores is None:
        raise SchemeError("the chat was not scored")
    return select(scores, scheme.keep, protected)


def _ratio(blocks: Sequence[Block], pool: BlockPool) -> float:
    tokens = sum(block.num_tokens for block in blocks)
    return sum(block.nbytes for block in blocks) / (tokens * pool.geometry.bytes_per_token) if tokens else 1.0


def _naive(resident: Resident, pool: BlockPool) -> Kept:
    """Encoded and decoded where it is, but for the tokens that make no whole block; its sizes are computed."""
    cache = resident.working
    assert cache is not None
    per_token = pool.geometry.bytes_per_token
    stop = cache.length // ENCODED_TOKENS * ENCODED_TOKENS
    if not stop:
        raise SchemeError(f"{cache.length} tokens are too few for it")
    encoded = 0
    for start in range(0, stop, BLOCK_TOKENS):
        for x in cache.arena.read(start, start + BLOCK_TOKENS):
            part = encode_values(x, 4)
            _NAIVE.decode_group(part, x, is_key=False)
            encoded += sum(tensor.nbytes for tensor in part)
    steady = encoded + (cache.length - stop) * per_token
    active = cache.held_bytes
    return Kept(
        cache,
        resident,
        encoded / (stop * per_token),
        steady / (cache.length * per_token),
        steady,
        active,
        active + steady,
    )
