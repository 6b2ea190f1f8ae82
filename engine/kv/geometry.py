"""The shape of a model's full-attention cache, and how its regions are grouped. No tensors are held here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

_DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one layer's cache; keys are `[tokens, kv_heads, key_dim]`, values `[tokens, kv_heads, value_dim]`."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class RegionGroup:
    """Regions of equal shape, stored as one tensor `[regions, tokens, kv_heads, head_dim]`.

    `layers[i]` is the (full-attention) layer of region i; a group holds only keys or only values.
    """

    is_key: bool
    kv_heads: int
    head_dim: int
    layers: tuple[int, ...]

    def shape(self, num_tokens: int) -> tuple[int, int, int, int]:
        return (len(self.layers), num_tokens, self.kv_heads, self.head_dim)


@dataclass(frozen=True)
class KVGeometry:
    """One shape per full-attention layer, one dtype for all. Sliding and recurrent layers are not part of it."""

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return sum(shape.kv_heads * (shape.key_dim + shape.value_dim) for shape in self.layers) * self.dtype.itemsize

    @property
    def precision(self) -> str:
        return _DTYPE_NAMES[self.dtype]

    @cached_property
    def groups(self) -> tuple[RegionGroup, ...]:
        """Keys, then values, by shape, in order of their first layer: usually two groups."""
        found: dict[tuple[bool, int, int], list[int]] = {}
        for is_key in (True, False):
            for index, shape in enumerate(self.layers):
                dim = shape.key_dim if is_key else shape.value_dim
                found.setdefault((is_key, shape.kv_heads, dim), []).append(index)
        return tuple(RegionGroup(*shape, tuple(layers)) for shape, layers in found.items())

    @property
    def num_regions(self) -> int:
        return 2 * len(self.layers)

    def place(self, layer: int, *, is_key: bool) -> tuple[int, int]:
        """Where a layer's keys or values are: the number of the group, and of the region in it."""
        return self._places[layer, is_key]

    @cached_property
    def _places(self) -> dict[tuple[int, bool], tuple[int, int]]:
        return {
            (layer, group.is_key): (number, region)
            for number, group in enumerate(self.groups)
            for region, layer in enumerate(group.layers)
        }

    @property
    def num_lanes(self) -> int:
        """A lane is one KV head of one layer."""
        return sum(shape.kv_heads for shape in self.layers)

    def lanes(self, layer: int) -> range:
        """The numbers of a layer's lanes."""
        first = sum(shape.kv_heads for shape in self.layers[:layer])
        return range(first, first + self.layers[layer].kv_heads)
