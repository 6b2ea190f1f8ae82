"""Tensors as what the store keeps, and back: a description, and the bytes they share."""

from __future__ import annotations

import numpy as np
import torch

from engine.kv.store.records import TensorSpec
from engine.kv.transfer import bytes_of

_DTYPES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}
_TORCH_DTYPES = {name: dtype for dtype, name in _DTYPES.items()}


def spec_of(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
    return TensorSpec(name, _DTYPES[dtype], shape, dtype.itemsize)


def tensor_of(spec: TensorSpec, data: memoryview) -> torch.Tensor:
    """The tensor in this memory. Raises ValueError for a type that nothing here has."""
    if spec.dtype not in _TORCH_DTYPES:
        raise ValueError(f"a tensor of type {spec.dtype}")
    flat = torch.from_numpy(np.frombuffer(data, dtype=np.uint8)) if len(data) else torch.empty(0, dtype=torch.uint8)
    return flat.view(_TORCH_DTYPES[spec.dtype]).reshape(spec.shape)


def torch_memory(nbytes: int) -> memoryview:
    """Memory as torch allocates it for its own tensors: aligned for the widest loads."""
    return bytes_of(torch.empty(nbytes, dtype=torch.uint8)) if nbytes else memoryview(b"")
