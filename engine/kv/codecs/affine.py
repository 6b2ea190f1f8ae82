"""`int8`, `balanced` and `compact`: numbers on a grid of 8 or 4 bits, keys per channel and values per token.

After KIVI (arXiv 2402.02750, section 3): outliers of keys keep to their channels, values have none. So keys share a
scale per channel over the tokens of a block, values per token and head over `head_dim`. A number is
`offset + code * scale`; what is constant comes back exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.kv.codecs.encoded import EncodedBlock, EncodedGroup, check_block
from engine.kv.geometry import KVGeometry

_TOKENS, _HEAD_DIM = 1, 3  # axes of a group
_TOP_CODE_8 = 127  # codes from -127, around the middle of the range
_TOP_CODE_4 = 15  # codes from 0, the bottom of the range
_JUST_BELOW_ONE = 1.0 - 1e-6
_WIDEST_SPAN = 1.6e38  # of numbers that share a scale in 4 bits: what attention decodes in float32 must not overflow


@dataclass(frozen=True, slots=True)
class AffineCodec:
    """Keys in `key_bits`, values in `value_bits` (8 or 4).

    With `range` and `max` over the numbers that share a scale, an error is at most `range / 500` (8 bits) or
    `range / 29` (4 bits) plus `eps(dtype) * max(abs(x))` and the smallest subnormal number; twice as much in a block
    that reaches the end of its dtype. Scale and offset have the geometry's dtype: the codes are computed with them as
    stored, so their rounding costs no accuracy that shows. Meant for blocks of `ENCODED_TOKENS`: keys of a few tokens
    become larger, not smaller.

    Layouts: 8-bit codes int8 `[regions, tokens, kv_heads, head_dim]`; 4-bit codes uint8 `[..., head_dim / 2]`, byte i
    with number i in its low and number `head_dim / 2 + i` in its high half. Scale and offset of keys
    `[regions, kv_heads, head_dim]`, of values `[regions, kv_heads, tokens]`.
    """

    name: str
    key_bits: int
    value_bits: int
    first_tokens: int = 0
    recent_tokens: int = 0
    is_read_in_place: bool = True

    def encode(self, groups: Sequence[torch.Tensor], geometry: KVGeometry) -> EncodedBlock:
        check_block(groups, geometry)
        parts = [
            encode_keys(x, self.key_bits) if group.is_key else encode_values(x, self.value_bits)
            for x, group in zip(groups, geometry.groups, strict=True)
        ]
        return EncodedBlock(self.name, tuple(parts))

    def decode_group(self, encoded: EncodedGroup, out: torch.Tensor, *, is_key: bool) -> None:
        codes, scale, offset = encoded.to(out.device)
        if is_key:
            scale, offset = scale.unsqueeze(_TOKENS), offset.unsqueeze(_TOKENS)
        else:
            scale, offset = (x.transpose(1, 2).unsqueeze(_HEAD_DIM) for x in (scale, offset))
        in_place = out.dtype == torch.float32
        work = out if in_place else torch.empty(out.shape, dtype=torch.float32, device=out.device)
        if codes.dtype is torch.uint8:
            half = codes.shape[-1]
            work[..., :half].copy_(codes & 15)
            work[..., half:].copy_(codes >> 4)
        else:
            work.copy_(codes)
        work.mul_(scale).add_(offset)  # float32 throughout: rounded to the dtype once
        if not in_place:
            out.copy_(work)

    def nbytes(self, geometry: KVGeometry, num_tokens: int) -> int:
        total = 0
        for group in geometry.groups:
            numbers = math.prod(group.shape(num_tokens))
            bits = self.key_bits if group.is_key else self.value_bits
            scales = numbers // (num_tokens if group.is_key else group.head_dim)
            total += numbers * bits // 8 + 2 * scales * geometry.dtype.itemsize
        return total


def encode_keys(x: torch.Tensor, bits: int) -> EncodedGroup:
    """`[regions, tokens, kv_heads, head_dim]`, a scale per channel. Raises ValueError for what is not finite."""
    codes, scale, offset = _encode(x, bits, _TOKENS)
    return EncodedGroup(codes, scale.squeeze(_TOKENS), offset.squeeze(_TOKENS))


def encode_values(x: torch.Tensor, bits: int) -> EncodedGroup:
    """`[regions, tokens, kv_heads, head_dim]`, a scale per token and head. Raises ValueError for what is not finite."""
    codes, scale, offset = _encode(x, bits, _HEAD_DIM)
    return EncodedGroup(codes, *(part.squeeze(_HEAD_DIM).transpose(1, 2).contiguous() for part in (scale, offset)))


def _encode(x: torch.Tensor, bits: int, axis: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scale and offset, the latter two with `axis` kept."""
    work = torch.empty(x.shape, dtype=torch.float32, device=x.device).copy_(x)
    low, high = work.amin(axis, keepdim=True), work.amax(axis, keepdim=True)  # several times quicker than aminmax
    encode = _encode_8 if bits == 8 else _encode_4
    return encode(work, low, high, x.dtype)


