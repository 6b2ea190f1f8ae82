"""A chunk of a lossy cache as named tensors, and back: what comes back fits the geometry, or is refused.

A chunk is a row of pieces: some tokens in full precision, or one encoded or pruned block. Piece `i` of `n` tokens is
stored as the tensors `i.<codec>.<n>.<part>`. In full precision the codec is `full` and the parts are the numbers of the
region groups; of an encoded block they are `<group>.codes`, `.scale` and `.offset`; of a pruned one, its fields.
Only tensors: any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import torch

from engine.kv.block_keys import CHUNK_TOKENS
from engine.kv.codecs.encoded import ENCODED_TOKENS, EncodedBlock, EncodedGroup
from engine.kv.codecs.registry import NAMES, codec_named
from engine.kv.geometry import KVGeometry
from engine.kv.pruned import PrunedBlock
from engine.kv.store.records import PRUNED_CODECS, TensorBytes, TensorSpec
from engine.kv.tensor_bytes import spec_of
from engine.kv.transfer import bytes_of

FULL = "full"
_INT8_SUFFIX = "-int8"
_PARTS = ("codes", "scale", "offset")
_PLAIN_FIELDS = ("counts", "positions", "keys", "values")
_MOVED_FIELDS = (*_PLAIN_FIELDS, "scores", "moved")
_INT8_FIELDS = (*_PLAIN_FIELDS, "key_scale", "key_offset", "value_scale", "value_offset")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tokens of a chunk: `encoded`, or in full precision a tensor per group, `[regions, tokens, heads, dim]`."""

    num_tokens: int
    groups: tuple[torch.Tensor, ...] = ()
    encoded: EncodedBlock | PrunedBlock | None = None


def encoded_specs(index: int, num_tokens: int, encoded: EncodedBlock | PrunedBlock) -> list[TensorSpec]:
    """How an encoded or pruned block is stored, as piece `index` of its chunk."""
    prefix = f"{index}.{encoded.codec}.{num_tokens}."
    return [spec_of(prefix + name, tuple(tensor.shape), tensor.dtype) for name, tensor in _named(encoded).items()]


def encoded_tensors(index: int, num_tokens: int, encoded: EncodedBlock | PrunedBlock) -> list[TensorBytes]:
    """What is stored of it. Copied only from a device."""
    hosts = [tensor.detach().cpu() for tensor in _named(encoded).values()]
    data = [(bytes_of(host),) if host.numel() else () for host in hosts]
    return [TensorBytes(*one) for one in zip(encoded_specs(index, num_tokens, encoded), data, strict=True)]


def full_tensors(
    index: int, num_tokens: int, regions: Sequence[Sequence[memoryview]], geometry: KVGeometry
) -> list[TensorBytes]:
    """The same for some tokens in full precision, of which each of `regions` holds some, per layer keys then values."""
    specs = [spec_of(*expected) for expected in _full_layout(index, num_tokens, geometry)]
    pieces = [
        tuple(part[2 * layer + (not group.is_key)] for layer in group.layers for part in regions)
        for group in geometry.groups
    ]
    return [TensorBytes(spec, piece) for spec, piece in zip(specs, pieces, strict=True)]


def pieces_of(tensors: Sequence[tuple[TensorSpec, torch.Tensor]], geometry: KVGeometry, num_tokens: int) -> list[Piece]:
    """What `encoded_tensors` and `full_tensors` gave, in order. Raises ValueError unless everything fits together.

    That means every number that says how long something is, every type, every shape and their order: attention reads
    these by address. Scales and offsets are finite.
    """
    pieces: list[Piece] = []
    for prefix, run in groupby(tensors, key=lambda one: one[0].name.split(".")[:3]):
        parts = [(spec.name, tensor) for spec, tensor in run]
        pieces.append(_piece(len(pieces), prefix, parts, geometry))
    if sum(piece.num_tokens for piece in pieces) != num_tokens:
        raise ValueError("pieces and tokens differ in number")
    return pieces


