"""Blocks of which only some keys and values are left, others in every layer and head: what KVzip keeps.

Stored ragged: each lane (a KV head of a layer) has its own number of pairs, one lane after the other, nothing padded.
Keys keep the rotation of the position they had, or, where what was left has been moved together
(`engine.kv.compaction`), have that of the one they have now. Only tensors: any thread, any device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from engine.kv.codecs.affine import encode_keys, encode_values
from engine.kv.codecs.encoded import EncodedGroup
from engine.kv.codecs.registry import INT8
from engine.kv.geometry import KVGeometry
from engine.kv.own_memory import in_own_memory

PRUNED_TOKENS = 256  # of a whole pruned block: positions in it fit a byte
KVZIP, STREAMING = "kvzip", "streaming"
_INT8_SUFFIX = "-int8"
_ON_HOST = frozenset({"counts", "positions", "scores", "moved"})


@dataclass(frozen=True, slots=True)
class PrunedBlock:
    """What is left of a block of up to `PRUNED_TOKENS` tokens.

    `method` names how it was chosen; `counts` int32 `[lanes]`, pairs left per lane, lanes layer by layer; `positions`
    uint8 `[pairs]`, where in the block they were; `keys`, `values` flat `[pairs * dim]`, in the geometry's dtype or as
    int8 codes. With int8, scale and offset of keys are flat `[lanes * key_dim]`, of values `[pairs]`.

    `scores` float16 `[pairs]` and `moved` int32 `[2]` are those of a cache that was moved together, the same in all its
    blocks: how much each pair mattered, and how many tokens were moved together and the position after them.
    """

    method: str
    counts: torch.Tensor
    positions: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    key_scale: torch.Tensor | None = None
    key_offset: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None
    value_offset: torch.Tensor | None = None
    scores: torch.Tensor | None = None
    moved: torch.Tensor | None = None

    @classmethod
    def of(cls, method: str, groups: Sequence[torch.Tensor], kept: torch.Tensor, geometry: KVGeometry) -> PrunedBlock:
        """Keep the pairs marked in `kept`, bool `[lanes, tokens]`, of a block's `groups` in full precision."""
        sides: dict[bool, list[torch.Tensor]] = {True: [], False: []}
        marks = kept.to(groups[0].device)
        for is_key, parts in sides.items():
            for layer in range(len(geometry.layers)):
                group, region = geometry.place(layer, is_key=is_key)
                for head, lane in enumerate(geometry.lanes(layer)):
                    parts.append(groups[group][region, :, head][marks[lane]].reshape(-1))
        positions = torch.arange(kept.shape[1]).expand_as(kept)[kept.cpu()].to(torch.uint8)
        counts = kept.sum(1, dtype=torch.int32).cpu()
        return cls(method, counts, positions, torch.cat(sides[True]), torch.cat(sides[False]))

    @property
    def codec(self) -> str:
        """What the user is told."""
        return self.method + _INT8_SUFFIX if self.is_int8 else self.method

    @property
    def is_int8(self) -> bool:
        return self.key_scale is not None

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @property
    def place(self) -> str:
        return self.keys.device.type

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of them by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in named.items() if isinstance(tensor, torch.Tensor)}

    @classmethod
    def from_tensors(
        cls, method: str, tensors: Mapping[str, torch.Tensor], geometry: KVGeometry, num_tokens: int
    ) -> PrunedBlock:
        """What `tensors` gave. Raises ValueError, TypeError or KeyError unless everything fits together."""
        known = {field.name for field in fields(cls)} - {"method"}
        if not set(tensors) <= known or method not in (KVZIP, STREAMING):
            raise ValueError("not a pruned block")
        values: dict[str, Any] = dict(tensors)
        block = cls(method, **values)
        _check(block, geometry, num_tokens)
        return block

    def in_own_memory(self) -> PrunedBlock:
        """The same, in memory that goes back to the system with it."""
        named = self.tensors()
        copies: dict[str, Any] = dict(zip(named, in_own_memory([*named.values()]), strict=True))
        return replace(self, **copies)

    def to(self, device: torch.device | str) -> PrunedBlock:
        """Counts, positions and what goes with them stay in host memory."""
        moved: dict[str, Any] = {name: t.to(device) for name, t in self.tensors().items() if name not in _ON_HOST}
        return replace(self, **moved)

    def lane(self, layer: int, head: int, geometry: KVGeometry) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one KV head, `[pairs, dim]` in the geometry's dtype: views, or decoded."""
        lane = geometry.lanes(layer)[head]
        shape = geometry.layers[layer]
        starts = LaneStarts.of(self, geometry)
        count = int(self.counts[lane])
        keys = self.keys[starts.keys[lane] :][: count * shape.key_dim].view(count, shape.key_dim)
        values = self.values[starts.values[lane] :][: count * shape.value_dim].view(count, shape.value_dim)
        if self.key_scale is None or self.key_offset is None or self.value_scale is None or self.value_offset is None:
            return keys, values
        at = slice(starts.scales[lane], starts.scales[lane] + shape.key_dim)
        key_part = EncodedGroup(keys[None, :, None], self.key_scale[at][None, None], self.key_offset[at][None, None])
        at = slice(starts.pairs[lane], starts.pairs[lane] + count)
        value_part = EncodedGroup(
            values[None, :, None], self.value_scale[at][None, None], self.value_offset[at][None, None]
        )
        outs = [torch.empty(x.shape, dtype=geometry.dtype, device=x.device) for x in (keys, values)]
        INT8.decode_group(key_part, outs[0][None, :, None], is_key=True)
        INT8.decode_group(value_part, outs[1][None, :, None], is_key=False)
        return outs[0], outs[1]

    def quantized(self, geometry: KVGeometry) -> PrunedBlock:
        """The same pairs in 8 bits: keys per channel over the lane's pairs, values per pair.

        Raises ValueError for numbers that are not finite.
        """
        if self.is_int8:
            return self
        keys: list[EncodedGroup] = []
        values: list[EncodedGroup] = []
        for layer in range(len(geometry.layers)):
            for head in range(len(geometry.lanes(layer))):
                key, value = self.lane(layer, head, geometry)
                keys.append(_empty(key) if not len(key) else encode_keys(key[None, :, None], 8))
                values.append(_empty(value[:, :0]) if not len(value) else encode_values(value[None, :, None], 8))
        return replace(
            self,
            keys=_joined([part.codes for part in keys], torch.int8),
            values=_joined([part.codes for part in values], torch.int8),
            key_scale=_joined([part.scale for part in keys], geometry.dtype),
            key_offset=_joined([part.offset for part in keys], geometry.dtype),
            value_scale=_joined([part.scale for part in values], geometry.dtype),
            value_offset=_joined([part.offset for part in values], geometry.dtype),
        )


