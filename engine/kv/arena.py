"""The memory behind one conversation's KV cache: one tensor per group of equal regions.

Small arenas are packed: they grow by 1/32 and are copied, which costs nothing to speak of. From the size on where
rounding every region up to whole pages wastes less than that, an arena reserves the whole context where the system
backs memory lazily (Linux, macOS): it never moves, and gives single pages back. Owned by the inference thread.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import psutil
import torch

from engine.kv.geometry import KVGeometry

PAGE_BYTES = 4096
_MADV_DONTNEED = 4
_LAZY_MEMORY = sys.platform in ("linux", "darwin")
_MAX_ROUNDING = 1 / 32  # of a cache's bytes, above which it stays packed


class KVArena:
    """Keys and values of all full-attention layers for up to `capacity` tokens.

    `groups[g]` is `[regions, capacity, kv_heads, head_dim]` in the order of `geometry.groups`; `keys[i]`, `values[i]`
    are layer i's `[capacity, kv_heads, dim]` in it. `first`: the position of the token in row 0; what is before it is
    kept elsewhere, and `read` and `write` take positions. `is_pinned`: host memory that a device copies from.
    `touched_tokens`: how far the memory of a lazy arena has been used since it was last trimmed.
    Raises RuntimeError (torch's out-of-memory) when the memory cannot be had.
    """

    @torch.inference_mode(False)  # grown amid a forward pass, it is written to outside of one as well
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
        self.first = 0
        self.is_lazy = is_lazy
        self.touched_tokens = 0
        self.capacity = _page_aligned_tokens(geometry, capacity) if is_lazy else capacity
        shapes = [group.shape(self.capacity) for group in geometry.groups]
        self.groups = (
            [torch.empty(shape, dtype=geometry.dtype, pin_memory=True) for shape in shapes]
            if is_pinned
            else [_allocate(shape, geometry.dtype, device) for shape in shapes]
        )
        self.keys: list[torch.Tensor] = [torch.empty(0)] * len(geometry.layers)
        self.values: list[torch.Tensor] = [torch.empty(0)] * len(geometry.layers)
        for group, tensor in zip(geometry.groups, self.groups, strict=True):
            side = self.keys if group.is_key else self.values
            for region, layer in enumerate(group.layers):
                side[layer] = tensor[region]

    def write(self, start: int, tensors: Sequence[torch.Tensor]) -> None:
        """Copy one tensor per group, `[regions, n, kv_heads, head_dim]`, to the positions from `start` on."""
        start -= self.first
        for mine, tensor in zip(self.groups, tensors, strict=True):
            mine[:, start : start + tensor.shape[1]].copy_(tensor, non_blocking=mine.device.type != "cpu")

    def read(self, start: int, stop: int) -> list[torch.Tensor]:
        """Views of the positions from `start` to `stop`, one per group."""
        return [tensor[:, start - self.first : stop - self.first] for tensor in self.groups]

    def touch(self, num_tokens: int) -> None:
        """Make the system provide the memory of the first `num_tokens` rows now."""
        for tensor in self.groups:
            tensor[:, :num_tokens].zero_()
        self.touched_tokens = max(self.touched_tokens, num_tokens)

    def trim(self, num_tokens: int) -> bool:
        """Give the pages after the first `num_tokens` rows back to the system; False where only a copy can do that."""
        if self.touched_tokens <= num_tokens:
            return True
        if not self._gives_pages_back:
            return False
        for row, tensor in self._rows():
            first = -(-num_tokens * row // PAGE_BYTES) * PAGE_BYTES
            _give_back(tensor, first, -(-self.touched_tokens * row // PAGE_BYTES) * PAGE_BYTES)
        self.touched_tokens = num_tokens
        return True

    def discard(self, start: int, stop: int) -> None:
        """Give the pages of these positions back where that is possible: what was in them is lost."""
        if self._gives_pages_back:
            for row, tensor in self._rows():
                begin = -(-(start - self.first) * row // PAGE_BYTES) * PAGE_BYTES
                _give_back(tensor, begin, (stop - self.first) * row // PAGE_BYTES * PAGE_BYTES)

    def held_bytes(self, num_tokens: int) -> int:
        """Bytes held with `num_tokens` rows in use: all of a packed arena, the touched pages of a lazy one."""
        if not self.is_lazy:
            return sum(tensor.nbytes for tensor in self.groups)
        return paged_bytes(self.geometry, max(num_tokens, self.touched_tokens))

    @property
    def _gives_pages_back(self) -> bool:
        return self.is_lazy and sys.platform == "linux"

    def _rows(self) -> list[tuple[int, torch.Tensor]]:
        """Every group with the bytes of one of its rows."""
        return [
            (_row_bytes(self.geometry, group.kv_heads * group.head_dim), tensor)
            for group, tensor in zip(self.geometry.groups, self.groups, strict=True)
        ]


def reserve_arena(geometry: KVGeometry, num_tokens: int, context_length: int, device: torch.device) -> KVArena:
    """An arena for a cache that is about to hold `num_tokens` of at most `context_length`.

    A lazy one never asks for more than half of this machine's memory: systems refuse to promise what they can never
    keep.
    """
    if prefers_lazy(geometry, num_tokens, device):
        roomy = min(context_length, psutil.virtual_memory().total // 2 // geometry.bytes_per_token)
        if roomy >= num_tokens:
            try:
                return KVArena(geometry, roomy, device, is_lazy=True)
            except RuntimeError:  # a system that promises no more than it has (vm.overcommit_memory=2)
                pass
    return KVArena(geometry, grown_capacity(num_tokens), device)


def prefers_lazy(geometry: KVGeometry, num_tokens: int, device: torch.device) -> bool:
    """Whether a cache of this length wastes less by rounding its regions to pages than by growing in steps."""
    rounding = geometry.num_regions * PAGE_BYTES
    return device.type == "cpu" and _LAZY_MEMORY and rounding < _MAX_ROUNDING * num_tokens * geometry.bytes_per_token


def grown_capacity(num_tokens: int) -> int:
    """Capacity of a packed arena that holds `num_tokens` and grows: a slack of 3 %, so that waste stays under 4 %."""
    return num_tokens + max(8, num_tokens // 32)


def paged_bytes(geometry: KVGeometry, num_tokens: int) -> int:
    """Bytes of `num_tokens` when every region fills whole pages."""
    rows = [(len(group.layers), _row_bytes(geometry, group.kv_heads * group.head_dim)) for group in geometry.groups]
    return sum(regions * -(-num_tokens * row // PAGE_BYTES) * PAGE_BYTES for regions, row in rows)


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


def _page_aligned_tokens(geometry: KVGeometry, capacity: int) -> int:
    """The next capacity at which every region fills whole pages."""
    rows = [_row_bytes(geometry, group.kv_heads * group.head_dim) for group in geometry.groups]
    step = max((PAGE_BYTES // min(PAGE_BYTES, row & -row) for row in rows), default=1)
    return -(-capacity // step) * step


def _give_back(group: torch.Tensor, begin: int, end: int) -> None:
    """Give bytes `begin` to `end`, whole pages, of every region back to the system (Linux)."""
    if end <= begin:
        return
    libc = ctypes.CDLL(None)
    for region in group:
        libc.madvise(ctypes.c_void_p(region.data_ptr() + begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def _row_bytes(geometry: KVGeometry, numbers: int) -> int:
    return numbers * geometry.dtype.itemsize