def _piece(index: int, prefix: Sequence[str], parts: Sequence[tuple[str, torch.Tensor]], geometry: KVGeometry) -> Piece:
    if len(prefix) != len(("index", "codec", "tokens")) or not (prefix[2].isascii() and prefix[2].isdigit()):
        raise ValueError("not the name of a piece")
    codec, num_tokens = prefix[1], int(prefix[2])
    if not 1 <= num_tokens <= CHUNK_TOKENS:
        raise ValueError("an impossible number of tokens")
    if codec in PRUNED_CODECS:
        return Piece(num_tokens, encoded=_pruned(index, codec, num_tokens, parts, geometry))
    if codec == FULL:
        _check(parts, _full_layout(index, num_tokens, geometry))
        return Piece(num_tokens, tuple(tensor for _, tensor in parts))
    if codec not in NAMES or num_tokens > ENCODED_TOKENS:
        raise ValueError("an unknown codec, or too many tokens for it")
    _check(parts, _encoded_layout(index, codec, num_tokens, geometry))
    groups: list[EncodedGroup] = []
    for _, members in groupby(parts, key=lambda part: part[0].split(".")[3]):
        group = EncodedGroup(*(tensor for _, tensor in members))
        _check_finite([group.scale] if group.offset is None else [group.scale, group.offset])
        groups.append(group)
    return Piece(num_tokens, encoded=EncodedBlock(codec, tuple(groups)))


def _pruned(
    index: int, codec: str, num_tokens: int, parts: Sequence[tuple[str, torch.Tensor]], geometry: KVGeometry
) -> PrunedBlock:
    is_int8 = codec.endswith(_INT8_SUFFIX)
    fields = _INT8_FIELDS if is_int8 else _MOVED_FIELDS if len(parts) == len(_MOVED_FIELDS) else _PLAIN_FIELDS
    if [name for name, _ in parts] != [f"{index}.{codec}.{num_tokens}.{field}" for field in fields]:
        raise ValueError("not the fields of a pruned block")
    tensors = dict(zip(fields, (tensor for _, tensor in parts), strict=True))
    try:
        block = PrunedBlock.from_tensors(codec.removesuffix(_INT8_SUFFIX), tensors, geometry, num_tokens)
    except (TypeError, KeyError, RuntimeError) as error:
        raise ValueError("not a pruned block") from error
    _check_finite([tensors[name] for name in fields[len(_PLAIN_FIELDS) :] if name != "moved"])
    return block


def _named(encoded: EncodedBlock | PrunedBlock) -> dict[str, torch.Tensor]:
    if isinstance(encoded, PrunedBlock):
        return encoded.tensors()
    return {
        f"{number}.{part}": tensor
        for number, group in enumerate(encoded.groups)
        for part, tensor in zip(_PARTS, group, strict=False)
    }


_Layout = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


def _full_layout(index: int, num_tokens: int, geometry: KVGeometry) -> _Layout:
    return tuple(
        (f"{index}.{FULL}.{num_tokens}.{number}", group.shape(num_tokens), geometry.dtype)
        for number, group in enumerate(geometry.groups)
    )


@lru_cache(maxsize=64)
def _encoded_layout(index: int, codec: str, num_tokens: int, geometry: KVGeometry) -> _Layout:
    """Taken from what the codec makes of zeros, so that it cannot be another one."""
    zeros = [torch.zeros(group.shape(num_tokens), dtype=geometry.dtype) for group in geometry.groups]
    made = _named(codec_named(codec).encode(zeros, geometry))
    return tuple(
        (f"{index}.{codec}.{num_tokens}.{name}", tuple(tensor.shape), tensor.dtype) for name, tensor in made.items()
    )


def _check(parts: Sequence[tuple[str, torch.Tensor]], layout: _Layout) -> None:
    if tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in parts) != layout:
        raise ValueError("tensors of another name, shape or type")


def _check_finite(tensors: Sequence[torch.Tensor]) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise ValueError("a scale or an offset that is not finite")