@dataclass(frozen=True, slots=True)
class LaneStarts:
    """Where each lane begins, in numbers: int64 `[lanes]`."""

    pairs: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    scales: np.ndarray  # of keys

    @classmethod
    def of(cls, block: PrunedBlock, geometry: KVGeometry) -> LaneStarts:
        counts = block.counts.numpy().astype(np.int64)
        key_dims = np.repeat([s.key_dim for s in geometry.layers], [s.kv_heads for s in geometry.layers])
        value_dims = np.repeat([s.value_dim for s in geometry.layers], [s.kv_heads for s in geometry.layers])
        return cls(_starts(counts), _starts(counts * key_dims), _starts(counts * value_dims), _starts(key_dims))


def _starts(sizes: np.ndarray) -> np.ndarray:
    starts: np.ndarray = np.cumsum(sizes, dtype=np.int64) - sizes
    return starts


def _empty(x: torch.Tensor) -> EncodedGroup:
    """Of a lane without pairs: as many scales as a key has channels, and no code."""
    scale = torch.zeros(x.shape[1], dtype=x.dtype, device=x.device)
    return EncodedGroup(torch.empty(0, dtype=torch.int8, device=x.device), scale, scale)


def _joined(parts: Sequence[torch.Tensor | None], dtype: torch.dtype) -> torch.Tensor:
    joined = torch.cat([part.reshape(-1) for part in parts if part is not None])
    if joined.dtype is not dtype:
        raise ValueError("parts of another type")
    return joined


def _check(block: PrunedBlock, geometry: KVGeometry, num_tokens: int) -> None:
    """Raise ValueError unless sizes, types and positions fit: attention reads by address."""
    lanes = geometry.num_lanes
    counts = block.counts
    if counts.dtype is not torch.int32 or counts.shape != (lanes,) or not num_tokens <= PRUNED_TOKENS:
        raise ValueError("counts of another shape")
    if int(counts.min()) < 0 or int(counts.max()) > num_tokens:
        raise ValueError("impossible counts")
    pairs = int(counts.sum())
    if block.positions.dtype is not torch.uint8 or block.positions.shape != (pairs,):
        raise ValueError("positions of another shape")
    if pairs and int(block.positions.max()) >= num_tokens:
        raise ValueError("a position outside the block")
    if (block.scores is None) is not (block.moved is None):
        raise ValueError("scores without a place, or a place without scores")
    if block.scores is not None and (block.scores.dtype is not torch.float16 or block.scores.shape != (pairs,)):
        raise ValueError("scores of another shape")
    if block.moved is not None:
        if block.moved.dtype is not torch.int32 or block.moved.shape != (2,) or block.is_int8:
            raise ValueError("not a place")
        stop, position = block.moved.tolist()
        if not (num_tokens <= stop and 1 <= position <= stop):
            raise ValueError("an impossible place")
    per_lane = counts.tolist()
    key_numbers = value_numbers = key_channels = 0
    for layer, shape in enumerate(geometry.layers):
        for lane in geometry.lanes(layer):
            key_numbers += per_lane[lane] * shape.key_dim
            value_numbers += per_lane[lane] * shape.value_dim
            key_channels += shape.key_dim
    dtype = torch.int8 if block.is_int8 else geometry.dtype
    expected: dict[str, tuple[int, torch.dtype]] = {"keys": (key_numbers, dtype), "values": (value_numbers, dtype)}
    if block.is_int8:
        expected |= {"key_scale": (key_channels, geometry.dtype), "key_offset": (key_channels, geometry.dtype)}
        expected |= {"value_scale": (pairs, geometry.dtype), "value_offset": (pairs, geometry.dtype)}
    for name, (size, kind) in expected.items():
        tensor = getattr(block, name)
        if tensor is None or tensor.dtype is not kind or tensor.shape != (size,):
            raise ValueError(f"{name} of another shape")
