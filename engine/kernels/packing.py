"""Weights in the layouts that `engine.kernels.matrices` multiplies: packed, quantized, unpacked again. Torch only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

ROWS = 16
GROUP = 32
_ROWS_AT_ONCE = 4096  # what packing a large matrix holds in int32 at a time


class Format(IntEnum):
    """How a matrix is stored; the numbers are those of the kernels' tables."""

    BF16 = 0
    Q4 = 1
    Q8 = 2


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix `[rows, columns]` in one of the formats.

    words: bfloat16 `[rows, columns]`; Q4 int16 `[rows / 16, columns / 8, 16, 2]`; Q8 int16
    `[rows / 16, columns / 4, 16, 2]`.
    scales, minima: float16 `[rows / 16, columns / 32, 16]`, minima only for Q4.
    """

    format: Format
    rows: int
    columns: int
    words: torch.Tensor
    scales: torch.Tensor | None = None
    minima: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.words, self.scales, self.minima) if tensor is not None)

    def part(self, rows: slice) -> Matrix:
        """Some of the rows, without a copy; both ends are multiples of 16. Raises ValueError if they are not."""
        start, stop, _ = rows.indices(self.rows)
        if (start, stop) == (0, self.rows):
            return self
        if start % ROWS or stop % ROWS:
            raise ValueError(f"rows {start} to {stop} are not whole blocks")
        if self.format is Format.BF16:
            return Matrix(self.format, stop - start, self.columns, self.words[start:stop])
        blocks = slice(start // ROWS, stop // ROWS)
        scales = None if self.scales is None else self.scales[blocks]
        minima = None if self.minima is None else self.minima[blocks]
        return Matrix(self.format, stop - start, self.columns, self.words[blocks], scales, minima)


def can_pack(rows: int, columns: int) -> bool:
    """Whether the kernels take a matrix of this shape."""
    return rows % ROWS == 0 and columns % GROUP == 0


def plain(weight: torch.Tensor) -> Matrix:
    """A bfloat16 weight as it is, without a copy."""
    return Matrix(Format.BF16, weight.shape[0], weight.shape[1], weight)


def pack_q4(numbers: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor) -> Matrix:
    """numbers: uint8 0..15 `[rows, columns]`; scales, minima: float16 `[rows, columns / 32]`."""
    rows, columns = numbers.shape
    words = torch.empty(rows // ROWS, columns // 8, ROWS, 2, dtype=torch.int16)
    for start in range(0, rows, _ROWS_AT_ONCE):
        piece = numbers[start : start + _ROWS_AT_ONCE]
        planes = (
            piece.view(-1, ROWS, columns // 8, 4, 2).permute(3, 0, 2, 1, 4).int()
        )  # [4, blocks, columns / 8, 16, 2]
        packed = planes[0] | planes[1] << 4 | planes[2] << 8 | planes[3] << 12
        words[start // ROWS : start // ROWS + len(packed)] = packed.short()
    return Matrix(Format.Q4, rows, columns, words, _by_block(scales), _by_block(minima))


def pack_q8(numbers: torch.Tensor, scales: torch.Tensor) -> Matrix:
    """numbers: int8 `[rows, columns]`; scales: float16 `[rows, columns / 32]`."""
    rows, columns = numbers.shape
    words = torch.empty(rows // ROWS, columns // 4, ROWS, 2, dtype=torch.int16)
    for start in range(0, rows, _ROWS_AT_ONCE):
        piece = numbers[start : start + _ROWS_AT_ONCE]
        pairs = piece.view(-1, ROWS, columns // 4, 2, 2).permute(3, 0, 2, 1, 4).int() + 128
        packed = pairs[0] | pairs[1] << 8
        words[start // ROWS : start // ROWS + len(packed)] = packed.short()
    return Matrix(Format.Q8, rows, columns, words, _by_block(scales))


def quantize(weight: torch.Tensor, target: Format) -> Matrix:
    """Round `weight` `[rows, columns]` to groups of 32: Q4 between its least and greatest, Q8 symmetric about 0."""
    if target is Format.BF16:
        return plain(weight.bfloat16())
    rows, columns = weight.shape
    numbers = torch.empty(rows, columns, dtype=torch.uint8 if target is Format.Q4 else torch.int8)
    scales = torch.empty(rows, columns // GROUP, dtype=torch.float16)
    minima = torch.empty_like(scales)
    for start in range(0, rows, _ROWS_AT_ONCE):
        stop = start + _ROWS_AT_ONCE
        groups = weight[start:stop].float().view(-1, columns // GROUP, GROUP)
        if target is Format.Q4:
            low, high = groups.aminmax(dim=-1)
            low = low.half()
            scale = ((high - low.float()) / 15).half()
            minima[start:stop] = low
            offset, least, most = low.float()[..., None], 0, 15
        else:
            scale = (groups.abs().amax(dim=-1) / 127).half()
            offset, least, most = torch.zeros(()), -128, 127
        scales[start:stop] = scale
        divisor = torch.where(scale > 0, scale, 1).float()[..., None]
        numbers[start:stop] = (
            ((groups - offset) / divisor).round_().clamp_(least, most).view(-1, columns).to(numbers.dtype)
        )
    return pack_q4(numbers, scales, minima) if target is Format.Q4 else pack_q8(numbers, scales)


def unpack(matrix: Matrix, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """The weights as plain numbers `[rows, columns]`."""
    if matrix.format is Format.BF16:
        return matrix.words.to(dtype)
    assert matrix.scales is not None
    words = matrix.words.int()
    if matrix.format is Format.Q4:
        planes = torch.stack([words >> 4 * plane & 15 for plane in range(4)])  # [4, blocks, columns / 8, 16, 2]
    else:
        planes = torch.stack([(words >> 8 * plane & 255) - 128 for plane in range(2)])
    numbers = planes.permute(1, 3, 2, 0, 4).reshape(matrix.rows, -1, GROUP)
    values = numbers * _by_row(matrix.scales)[..., None]
    if matrix.minima is not None:
        values += _by_row(matrix.minima)[..., None]
    return values.view(matrix.rows, matrix.columns).to(dtype)


def _by_block(values: torch.Tensor) -> torch.Tensor:
    rows, groups = values.shape
    return values.view(rows // ROWS, ROWS, groups).transpose(1, 2).contiguous()


def _by_row(values: torch.Tensor) -> torch.Tensor:
    return values.float().transpose(1, 2).reshape(-1, values.shape[1])
