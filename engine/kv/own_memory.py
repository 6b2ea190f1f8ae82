"""Memory of its own for what is kept long: given back to the system as soon as it is freed, whatever lies beside it."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

_ALIGNMENT = 64
_LEAST_BYTES = 64 * 1024  # below, whole pages would waste more than the C library does


def in_own_memory(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies, side by side in one mapping; the tensors themselves where they are small or on a device."""
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    if sum(sizes) < _LEAST_BYTES or any(tensor.device.type != "cpu" for tensor in tensors):
        return list(tensors)
    memory = torch.frombuffer(mmap.mmap(-1, sum(sizes)), dtype=torch.uint8)
    copies: list[torch.Tensor] = []
    start = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        copy = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        copies.append(copy.copy_(tensor))
        start += size
    return copies
