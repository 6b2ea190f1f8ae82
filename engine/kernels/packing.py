"""Weights in the layouts that `engine.kernels.matrices` multiplies: packed, quantized, unpacked again. Torch only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from engine.one_thread import one_thread

ROWS = 16
GROUP = 32
ROUNDING = "1"  # changes with what `quantize` makes of the same weights
_SIGNS = -0x7F7F7F80  # 0x80808080 in int32: between q and q + 128 in every byte
_OUTER = -0x00FFFF01  # 0xFF0000FF
# Pieces are worked on by one thread: with two, waiting for each other at every operator costs more than it saves.
_WEIGHTS_AT_ONCE = 1 << 18  # what fits the second-level cache in float32
# Least squares rounds of a 4-bit group: the error falls by 4, 6, 7, 7.4 %; a round costs 0.3 s for 100 million weights.
_FITS = 3


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


@one_thread()
def pack_q4(numbers: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor) -> Matrix:
    """numbers: uint8 0..15 `[rows, columns]`; scales, minima: float16 `[rows, columns / 32]`."""
    rows, columns = numbers.shape
    words = torch.empty(rows // ROWS, columns // 8, ROWS, 2, dtype=torch.int16)
    for piece in _pieces(rows, columns):
        words[_blocks(piece)] = _q4_words(numbers[piece])
    return Matrix(Format.Q4, rows, columns, words, _by_block(scales), _by_block(minima))


@one_thread()
def pack_q8(numbers: torch.Tensor, scales: torch.Tensor) -> Matrix:
    """numbers: int8 `[rows, columns]`; scales: float16 `[rows, columns / 32]`."""
    rows, columns = numbers.shape
    words = torch.empty(rows // ROWS, columns // 4, ROWS, 2, dtype=torch.int16)
    for piece in _pieces(rows, columns):
        words[_blocks(piece)] = _q8_words(numbers[piece])
    return Matrix(Format.Q8, rows, columns, words, _by_block(scales))


@one_thread()
def quantize(weight: torch.Tensor, target: Format) -> Matrix:
    """Round `weight` `[rows, columns]` to groups of 32 that share a scale (and, in Q4, a minimum).

    Q8 is symmetric about 0. Q4 starts between the least and the greatest weight; then scale and minimum are fitted to
    the rounded numbers by least squares and the weights rounded anew, some times over, which never makes it worse.
    Raises ValueError for a shape that cannot be packed.
    """
    rows, columns = weight.shape
    if not can_pack(rows, columns):
        raise ValueError(f"a matrix of {rows} x {columns} cannot be packed")
    if target is Format.BF16:
        return plain(weight.bfloat16().contiguous())
    width = 8 if target is Format.Q4 else 4
    words = torch.empty(rows // ROWS, columns // width, ROWS, 2, dtype=torch.int16)
    scales = torch.empty(rows // ROWS, columns // GROUP, ROWS, dtype=torch.float16)
    minima = torch.empty_like(scales) if target is Format.Q4 else None
    for piece in _pieces(rows, columns):
        groups = weight[piece].float().reshape(-1, GROUP)
        if minima is not None:
            numbers, scale, minimum = _round_q4(groups)
            words[_blocks(piece)] = _q4_words(numbers.view(-1, columns))
            minima[_blocks(piece)] = _by_block(minimum.view(-1, columns // GROUP))
        else:
            numbers, scale = _round_q8(groups)
            words[_blocks(piece)] = _q8_words(numbers.view(-1, columns))
        scales[_blocks(piece)] = _by_block(scale.view(-1, columns // GROUP))
    return Matrix(target, rows, columns, words, scales, minima)


@one_thread()
def unpack(matrix: Matrix, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """The weights as plain numbers `[rows, columns]`, rounded from float32."""
    if matrix.format is Format.BF16:
        return matrix.words.to(dtype)
    assert matrix.scales is not None
    out = torch.empty(matrix.rows, matrix.columns, dtype=dtype)
    for piece in _pieces(matrix.rows, matrix.columns):
        blocks = _blocks(piece)
        words = matrix.words[blocks]
        values = _q4_numbers(words) if matrix.format is Format.Q4 else _q8_numbers(words)
        values = values.view(-1, matrix.columns // GROUP, GROUP) * _by_row(matrix.scales[blocks])[..., None]
        if matrix.minima is not None:
            values += _by_row(matrix.minima[blocks])[..., None]
        out[piece] = values.view(-1, matrix.columns)
    return out


def _round_q4(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers (uint8), scales and minima (float16) of groups `[n, 32]` (float32)."""
    ones = torch.ones(GROUP, 1)
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale, minimum = (high - low) / 15, low
    total = groups @ ones
    for _ in range(_FITS):
        numbers = _nearest(groups, scale, minimum, 0, 15)
        count, product, square = numbers @ ones, (numbers * groups) @ ones, numbers.square() @ ones
        spread = GROUP * square - count * count
        scale = torch.where(spread > 0, (GROUP * product - count * total) / spread.clamp_min(1), 0.0)
        minimum = (total - scale * count) / GROUP
    scale, minimum = scale.half(), minimum.half()
    return _nearest(groups, scale.float(), minimum.float(), 0, 15).to(torch.uint8), scale, minimum


