"""`bnb-8bit` and `bnb-nf4`: bitsandbytes' blockwise code books, for comparison and for who prefers them.

A block is flattened first: on some processors bitsandbytes returns wrong numbers when the last axis is not a multiple
of its block size. Infinite and undefined numbers it takes without a word, so they are looked for here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from engine.kv.codecs.encoded import EncodedBlock, EncodedGroup, check_block
from engine.kv.geometry import KVGeometry

BLOCKSIZE = 64  # numbers that share a scale; its CUDA form takes no smaller ones


@dataclass(frozen=True, slots=True)
class BlockwiseCodec:
    """8 bits with bitsandbytes' dynamic code book (arXiv 2110.02861), or 4 with NF4 (arXiv 2305.14314).

    Codes uint8 `[regions, n]`; scale, the largest magnitude of 64 numbers, in the geometry's dtype `[regions, n / 64]`.
    The code books are shared by all blocks. Attention does not read this form: it is decoded when its chat is active.
    """

    name: str
    bits: int
    first_tokens: int = 0
    recent_tokens: int = 0
    is_read_in_place: bool = False

    def encode(self, groups: Sequence[torch.Tensor], geometry: KVGeometry) -> EncodedBlock:
        check_block(groups, geometry)
        return EncodedBlock(self.name, tuple(self._encode(x) for x in groups))

    def decode_group(self, encoded: EncodedGroup, out: torch.Tensor, *, is_key: bool) -> None:
        functional = _functional()
        regions = encoded.codes.shape[0]
        numbers = out[0].numel() + -out[0].numel() % BLOCKSIZE
        absmax = encoded.scale.to(out.device).float().reshape(-1)
        codes = encoded.codes.to(out.device).reshape(-1)
        if self.bits == 8:
            flat = functional.dequantize_blockwise(
                codes, absmax=absmax, code=_code_book(out.device), blocksize=BLOCKSIZE
            )
        else:
            state = functional.QuantState(
                absmax=absmax,
                shape=torch.Size([regions * numbers]),
                code=_nf4(out.device),
                blocksize=BLOCKSIZE,
                quant_type="nf4",
                dtype=torch.float32,
            )
            flat = functional.dequantize_4bit(codes.reshape(-1, 1), state).reshape(-1)
        out.copy_(flat.reshape(regions, numbers)[:, : out[0].numel()].reshape(out.shape))

    def nbytes(self, geometry: KVGeometry, num_tokens: int) -> int:
        total = 0
        for group in geometry.groups:
            regions, *rest = group.shape(num_tokens)
            numbers = math.prod(rest) + -math.prod(rest) % BLOCKSIZE
            total += regions * (numbers * self.bits // 8 + numbers // BLOCKSIZE * geometry.dtype.itemsize)
        return total

    def _encode(self, x: torch.Tensor) -> EncodedGroup:
        if not torch.isfinite(x).all():
            raise ValueError("a block holds numbers that are not finite")
        functional = _functional()
        regions = x.shape[0]
        flat = x.reshape(regions, -1).float()
        flat = torch.nn.functional.pad(flat, (0, -flat.shape[1] % BLOCKSIZE))
        # A scale is the largest magnitude of its numbers, which the geometry's dtype holds as it is.
        if self.bits == 8:
            codes, state = functional.quantize_blockwise(
                flat.reshape(-1), code=_code_book(x.device), blocksize=BLOCKSIZE
            )
        else:
            codes, state = functional.quantize_4bit(flat.reshape(-1), blocksize=BLOCKSIZE, quant_type="nf4")
        return EncodedGroup(codes.reshape(regions, -1), state.absmax.to(x.dtype).reshape(regions, -1))


def _functional() -> Any:
    """bitsandbytes takes a second to import and is seldom needed."""
    import bitsandbytes.functional  # noqa: PLC0415

    return bitsandbytes.functional


@cache
def _code_book(device: torch.device) -> torch.Tensor:
    book: torch.Tensor = _functional().create_dynamic_map().to(device)
    return book


@cache
def _nf4(device: torch.device) -> torch.Tensor:
    book: torch.Tensor = _functional().get_4bit_type("nf4", device=device)
    return book
