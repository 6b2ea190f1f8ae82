"""A working cache as the tensors of a snapshot, and back. The bytes are views of the arena: nothing is copied here."""

from __future__ import annotations

import array
from dataclasses import dataclass

import numpy as np
import torch

from engine.kv.arena import KVArena, KVGeometry
from engine.kv.snapshots import TensorSpec
from engine.kv.working_cache import WorkingCache

_DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor's data as the pieces that follow one another in the file (one a head, for keys and values)."""

    spec: TensorSpec
    pieces: tuple[memoryview, ...]


def snapshot_specs(geometry: KVGeometry, num_tokens: int) -> list[TensorSpec]:
    """The tensors of a snapshot of `num_tokens`, in file order."""
    dtype = _DTYPE_NAMES[geometry.dtype]
    specs = [TensorSpec("token_ids", "U32", (num_tokens,), 4)]
    for index, shape in enumerate(geometry.layers):
        for side, dim in (("key", shape.key_dim), ("value", shape.value_dim)):
            name = f"layers.{index}.{side}"
            specs.append(TensorSpec(name, dtype, (shape.kv_heads, num_tokens, dim), geometry.dtype.itemsize))
    return specs


def cache_bytes(cache: WorkingCache) -> list[TensorBytes]:
    """The cache's current content as snapshot tensors. On CUDA the data is copied to host memory first."""
    length = cache.length
    specs = snapshot_specs(cache.geometry, length)
    ids = memoryview(array.array("I", cache.token_ids)).cast("B")
    sides = arena_pieces(cache.arena, length)
    return [
        TensorBytes(specs[0], (ids,)),
        *(TensorBytes(spec, pieces) for spec, pieces in zip(specs[1:], sides, strict=True)),
    ]


def arena_pieces(arena: KVArena, length: int) -> list[tuple[memoryview, ...]]:
    """Per layer and side (key, value, key, ...) the first `length` tokens of each head, writable on the CPU."""
    sides: list[tuple[memoryview, ...]] = []
    for keys, values in zip(arena.keys, arena.values, strict=True):
        for side in (keys, values):
            heads = side[:, :length].view(torch.uint8).cpu()
            sides.append(tuple(_bytes_of(heads[head].numpy()) for head in range(heads.shape[0])))
    return sides


def _bytes_of(head: np.ndarray) -> memoryview:
    return memoryview(head.data).cast("B")
