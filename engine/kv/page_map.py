"""Where every block of every conversation is, run-length encoded: what the window's page map draws. Inference thread.

Asked for amid replies, so it must cost next to nothing: a chat in full precision is looked at in three list
comprehensions, and what is on disk is worked out again only when a manifest has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from engine.kv.block_keys import BLOCK_TOKENS
from engine.kv.blocks import Block, share_kept
from engine.kv.chat_key import conversation_of
from engine.kv.pressure import HIGH_WATER_PERCENT, LOW_WATER_PERCENT
from engine.kv.resident import Resident
from engine.kv.store.page_map import StoredPages, stored_pages
from engine.protocol.config import EngineConfig
from engine.protocol.events import BlockPlace, BlockRun, BlocksReported, ConversationBlocks

if TYPE_CHECKING:
    from engine.kv.manager import CacheManager


class PageMap:
    """Reads the manager's caches and changes none."""

    def __init__(self, caches: CacheManager) -> None:
        self._caches = caches
        self._stored: dict[str, StoredPages] = {}
        self._disk_bytes = 0
        self._version: tuple[int, ...] = ()

    def report(self, request_id: str, config: EngineConfig) -> BlocksReported:
        caches = self._caches
        self._read_catalogs()
        branches: dict[str, list[Resident]] = {}
        for one in reversed(caches.residents):
            if one.length:
                branches.setdefault(conversation_of(one.conversation_id), []).append(one)
        rows = [self._in_memory(key, residents) for key, residents in branches.items()]
        disk_bps = caches.rates.snapshot().disk_bps
        rows += [pages.row(key, disk_bps) for key, pages in self._stored.items() if key not in branches]
        high = config.memory_budget_bytes * HIGH_WATER_PERCENT // 100
        if caches.model.device.type == "cpu":
            high = caches.most_bytes  # less where other programs took the memory
        return BlocksReported(
            request_id=request_id,
            conversations=tuple(rows),
            memory_bytes=caches.memory_bytes,
            budget_bytes=config.memory_budget_bytes,
            disk_bytes=self._disk_bytes,
            high_water_bytes=high,
            low_water_bytes=high * LOW_WATER_PERCENT // HIGH_WATER_PERCENT,
            disk_cap_bytes=config.disk_cap_bytes,
            spare_bytes=caches.spare.nbytes,
        )

    def _read_catalogs(self) -> None:
        persistence = self._caches.persistence
        catalogs = (persistence.catalog, persistence.compressed.catalog)
        version = tuple(catalog.version for catalog in catalogs)
        if version != self._version:
            self._version = version
            self._disk_bytes = persistence.collector.total_bytes
            full = self._caches.model.geometry.precision
            self._stored = stored_pages([one for catalog in catalogs for one in catalog.stored()], full)

    def _in_memory(self, conversation_id: str, branches: Sequence[Resident]) -> ConversationBlocks:
        """`branches`: most recent first."""
        geometry = self._caches.model.geometry
        held = Counter(id(block) for one in branches for block in one.blocks) if len(branches) > 1 else None
        seen: set[int] = set()
        runs: list[BlockRun] = []
        for one in branches:
            runs += self._runs(one, held, seen)
            if held is not None:
                seen.update(map(id, one.blocks))
        last = branches[0]
        pruned = [block for block in last.blocks if block.is_pruned] if last.loss else []
        return ConversationBlocks(
            conversation_id=conversation_id,
            runs=tuple(runs),
            tokens=last.length,
            precision=_precision(runs, last.loss, geometry.precision),
            kept=share_kept(pruned, last.length, geometry),
            held_bytes=sum(run.bytes for run in runs) + sum(one.slack_bytes for one in branches),
        )

    def _runs(self, one: Resident, held: Counter[int] | None, seen: set[int]) -> list[BlockRun]:
        """Of one branch, less the blocks already `seen` in another one of the conversation."""
        blocks = one.blocks
        covered = sum(block.num_tokens for block in blocks) if one.loss or held is not None else _covered(blocks)
        if held is not None:
            blocks = [block for block in blocks if id(block) not in seen]
            shared = [block.refs > held[id(block)] for block in blocks]
        else:
            shared = [block.refs > 1 for block in blocks]
        is_plain = not one.loss and not self._caches.pool.device_bytes
        runs = list(self._full_runs(blocks, shared) if is_plain else self._mixed_runs(blocks, shared))
        precision, device = self._caches.model.geometry.precision, self._caches.model.device.type
        if one.working is not None:
            tokens, nbytes = max(0, one.length - covered), one.working.hot_bytes
            place = BlockPlace.MEMORY if device == "cpu" else BlockPlace.DEVICE
            if tokens:
                runs.append(BlockRun(_cells(tokens), tokens, precision, False, place, nbytes))
                return runs
        else:
            nbytes = one.buffer_bytes
        if nbytes and runs:  # states, and what is in its own memory as well as in shared blocks
            run = runs[-1]
            runs[-1] = BlockRun(run.count, run.tokens, run.precision, run.is_shared, run.place, run.bytes + nbytes)
        return runs

    def _full_runs(self, blocks: Sequence[Block], shared: Sequence[bool]) -> Iterator[BlockRun]:
        """All in full precision and in host memory; only the last one may be short."""
        geometry = self._caches.model.geometry
        marks, start = bytes(shared), 0
        while start < len(marks):
            stop = marks.find(1 - marks[start], start)
            stop = len(marks) if stop < 0 else stop
            tokens = _covered(blocks[start:stop])
            nbytes = tokens * geometry.bytes_per_token
            yield BlockRun(stop - start, tokens, geometry.precision, bool(marks[start]), BlockPlace.MEMORY, nbytes)
            start = stop

    def _mixed_runs(self, blocks: Sequence[Block], shared: Sequence[bool]) -> Iterator[BlockRun]:
        full = self._caches.model.geometry.precision
        sizes: dict[tuple[str, int], int] = {}  # an encoded block's size is that of its kind; a pruned one's its own

        def nbytes(block: Block) -> int:
            if block.encoded is None or block.is_pruned:
                return block.nbytes
            kind = (block.encoded.codec, block.num_tokens)
            if kind not in sizes:
                sizes[kind] = block.nbytes
            return sizes[kind]

        kinds = [
            (block.encoded.codec if block.encoded is not None else full, is_shared, block.place)
            for block, is_shared in zip(blocks, shared, strict=True)
        ]
        for (precision, is_shared, place), group in groupby(zip(kinds, blocks, strict=True), key=lambda pair: pair[0]):
            run = [block for _, block in group]
            tokens = sum(block.num_tokens for block in run)
            where = BlockPlace.MEMORY if place == "cpu" else BlockPlace.DEVICE
            yield BlockRun(_cells(tokens), tokens, precision, is_shared, where, sum(map(nbytes, run)))


def _covered(blocks: Sequence[Block]) -> int:
    """Tokens of blocks in full precision, of which only the last one may be short."""
    return (len(blocks) - 1) * BLOCK_TOKENS + blocks[-1].num_tokens if blocks else 0


def _cells(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


def _precision(runs: Iterable[BlockRun], loss: str, full: str) -> str:
    """As `Resident.precision` tells it."""
    kinds = {run.precision for run in runs} - {full}
    if not kinds:
        return loss or full
    return kinds.pop() if len(kinds) == 1 else "mixed"
