"""Blocks in the form a codec gave them, and what every codec can do. Only tensors: any thread, any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kv.geometry import KVGeometry
from engine.kv.own_memory import in_own_memory

ENCODED_TOKENS = 64  # of a whole encoded block: keys share their scales over that many tokens


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """One region group as its codec packs it. The first axis of every tensor is the region.

    `scale` and `offset` are in the geometry's dtype; `offset` is None where the codec has none.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(tensor for tensor in (self.codes, self.scale, self.offset) if tensor is not None)

    def region(self, index: int) -> EncodedGroup:
        """A view of one region, as a group of one."""
        part = slice(index, index + 1)
        return EncodedGroup(self.codes[part], self.scale[part], None if self.offset is None else self.offset[part])

    def to(self, device: torch.device | str) -> EncodedGroup:
        offset = None if self.offset is None else self.offset.to(device)
        return EncodedGroup(self.codes.to(device), self.scale.to(device), offset)


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block in the form its codec gave it, one entry per group of the geometry."""

    codec: str
    groups: tuple[EncodedGroup, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for group in self.groups for tensor in group)

    @property
    def place(self) -> str:
        return self.groups[0].codes.device.type if self.groups else "cpu"

    def in_own_memory(self) -> EncodedBlock:
        """The same, in memory that goes back to the system with it."""
        tensors = iter(in_own_memory([tensor for group in self.groups for tensor in group]))
        groups = [
            EncodedGroup(next(tensors), next(tensors), None if group.offset is None else next(tensors))
            for group in self.groups
        ]
        return EncodedBlock(self.codec, tuple(groups))

    def to(self, device: torch.device | str) -> EncodedBlock:
        return EncodedBlock(self.codec, tuple(group.to(device) for group in self.groups))


class BlockCodec(Protocol):
    """Encodes and decodes blocks: per group `[regions, tokens, kv_heads, head_dim]`.

    Encoding is deterministic, so equal blocks stay equal.
    """

    @property
    def name(self) -> str:
        """Told to the user, and kept with what the codec has touched."""

    @property
    def first_tokens(self) -> int:
        """How many tokens at the start of a chat stay in full precision."""

    @property
    def recent_tokens(self) -> int:
        """How many tokens at its end do."""

    @property
    def is_read_in_place(self) -> bool:
        """Whether attention reads the encoded form (`engine.kv.cold`); else it is decoded to be active."""

    def encode(self, groups: Sequence[torch.Tensor], geometry: KVGeometry) -> EncodedBlock:
        """Raises ValueError for numbers that are not finite, and for shapes that are not the geometry's."""

    def decode_group(self, encoded: EncodedGroup, out: torch.Tensor, *, is_key: bool) -> None:
        """Write into a view of the destination, shaped as the group was; it may lie on another device."""

    def nbytes(self, geometry: KVGeometry, num_tokens: int) -> int:
        """Size of an encoded block, before there is one."""


def decode(codec: BlockCodec, encoded: EncodedBlock, out: Sequence[torch.Tensor], geometry: KVGeometry) -> None:
    """Decode all groups of a block into views of the destination."""
    for part, target, group in zip(encoded.groups, out, geometry.groups, strict=True):
        codec.decode_group(part, target, is_key=group.is_key)


def check_block(groups: Sequence[torch.Tensor], geometry: KVGeometry) -> None:
    """Raises ValueError unless the shapes are the geometry's."""
    for x, group in zip(groups, geometry.groups, strict=True):
        if x.shape != group.shape(x.shape[1]):
            raise ValueError(f"a group of shape {tuple(x.shape)}, expected {group.shape(x.shape[1])}")
