"""Linear layers and embeddings whose weights stay packed (`engine.kernels.packing`), on the CPU.

A few tokens are multiplied by the packed weights themselves; for many, rows are unpacked into a scratch that is used
again, and torch multiplies. While the kernels are not compiled, or cannot be, torch unpacks: slower, and the same bits.
"""

from __future__ import annotations

import threading
from types import ModuleType

import torch
from torch.nn import functional

from engine.kernels.compile import is_compiled
from engine.kernels.packing import ROWS, Matrix, unpack

_FEW_VECTORS = 16  # up to here one thread of the kernels beats unpacking and two threads of torch (measured)
_SCRATCH_WEIGHTS = 1 << 22
_scratch = threading.local()
_compiled: ModuleType | None = None


class _Packed(torch.nn.Module):
    """Holds a Q4 or Q8 matrix; its tensors are buffers, so that they are counted and never trained."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix
        for name in ("words", "scales", "minima"):
            self.register_buffer(name, getattr(matrix, name), persistent=False)


class PackedLinear(_Packed):
    """`y = x @ matrix.T + bias` for `x` `[..., in_features]` in bfloat16 or float32; `y` is in the type of `x`."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None = None) -> None:
        super().__init__(matrix)
        self.in_features, self.out_features = matrix.columns, matrix.rows
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        vectors = x.reshape(-1, self.in_features)
        kernels = _kernels()
        if kernels is not None and len(vectors) * _parts(x.dtype) <= _FEW_VECTORS:
            y = _multiply(kernels, self.matrix, vectors)
            y = (y if self.bias is None else y + self.bias.float()).to(x.dtype)
        else:
            y = _multiply_unpacked(kernels, self.matrix, vectors, self.bias)
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.matrix.format.name}, bias={self.bias is not None}"


class PackedEmbedding(_Packed):
    """Rows of a matrix by token id, as `dtype`, times `scale` (as Gemma wants them)."""

    def __init__(self, matrix: Matrix, dtype: torch.dtype, scale: float = 1.0) -> None:
        super().__init__(matrix)
        self._scale = torch.tensor(scale).to(dtype) if scale != 1.0 else None
        self.num_embeddings, self.embedding_dim = matrix.rows, matrix.columns
        self._dtype = dtype

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """`[...]` ids -> `[..., columns]`. Raises IndexError for an id outside the vocabulary."""
        ids = token_ids.reshape(-1)
        rows = unpack(_gathered(self.matrix, ids), self._dtype)[: len(ids)]
        rows = rows if self._scale is None else rows * self._scale
        return rows.view(*token_ids.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.matrix.format.name}"


def _kernels() -> ModuleType | None:
    """`engine.kernels.unpack` once it is compiled: it imports numba, which a machine may lack."""
    global _compiled  # noqa: PLW0603 - asked for every layer of every token
    if _compiled is None and is_compiled():
        from engine.kernels import unpack as kernels  # noqa: PLC0415 - imports numba

        _compiled = kernels
    return _compiled


def _parts(dtype: torch.dtype) -> int:
    return 1 if dtype is torch.bfloat16 else 2


def _multiply(kernels: ModuleType, matrix: Matrix, vectors: torch.Tensor) -> torch.Tensor:
    """`[n, rows]` float32. The kernels take bfloat16: a float32 vector goes in as its upper and its lower half."""
    count = len(vectors)
    halves = vectors.contiguous()
    if vectors.dtype is not torch.bfloat16:
        upper = vectors.bfloat16()
        halves = torch.cat([upper, (vectors - upper).bfloat16()])
    y = torch.empty(len(halves), matrix.rows)
    sums = torch.empty(len(halves), matrix.columns // 32)
    kernels.multiply(
        *_addresses(matrix), matrix.rows, matrix.columns, halves.data_ptr(), sums.data_ptr(), y.data_ptr(), len(halves)
    )
    return y if len(halves) == count else y[:count] + y[count:]


def _multiply_unpacked(
    kernels: ModuleType | None, matrix: Matrix, vectors: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`[n, rows]` in the type of the vectors."""
    step = min(max(_SCRATCH_WEIGHTS // matrix.columns // ROWS, 1) * ROWS, matrix.rows)
    y = vectors.new_empty(len(vectors), matrix.rows)
    for start in range(0, matrix.rows, step):
        rows = slice(start, min(start + step, matrix.rows))
        weight = _unpacked(kernels, matrix, rows, vectors.dtype)
        y[:, rows] = functional.linear(vectors, weight, None if bias is None else bias[rows])
    return y


def _unpacked(kernels: ModuleType | None, matrix: Matrix, rows: slice, dtype: torch.dtype) -> torch.Tensor:
    """Some rows, whole blocks of them, valid until this thread's next call."""
    if kernels is None or dtype not in (torch.bfloat16, torch.float32):
        return unpack(matrix.part(rows), dtype)
    count = (rows.stop - rows.start) * matrix.columns
    scratch: torch.Tensor | None = getattr(_scratch, str(dtype), None)
    if scratch is None or len(scratch) < count:
        scratch = torch.empty(count, dtype=dtype)
        setattr(_scratch, str(dtype), scratch)
    kernel = kernels.unpack_bf16 if dtype is torch.bfloat16 else kernels.unpack_f32
    first, last = rows.start // ROWS, rows.stop // ROWS
    kernel(*_addresses(matrix), matrix.columns, first, last, scratch.data_ptr())
    return scratch[:count].view(-1, matrix.columns)


def _gathered(matrix: Matrix, ids: torch.Tensor) -> Matrix:
    """The rows of the ids as a matrix of their own, filled up with row 0 to whole blocks."""
    padded = functional.pad(ids, (0, -len(ids) % ROWS))
    blocks, lanes = padded // ROWS, padded % ROWS

    def rows_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        picked = tensor[blocks, :, lanes]  # [n, k, ...]
        return picked.view(-1, ROWS, *picked.shape[1:]).transpose(1, 2).contiguous()

    words = rows_of(matrix.words)
    assert words is not None
    return Matrix(matrix.format, len(padded), matrix.columns, words, rows_of(matrix.scales), rows_of(matrix.minima))


def _addresses(matrix: Matrix) -> tuple[int, int, int, int]:
    assert matrix.scales is not None
    minima = 0 if matrix.minima is None else matrix.minima.data_ptr()
    return int(matrix.format), matrix.words.data_ptr(), matrix.scales.data_ptr(), minima
