"""The memory behind one conversation's KV cache: a buffer cut into one region per layer, side (key, value) and head.

Capacity is reserved for the whole context where the system backs memory lazily (Linux, macOS): only touched pages cost
anything, so the cache grows without ever being copied. Elsewhere it grows by steps. Owned by the inference thread.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import psutil
import torch

PAGE_BYTES = 4096
_GROWTH_TOKENS = 512
_LAZY_MEMORY = sys.platform in ("linux", "darwin")


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one layer's cache; keys are `[kv_heads, tokens, key_dim]`, values `[kv_heads, tokens, value_dim]`."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """What the cache of a model looks like: one shape per layer, one dtype for all."""

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return sum(shape.kv_heads * (shape.key_dim + shape.value_dim) for shape in self.layers) * self.dtype.itemsize

    @property
    def precision(self) -> str:
        return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[self.dtype]


class KVArena:
    """Keys and values of all layers for up to `capacity` tokens, as views into one buffer.

    `keys[i]` is `[kv_heads, capacity, key_dim]`, `values[i]` likewise; each head's region starts on a page.
    Raises RuntimeError (torch's out-of-memory) when the system cannot reserve the buffer.
    """

    def __init__(self, geometry: KVGeometry, capacity: int, device: torch.device) -> None:
        self.geometry = geometry
        self.device = device
        self.capacity = _page_aligned_tokens(geometry, capacity)
        itemsize = geometry.dtype.itemsize
        sizes = [
            shape.kv_heads * self.capacity * dim * itemsize
            for shape in geometry.layers
            for dim in (shape.key_dim, shape.value_dim)
        ]
        buffer = torch.empty(sum(sizes) + PAGE_BYTES, dtype=torch.uint8, device=device)
        start = -buffer.data_ptr() % PAGE_BYTES
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        for index, size in enumerate(sizes):
            shape = geometry.layers[index // 2]
            dim = shape.value_dim if index % 2 else shape.key_dim
            view = buffer[start : start + size].view(geometry.dtype).view(shape.kv_heads, self.capacity, dim)
            (self.values if index % 2 else self.keys).append(view)
            start += size

    def copy_from(self, other: KVArena, length: int) -> None:
        """Copy the first `length` tokens of every layer from an arena of the same geometry, on any device."""
        for mine, theirs in zip(self.keys + self.values, other.keys + other.values, strict=True):
            mine[:, :length].copy_(theirs[:, :length])

    def touch(self, length: int) -> None:
        """Make the system provide the memory of the first `length` tokens now."""
        for side in self.keys + self.values:
            side[:, :length].zero_()

    def touched_bytes(self, tokens: int) -> int:
        """Bytes of memory that `tokens` cached tokens occupy, rounding to pages included."""
        total = 0
        for shape in self.geometry.layers:
            for dim in (shape.key_dim, shape.value_dim):
                region = tokens * dim * self.geometry.dtype.itemsize
                total += shape.kv_heads * -(-region // PAGE_BYTES) * PAGE_BYTES
        return total


def reserve_arena(geometry: KVGeometry, num_tokens: int, context_length: int, device: torch.device) -> KVArena:
    """An arena for a cache that is about to hold `num_tokens` of at most `context_length`.

    Room for the whole context where untouched memory costs nothing, but never more than half of this machine's memory:
    systems refuse to promise what they can never keep. Beyond that the cache grows by steps.
    """
    needed = num_tokens + _GROWTH_TOKENS
    if device.type == "cpu" and _LAZY_MEMORY:
        affordable = psutil.virtual_memory().total // 2 // geometry.bytes_per_token
        roomy = min(context_length, affordable)
        if roomy > needed:
            try:
                return KVArena(geometry, roomy, device)
            except RuntimeError:  # a system that promises no more than it has (vm.overcommit_memory=2)
                return KVArena(geometry, needed, device)
    return KVArena(geometry, max(num_tokens, min(needed, context_length)), device)


def grown_capacity(num_tokens: int, capacity: int) -> int:
    """The next capacity when `num_tokens` no longer fit: one step, or 1/32 of the cache where that is more."""
    return num_tokens + max(_GROWTH_TOKENS, capacity // 32)


def _page_aligned_tokens(geometry: KVGeometry, capacity: int) -> int:
    smallest_row = min(min(shape.key_dim, shape.value_dim) for shape in geometry.layers) * geometry.dtype.itemsize
    step = max(1, PAGE_BYTES // smallest_row)
    return -(-capacity // step) * step