def _round_q8(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers (int8) and scales (float16) of groups `[n, 32]` (float32)."""
    scale = (groups.abs().amax(dim=-1, keepdim=True) / 127).half()
    return _nearest(groups, scale.float(), torch.zeros(()), -128, 127).to(torch.int8), scale


def _nearest(groups: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, least: int, most: int) -> torch.Tensor:
    """The whole numbers for which scale * number + minimum comes closest to `groups`."""
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    return torch.addcmul(-minimum * inverse, groups, inverse).round_().clamp_(least, most)


def _pieces(rows: int, columns: int) -> list[slice]:
    """Whole blocks of rows, few enough to be worked on in the processor's own memory."""
    step = max(_WEIGHTS_AT_ONCE // columns // ROWS, 1) * ROWS
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _blocks(rows: slice) -> slice:
    return slice(rows.start // ROWS, rows.stop // ROWS)


def _q4_words(numbers: torch.Tensor) -> torch.Tensor:
    """uint8 `[rows, columns]` to words: of each 8 numbers, 0, 2, 4, 6 into one and 1, 3, 5, 7 into the other."""
    eight = numbers.contiguous().view(torch.int64)  # one in each byte
    twos = eight | eight >> 12  # 0 with 2, 1 with 3, 4 with 6, 5 with 7: in bytes 0, 1, 4, 5
    both = twos & 0xFF | twos >> 24 & 0xFF00 | (twos & 0xFF00) << 8 | twos >> 16 & 0xFF000000
    return _words_by_block(both.to(torch.int32))


def _q4_numbers(words: torch.Tensor) -> torch.Tensor:
    """The inverse: uint8 `[rows, columns]`."""
    both = _words_by_row(words).to(torch.int64)
    twos = both & 0xFF | both >> 8 & 0xFF00 | (both & 0xFF00) << 24 | (both & 0xFF000000) << 16
    return ((twos | twos << 12) & 0x0F0F0F0F0F0F0F0F).view(torch.uint8)


def _q8_words(numbers: torch.Tensor) -> torch.Tensor:
    """int8 `[rows, columns]` to words: of each 4 numbers, 0 and 2 into one, 1 and 3 into the other, each plus 128."""
    return _words_by_block(_middle_swapped(numbers.contiguous().view(torch.int32) ^ _SIGNS))


def _q8_numbers(words: torch.Tensor) -> torch.Tensor:
    """The inverse: int8 `[rows, columns]`."""
    return (_middle_swapped(_words_by_row(words)) ^ _SIGNS).view(torch.int8)


def _middle_swapped(four: torch.Tensor) -> torch.Tensor:
    """int32 with the second and the third byte of each changed over."""
    return four & _OUTER | four >> 8 & 0xFF00 | (four & 0xFF00) << 8


def _words_by_block(pairs: torch.Tensor) -> torch.Tensor:
    """Pairs of words, int32 `[rows, n]`, as int16 `[rows / 16, n, 16, 2]`."""
    rows, count = pairs.shape
    by_block = pairs.view(rows // ROWS, ROWS, count).transpose(1, 2).contiguous()
    return by_block.view(torch.int16).view(rows // ROWS, count, ROWS, 2)


def _words_by_row(words: torch.Tensor) -> torch.Tensor:
    blocks, count = words.shape[:2]
    pairs = words.reshape(blocks, count, 2 * ROWS).view(torch.int32)
    return pairs.transpose(1, 2).contiguous().view(blocks * ROWS, count)


def _by_block(values: torch.Tensor) -> torch.Tensor:
    rows, groups = values.shape
    return values.view(rows // ROWS, ROWS, groups).transpose(1, 2).contiguous()


def _by_row(values: torch.Tensor) -> torch.Tensor:
    return values.float().transpose(1, 2).reshape(-1, values.shape[1])
