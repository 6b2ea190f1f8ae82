"""Codecs for full blocks that rest: fewer bits, a bounded error. Only tensors go in and out; any thread, any device.

A block is one tensor `[regions, tokens, kv_heads, head_dim]` per group of its geometry. It is encoded once, from full
precision, and never again; encoding is deterministic, so equal blocks stay equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kv.geometry import KVGeometry, RegionGroup

_TOKENS, _HEAD_DIM = 1, 3  # axes of a group
_TOP_CODE = 127
_JUST_BELOW_ONE = 1.0 - 1e-6


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """`codes` as its codec packs them; `scale` and `middle` in the geometry's dtype, broadcastable over the group."""

    codes: torch.Tensor
    scale: torch.Tensor
    middle: torch.Tensor

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.codes, self.scale, self.middle))


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block in the form its codec gave it, one entry per group of the geometry."""

    codec: str
    groups: tuple[EncodedGroup, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for group in self.groups for tensor in group)


class BlockCodec(Protocol):
    """Encodes and decodes blocks of at most `BLOCK_TOKENS` tokens."""

    @property
    def name(self) -> str:
        """Part of the fingerprint of what the codec has touched."""

    def encode(self, groups: Sequence[torch.Tensor], geometry: KVGeometry) -> EncodedBlock:
        """Raises ValueError for numbers that are not finite, and for shapes that are not the geometry's."""

    def decode(self, encoded: EncodedBlock, out: Sequence[torch.Tensor]) -> None:
        """Write into views of the destination, shaped as the groups were; it may lie on another device."""

    def nbytes(self, geometry: KVGeometry, num_tokens: int) -> int:
        """Size of an encoded block, before there is one."""


class Int8Codec:
    """Eight bits, asymmetric: keys per channel over the block's tokens, values per token and head over `head_dim`.

    After KIVI (arXiv 2402.02750, section 3): outliers of keys keep to their channels, values have none. A number is
    `middle + code * scale`, codes from -127 to 127; what is constant comes back exactly. With `range` and `max` over
    the numbers that share a scale, an error is at most `range / 500 + eps(dtype) * max(abs(x))`, plus the smallest
    subnormal number; twice `range / 500` in a block that reaches the end of its dtype. The scale has 16 bits in a
    16-bit geometry: the codes are computed with the scale as stored, so its rounding costs no accuracy that shows.
    Meant for full blocks: keys of a few tokens become larger, not smaller.
    """

    name = "int8"

    def encode(self, groups: Sequence[torch.Tensor], geometry: KVGeometry) -> EncodedBlock:
        return EncodedBlock(
            self.name, tuple(_encode(x, group) for x, group in zip(groups, geometry.groups, strict=True))
        )

    def decode(self, encoded: EncodedBlock, out: Sequence[torch.Tensor]) -> None:
        for group, target in zip(encoded.groups, out, strict=True):
            codes, scale, middle = (tensor.to(target.device) for tensor in group)
            in_place = target.dtype == torch.float32
            work = target if in_place else torch.empty_like(codes, dtype=torch.float32)
            work.copy_(codes).mul_(scale).add_(middle)  # float32 throughout: rounded to the dtype once
            if not in_place:
                target.copy_(work)

    def nbytes(self, geometry: KVGeometry, num_tokens: int) -> int:
        total = 0
        for group in geometry.groups:
            shape = list(group.shape(num_tokens))
            total += math.prod(shape)
            shape[_shared_axis(group)] = 1
            total += 2 * math.prod(shape) * geometry.dtype.itemsize
        return total


def _shared_axis(group: RegionGroup) -> int:
    return _TOKENS if group.is_key else _HEAD_DIM


def _encode(x: torch.Tensor, group: RegionGroup) -> EncodedGroup:
    if x.shape != group.shape(x.shape[_TOKENS]):
        raise ValueError(f"a group of shape {tuple(x.shape)}, expected {group.shape(x.shape[_TOKENS])}")
    axis = _shared_axis(group)
    work = torch.empty(x.shape, dtype=torch.float32, device=x.device).copy_(x)
    low, high = work.amin(axis, keepdim=True), work.amax(axis, keepdim=True)  # several times quicker than aminmax
    middle = (low * 0.5 + high * 0.5).to(x.dtype)  # halved first: the sum might overflow
    if not torch.isfinite(middle).all():  # NaN and infinity always show in the extremes
        raise ValueError("a block holds numbers that are not finite")
    half_range = torch.maximum(high - middle, middle - low)
    scale = _round_up(half_range / _TOP_CODE, half_range, x.dtype)
    divisor = torch.where(scale > 0, scale, 1.0).float()
    work.sub_(middle).div_(divisor).round_()
    if (middle.float().abs() + (_TOP_CODE + 0.5) * divisor > torch.finfo(x.dtype).max).any():
        # A code that was rounded outwards could decode to infinity.
        lowest, highest = (low - middle) / divisor, (high - middle) / divisor
        work.clamp_((lowest * _JUST_BELOW_ONE).ceil(), (highest * _JUST_BELOW_ONE).floor())
    return EncodedGroup(work.to(torch.int8), scale, middle)


def _round_up(scale: torch.Tensor, half_range: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The scale in its dtype, raised by one step where rounding it (coarse among subnormals) would need code 128."""
    rounded = scale.to(dtype)
    next_up = (rounded.view(torch.int16 if dtype.itemsize == 2 else torch.int32) + 1).view(dtype)
    return torch.where(rounded.float() * (_TOP_CODE + 0.49) < half_range, next_up, rounded)
