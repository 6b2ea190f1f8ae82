"""Fewer pairs, moved together: how a cache that fills its model's context is made to take less of it.

Every lane (a KV head of a layer) keeps its best pairs, and what is left of a lane closes up: its keys are rotated by
the distance they move, so that they stand side by side and the next token comes right after them (positions within the
cache, as in StreamingLLM, arXiv 2309.17453, section 3.2; what to keep is KVzip's, arXiv 2505.23416). Lanes that keep
less than the others end where those end. The tokens after them stay whole, and move as far. Inference thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.kv.blocks import Block
from engine.kv.cold import moved_together
from engine.kv.geometry import KVGeometry
from engine.kv.pruned import KVZIP, PRUNED_TOKENS, PrunedBlock
from engine.kv.rotation import Rotation


class Closing:
    """Which pairs of the first `stop` tokens of a cache are kept, and where they stand then.

    `blocks`: the cache's cold part, of which the first may have been moved together before; no others are pruned.
    scores: float32 `[lanes, stop]`, of the tokens not yet moved; those that were carry their own. Each lane keeps its
    `most` best pairs, what it has of the first `head` tokens before all; of equal ones the first.
    `kept` and `distances` (how far a pair moves, int64) are `[lanes, stop]`; `num_positions` is what they take.
    """

    def __init__(self, blocks: Sequence[Block], scores: torch.Tensor, head: int, most: int) -> None:
        self.blocks = blocks
        self.stop = scores.shape[1]
        self._moved_tokens, shift = moved_together(blocks)
        self._there = torch.ones(scores.shape, dtype=torch.bool)
        self.scores = scores.clone()
        self._recall()
        order = self.scores.masked_fill(~self._there, -1.0)
        order[:, :head].masked_fill_(self._there[:, :head], torch.inf)
        best = torch.sort(order, dim=1, descending=True, stable=True).indices[:, :most]
        self.kept = torch.zeros_like(self._there).scatter_(1, best, value=True) & self._there
        before = torch.arange(self.stop).expand(scores.shape) - shift
        moved = self._there[:, : self._moved_tokens]
        before = torch.cat([_places(moved, self._moved_tokens - shift), before[:, self._moved_tokens :]], 1)
        self.num_positions = int(self.kept.sum(1).max())
        self.distances = _places(self.kept, self.num_positions) - before
        self.tail_distance = self.num_positions - (self.stop - shift)

    def block(
        self, start: int, end: int, whole: Sequence[torch.Tensor], rotation: Rotation, geometry: KVGeometry
    ) -> PrunedBlock:
        """What is kept of the tokens `start` to `end`; `whole`: those of them that were not moved before, a tensor per
        region group."""
        old = self._old_block(start)
        first = min(max(start, self._moved_tokens), end)  # of those in `whole`
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for layer in range(len(geometry.layers)):
            (key_group, key_region), (value_group, value_region) = (
                geometry.place(layer, is_key=is_key) for is_key in (True, False)
            )
            for head, lane in enumerate(geometry.lanes(layer)):
                kept_keys: list[torch.Tensor] = []
                if old is not None:
                    marks = self.kept[lane, start:first][self._there[lane, start:first]]
                    key, value = old.lane(layer, head, geometry)
                    kept_keys.append(key[marks.to(key.device)])
                    values.append(value[marks.to(value.device)].reshape(-1))
                if first < end:
                    marks = self.kept[lane, first:end].to(whole[key_group].device)
                    kept_keys.append(whole[key_group][key_region, :, head][marks])
                    values.append(whole[value_group][value_region, :, head][marks].reshape(-1))
                distances = self.distances[lane, start:end][self.kept[lane, start:end]]
                keys.append(rotation.moved(layer, torch.cat(kept_keys), distances).reshape(-1))
        kept = self.kept[:, start:end]
        return PrunedBlock(
            KVZIP,
            kept.sum(1, dtype=torch.int32),
            torch.arange(end - start).expand_as(kept)[kept].to(torch.uint8),
            torch.cat(keys),
            torch.cat(values),
            scores=self.scores[:, start:end][kept].to(torch.float16),
            moved=torch.tensor([self.stop, self.num_positions], dtype=torch.int32),
        )

    def _recall(self) -> None:
        """What the pairs were worth that are left of those moved before."""
        position = 0
        for block in self.blocks:
            encoded = block.encoded
            if position >= self._moved_tokens or not isinstance(encoded, PrunedBlock) or encoded.scores is None:
                break
            end = position + block.num_tokens
            lanes = torch.repeat_interleave(torch.arange(len(encoded.counts)), encoded.counts.long())
            places = encoded.positions.long() + position
            self._there[:, position:end] = False
            self._there[lanes, places] = True
            self.scores[lanes, places] = encoded.scores.float()
            position = end

    def _old_block(self, start: int) -> PrunedBlock | None:
        """What begins at `start` of what was moved before: always at multiples of `PRUNED_TOKENS`."""
        if start >= self._moved_tokens:
            return None
        encoded = self.blocks[start // PRUNED_TOKENS].encoded
        assert isinstance(encoded, PrunedBlock)
        return encoded


def _places(kept: torch.Tensor, end: int) -> torch.Tensor:
    """The position of each pair kept, bool `[lanes, tokens]`, when each lane's last one is at `end` - 1."""
    return kept.cumsum(1) - 1 + (end - kept.sum(1, keepdim=True))
