"""The cold part of a cache as the compiled step sees it: a table of addresses, one row for up to 128 tokens of a head.

The columns are those of `engine.kernels.plan`. The blocks must outlive the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.kernels import plan as p
from engine.kv.blocks import Block
from engine.kv.codecs.affine import AffineCodec
from engine.kv.codecs.encoded import EncodedBlock
from engine.kv.codecs.registry import codec_named
from engine.kv.cold import ColdPrefix
from engine.kv.geometry import KVGeometry
from engine.kv.pruned import LaneStarts, PrunedBlock

_FORMATS = {(8, 8): p.KEYS_8_VALUES_8, (8, 4): p.KEYS_8_VALUES_4, (4, 4): p.KEYS_4_VALUES_4}


@dataclass(frozen=True, slots=True)
class ColdTable:
    """`units` int64 `[units, COLD_COLUMNS]` layer by layer; `first` int64 `[layers + 1]`, where a layer's begin;
    `slots` int64 `[layers, kv_heads]`, how many a head has."""

    units: np.ndarray
    first: np.ndarray
    slots: np.ndarray

    @property
    def most_slots(self) -> int:
        return int(self.slots.max())


def cold_table(cold: ColdPrefix | None, geometry: KVGeometry) -> ColdTable:
    """Only for a geometry of equal layers with keys as long as values."""
    layers, kv_heads = len(geometry.layers), geometry.layers[0].kv_heads
    slots = np.zeros((layers, kv_heads), dtype=np.int64)
    parts: list[np.ndarray] = []
    of_layer: list[np.ndarray] = []
    layer_of, head_of = np.indices((layers, kv_heads))
    for block in cold.blocks if cold is not None else ():
        for unit in _units(block, geometry):
            there = unit[..., p.COLD_COUNT] > 0
            unit[..., p.COLD_HEAD] = head_of
            unit[..., p.COLD_SLOT] = slots
            parts.append(unit[there])
            of_layer.append(layer_of[there])
            slots += there
    first = np.zeros(layers + 1, dtype=np.int64)
    first[1:] = np.cumsum(slots.sum(1))
    if not parts:
        return ColdTable(np.zeros((0, p.COLD_COLUMNS), dtype=np.int64), first, slots)
    order = np.argsort(np.concatenate(of_layer), kind="stable")
    return ColdTable(np.ascontiguousarray(np.concatenate(parts)[order]), first, slots)


def _units(block: Block, geometry: KVGeometry) -> Iterator[np.ndarray]:
    """The rows of a block, `[layers, kv_heads, COLD_COLUMNS]`, one after the other where it has many tokens."""
    if isinstance(block.encoded, PrunedBlock):
        yield from _pruned_units(block.encoded, geometry)
        return
    shape = geometry.layers[0]
    rows = np.zeros((len(geometry.layers), shape.kv_heads, p.COLD_COLUMNS), dtype=np.int64)
    rows[..., p.COLD_COUNT] = block.num_tokens
    if isinstance(block.encoded, EncodedBlock):
        codec = codec_named(block.encoded.codec)
        assert isinstance(codec, AffineCodec)
        rows[..., p.COLD_FORMAT] = _FORMATS[codec.key_bits, codec.value_bits]
    for is_key, column in ((True, p.COLD_KEYS), (False, p.COLD_VALUES)):
        for layer in range(len(geometry.layers)):
            group, region = geometry.place(layer, is_key=is_key)
            heads = np.arange(shape.kv_heads)
            part = block.encoded.groups[group] if isinstance(block.encoded, EncodedBlock) else None
            numbers = (part.codes if part is not None else block.tensors[group])[region]
            row_bytes = numbers.stride(0) * numbers.itemsize
            rows[layer, :, column] = numbers.data_ptr() + heads * (row_bytes // shape.kv_heads)
            rows[layer, :, column + 1] = row_bytes
            if part is not None and part.offset is not None:
                at = p.COLD_KEY_SCALE if is_key else p.COLD_VALUE_SCALE
                for tensor, place in ((part.scale, at), (part.offset, at + 1)):
                    rows[layer, :, place] = tensor[region].data_ptr() + heads * tensor.stride(1) * tensor.itemsize
    yield rows


def _pruned_units(block: PrunedBlock, geometry: KVGeometry) -> Iterator[np.ndarray]:
    shape = geometry.layers[0]
    lanes = (len(geometry.layers), shape.kv_heads)
    counts = block.counts.numpy().astype(np.int64)
    starts = LaneStarts.of(block, geometry)
    itemsize, dim = block.keys.itemsize, shape.key_dim
    for done in range(0, int(counts.max(initial=0)), p.SEGMENT):
        rows = np.zeros((len(counts), p.COLD_COLUMNS), dtype=np.int64)
        rows[:, p.COLD_COUNT] = np.clip(counts - done, 0, p.SEGMENT)
        rows[:, p.COLD_KEYS] = block.keys.data_ptr() + (starts.keys + done * dim) * itemsize
        rows[:, p.COLD_VALUES] = block.values.data_ptr() + (starts.values + done * dim) * itemsize
        rows[:, p.COLD_KEY_ROW] = rows[:, p.COLD_VALUE_ROW] = dim * itemsize
        for name, column, start in (
            ("key_scale", p.COLD_KEY_SCALE, starts.scales),
            ("key_offset", p.COLD_KEY_OFFSET, starts.scales),
            ("value_scale", p.COLD_VALUE_SCALE, starts.pairs + done),
            ("value_offset", p.COLD_VALUE_OFFSET, starts.pairs + done),
        ):
            tensor = getattr(block, name)
            if tensor is not None:
                rows[:, p.COLD_FORMAT] = p.KEYS_8_VALUES_8
                rows[:, column] = tensor.data_ptr() + start * tensor.itemsize
        yield rows.reshape(*lanes, p.COLD_COLUMNS)
