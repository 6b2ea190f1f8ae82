"""The memory behind one conversation's KV cache: one tensor per group of equal regions.

While small, the arena is packed: it grows by 1/32 and is copied, which costs 0.1 ms a token at 4,000 tokens, and no
page is rounded up per region. A large one reserves the whole context where the system backs memory lazily (Linux,
macOS), so that it never has to be held twice. Owned by the inference thread.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import psutil
import torch

from engine.kv.geometry import KVGeometry

PAGE_BYTES = 4096
PACKED_BYTES = 256 * 1024**2
_HUGE_PAGE_BYTES = 2 * 1024**2
_MADV_HUGEPAGE = 14
_LAZY_MEMORY = sys.platform in ("linux", "darwin")


class KVArena:
    """Keys and values of all full-attention layers for up to `capacity` tokens.

    `groups[g]` is `[regions, capacity, kv_heads, head_dim]` in the order of `geometry.groups`; `keys[i]`, `values[i]`
    are layer i's `[capacity, kv_heads, dim]` in it. `is_pinned`: host memory that a device copies from.
    Raises RuntimeError (torch's out-of-memory) when the memory cannot be had.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        capacity: int,
        device: torch.device,
        *,
        is_lazy: bool = False,
        is_pinned: bool = False,
    ) -> None:
        self.geometry = geometry
        self.device = device
        self.is_lazy = is_lazy
        self.capacity = _page_aligned_tokens(geometry, capacity) if is_lazy else capacity
        shapes = [group.shape(self.capacity) for group in geometry.groups]
        self.groups = (
            [torch.empty(shape, dtype=geometry.dtype, pin_memory=True) for shape in shapes]
            if is_pinned
            else [_allocate(shape, geometry.dtype, device) for shape in shapes]
        )
        if not is_lazy:
            for tensor in self.groups:
                _advise_huge_pages(tensor)
        self.keys: list[torch.Tensor] = [torch.empty(0)] * len(geometry.layers)
        self.values: list[torch.Tensor] = [torch.empty(0)] * len(geometry.layers)
        for group, tensor in zip(geometry.groups, self.groups, strict=True):
            side = self.keys if group.is_key else self.values
            for region, layer in enumerate(group.layers):
                side[layer] = tensor[region]

    def copy_from(self, other: KVArena, length: int) -> None:
        """Copy the first `length` tokens of every layer from an arena of the same geometry, on any device."""
        self.write(0, [theirs[:, :length] for theirs in other.groups])

    def write(self, start: int, tensors: Sequence[torch.Tensor]) -> None:
        """Copy one tensor per group, `[regions, n, kv_heads, head_dim]`, to the positions from `start` on."""
        for mine, tensor in zip(self.groups, tensors, strict=True):
            mine[:, start : start + tensor.shape[1]].copy_(tensor, non_blocking=True)

    def read(self, start: int, stop: int) -> list[torch.Tensor]:
        """Views of the positions from `start` to `stop`, one per group."""
        return [tensor[:, start:stop] for tensor in self.groups]

    def touched_bytes(self, tokens: int) -> int:
        """Bytes of memory held once `tokens` have been written: all of a packed arena, touched pages of a lazy one."""
        if not self.is_lazy:
            return sum(tensor.nbytes for tensor in self.groups)
        total = 0
        for group in self.geometry.groups:
            region = tokens * group.kv_heads * group.head_dim * self.geometry.dtype.itemsize
            total += len(group.layers) * -(-region // PAGE_BYTES) * PAGE_BYTES
        return total


def reserve_arena(geometry: KVGeometry, num_tokens: int, context_length: int, device: torch.device) -> KVArena:
    """An arena for a cache that is about to hold `num_tokens` of at most `context_length`.

    A lazy one never asks for more than half of this machine's memory: systems refuse to promise what they can never
    keep.
    """
    needed = min(grown_capacity(num_tokens), max(num_tokens, context_length))
    if device.type == "cpu" and _LAZY_MEMORY and needed * geometry.bytes_per_token > PACKED_BYTES:
        affordable = psutil.virtual_memory().total // 2 // geometry.bytes_per_token
        roomy = min(context_length, affordable)
        if roomy > needed:
            try:
                return KVArena(geometry, roomy, device, is_lazy=True)
            except RuntimeError:  # a system that promises no more than it has (vm.overcommit_memory=2)
                return KVArena(geometry, needed, device)
    return KVArena(geometry, needed, device)


def grown_capacity(num_tokens: int) -> int:
    """Capacity for a cache that holds `num_tokens` and grows: a slack of 3 %, so that waste stays under 4 %."""
    return num_tokens + max(8, num_tokens // 32)


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialized tensor that starts on a page."""
    nbytes = dtype.itemsize
    for length in shape:
        nbytes *= length
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    buffer = torch.empty(nbytes + PAGE_BYTES, dtype=torch.uint8)
    start = -buffer.data_ptr() % PAGE_BYTES
    return buffer[start : start + nbytes].view(dtype).view(shape)


def _advise_huge_pages(tensor: torch.Tensor) -> None:
    """Ask Linux for large pages: fresh memory of 92 MB then costs 3 ms instead of 30. A refusal changes nothing."""
    if sys.platform != "linux" or tensor.device.type != "cpu" or tensor.nbytes < 2 * _HUGE_PAGE_BYTES:
        return
    ctypes.CDLL(None).madvise(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), _MADV_HUGEPAGE)


def _page_aligned_tokens(geometry: KVGeometry, capacity: int) -> int:
    """The next capacity at which every region fills whole pages."""
    rows = [group.kv_heads * group.head_dim * geometry.dtype.itemsize for group in geometry.groups]
    step = max((PAGE_BYTES // _largest_power_of_two(row) for row in rows), default=1)
    return -(-capacity // max(1, step)) * max(1, step)


def _largest_power_of_two(number: int) -> int:
    return min(PAGE_BYTES, number & -number)