def _encode_8(
    work: torch.Tensor, low: torch.Tensor, high: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    middle = (low * 0.5 + high * 0.5).to(dtype)  # halved first: the sum might overflow
    _check_finite(middle)
    half_range = torch.maximum(high - middle, middle - low)
    scale = _round_up(half_range / _TOP_CODE_8, half_range, _TOP_CODE_8, dtype)
    divisor = torch.where(scale > 0, scale, 1.0).float()
    work.sub_(middle).div_(divisor).round_()
    if (middle.float().abs() + (_TOP_CODE_8 + 0.5) * divisor > torch.finfo(dtype).max).any():
        # A code that was rounded outwards could decode to infinity.
        lowest, highest = (low - middle) / divisor, (high - middle) / divisor
        work.clamp_((lowest * _JUST_BELOW_ONE).ceil(), (highest * _JUST_BELOW_ONE).floor())
    return work.to(torch.int8), scale, middle


def _encode_4(
    work: torch.Tensor, low: torch.Tensor, high: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    offset = low.to(dtype)
    _check_finite(offset)
    _check_finite(high)
    span = (high - offset).clamp_(min=0)
    if not (span < _WIDEST_SPAN).all():
        raise ValueError("a block holds numbers too far apart for 4 bits")
    scale = _round_up(span / _TOP_CODE_4, span, _TOP_CODE_4, dtype)
    divisor = torch.where(scale > 0, scale, 1.0).float()
    work.sub_(offset).div_(divisor).round_()
    if (offset + (_TOP_CODE_4 + 0.5) * divisor > torch.finfo(dtype).max).any():
        # A code that was rounded outwards could decode to infinity.
        work = torch.minimum(work, (span / divisor * _JUST_BELOW_ONE).floor())
    codes = work.clamp_(0, _TOP_CODE_4).to(torch.uint8)
    half = codes.shape[-1] // 2
    return codes[..., :half] | codes[..., half:] << 4, scale, offset


def _check_finite(x: torch.Tensor) -> None:
    if not torch.isfinite(x).all():  # NaN and infinity always show in the extremes
        raise ValueError("a block holds numbers that are not finite")


def _round_up(scale: torch.Tensor, span: torch.Tensor, top_code: int, dtype: torch.dtype) -> torch.Tensor:
    """The scale in its dtype, raised by one step where rounding it (coarse among subnormals) would need a further code.

    `span` is what the codes up to `top_code` have to reach.
    """
    rounded = scale.to(dtype)
    next_up = (rounded.view(torch.int16 if dtype.itemsize == 2 else torch.int32) + 1).view(dtype)
    return torch.where(rounded.float() * (top_code + 0.49) < span, next_up, rounded)
