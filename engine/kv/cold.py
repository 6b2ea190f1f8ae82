"""The beginning of an active chat in the blocks it rests in: attention reads them where they lie.

Everything in it is older than any token that is fed, so it needs no mask. The compiled step reads the addresses in
`engine.kv.cold_table`; here each layer is decoded piece by piece into a small scratch memory, attended, and forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from engine.kv.attention import partial
from engine.kv.blocks import Block
from engine.kv.codecs.encoded import EncodedBlock
from engine.kv.codecs.registry import codec_named
from engine.kv.geometry import KVGeometry
from engine.kv.pruned import PrunedBlock

PIECE_TOKENS = 1024  # most that are decoded at once


class ColdPrefix:
    """Blocks that follow one another from the first token on. The caller holds references to them."""

    def __init__(self, blocks: Sequence[Block], geometry: KVGeometry) -> None:
        self.blocks = tuple(blocks)
        self.geometry = geometry
        self.num_tokens = sum(block.num_tokens for block in blocks)
        self.moved_tokens, self.shift = moved_together(blocks)

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    @property
    def codecs(self) -> frozenset[str]:
        """Of the blocks that are not in full precision."""
        return frozenset(block.encoded.codec for block in self.blocks if block.encoded is not None)

    @property
    def is_pruned(self) -> bool:
        return any(block.is_pruned for block in self.blocks)

    @property
    def starts(self) -> list[int]:
        """The position of each block, and the end."""
        starts = [0]
        for block in self.blocks:
            starts.append(starts[-1] + block.num_tokens)
        return starts

    def attend(
        self, layer: int, packed: torch.Tensor, scale: float | None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """See `engine.kv.attention.ColdLayers`."""
        for is_pruned, blocks in groupby(self.blocks, key=lambda block: block.is_pruned):
            if is_pruned:
                yield self._attend_pruned([block.encoded for block in blocks], layer, packed, scale)  # type: ignore[misc]
                continue
            for keys, values in self._pieces(list(blocks), layer, packed.dtype):
                yield partial(packed, keys, values, scale)

    def read(self, layer: int, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of a layer, piece after piece, `[1, kv_heads, n, dim]`: valid until the next piece.

        What was moved together is left out. Raises ValueError for another pruned block.
        """
        blocks = [block for block, start in zip(self.blocks, self.starts, strict=False) if start >= self.moved_tokens]
        if any(block.is_pruned for block in blocks):
            raise ValueError("a pruned block cannot be decoded")
        if blocks:
            yield from self._pieces(blocks, layer, dtype)

    def _pieces(
        self, blocks: list[Block], layer: int, dtype: torch.dtype
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        geometry, shape = self.geometry, self.geometry.layers[layer]
        device = blocks[0].place
        most = min(PIECE_TOKENS, sum(block.num_tokens for block in blocks))
        sides = [
            torch.empty(most, shape.kv_heads, dim, dtype=dtype, device=device)
            for dim in (shape.key_dim, shape.value_dim)
        ]
        filled = 0
        for index, block in enumerate(blocks):
            for side, is_key in zip(sides, (True, False), strict=True):
                _read_layer(block, layer, side[filled : filled + block.num_tokens], geometry, is_key=is_key)
            filled += block.num_tokens
            is_last = index + 1 == len(blocks)
            if is_last or filled + blocks[index + 1].num_tokens > most:
                keys, values = (side[:filled].transpose(0, 1)[None] for side in sides)
                yield keys, values
                filled = 0

    def _attend_pruned(
        self, blocks: Sequence[PrunedBlock], layer: int, packed: torch.Tensor, scale: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Head by head, as every one has kept another number of pairs."""
        outs: list[torch.Tensor] = []
        lses: list[torch.Tensor] = []
        for head in range(packed.shape[1]):
            lanes = [block.lane(layer, head, self.geometry) for block in blocks]
            keys = torch.cat([key for key, _ in lanes]).to(packed.dtype)[None, None]
            values = torch.cat([value for _, value in lanes]).to(packed.dtype)[None, None]
            query = packed[:, head : head + 1]
            if keys.shape[2]:
                out, lse = partial(query, keys, values, scale)
            else:
                out = torch.zeros_like(query)
                lse = torch.full(query.shape[:-1], -torch.inf, device=query.device)
            outs.append(out)
            lses.append(lse)
        return torch.cat(outs, 1), torch.cat(lses, 1)


def moved_together(blocks: Sequence[Block]) -> tuple[int, int]:
    """How many of the first tokens were moved together, and how many positions they take less; 0 and 0 for none."""
    first = blocks[0].encoded if blocks else None
    if not isinstance(first, PrunedBlock) or first.moved is None:
        return 0, 0
    stop, position = first.moved.tolist()
    return stop, stop - position


def _read_layer(block: Block, layer: int, out: torch.Tensor, geometry: KVGeometry, *, is_key: bool) -> None:
    """Decode one layer's keys or values of a block that is not pruned into `[tokens, kv_heads, dim]`."""
    group, region = geometry.place(layer, is_key=is_key)
    if isinstance(block.encoded, EncodedBlock):
        part = block.encoded.groups[group].region(region)
        codec_named(block.encoded.codec).decode_group(part, out[None], is_key=is_key)
    else:
        out.copy_(block.tensors[group][region])
