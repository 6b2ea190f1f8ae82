"""What lies on disk of each conversation, as runs of blocks. Reads manifests only; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from engine.kv.block_keys import BLOCK_TOKENS
from engine.kv.chat_key import conversation_of
from engine.kv.pressure import HIGH_WATER_PERCENT, LOW_WATER_PERCENT
from engine.kv.store.catalog import Catalog
from engine.kv.store.files import StoreFiles
from engine.kv.store.records import Manifest, StoredChunk, is_pruned
from engine.kv.store.report import folder_bytes
from engine.kv.store.scan import StoredManifest
from engine.protocol.config import EngineConfig
from engine.protocol.events import BlockPlace, BlockRun, BlocksReported, ConversationBlocks

_ANY_FORMAT = -1
Stored = tuple[StoredManifest, tuple[StoredChunk, ...]]


@dataclass(slots=True)
class StoredPages:
    """One conversation's runs on disk; tokens, precision and share kept are those of the branch used last."""

    used_ns: int
    manifest: Manifest
    tokens: int
    precision: str
    runs: list[BlockRun] = field(default_factory=list)

    def row(self, conversation_id: str, disk_bps: float | None) -> ConversationBlocks:
        nbytes = sum(run.bytes for run in self.runs)
        back_s = nbytes / disk_bps if disk_bps else None
        return ConversationBlocks(
            conversation_id, tuple(self.runs), self.tokens, self.precision, self.manifest.kept, 0, back_s
        )


def stored_pages(stored: Iterable[Stored], full_precision: str = "") -> dict[str, StoredPages]:
    """Of everything that one model has on disk, by conversation, most recently used first.

    Of a branch that is there in full precision and compressed, what would be used; what branches share counts once.
    `full_precision`: for manifests that do not say.
    """
    used: dict[str, Stored] = {}
    for entry in stored:
        key = entry[0].manifest.conversation_id
        if key not in used or _rank(entry) > _rank(used[key]):
            used[key] = entry
    pages: dict[str, StoredPages] = {}
    seen: dict[str, set[str]] = {}
    for key, (one, chunks) in sorted(used.items(), key=lambda item: item[1][0].used_ns, reverse=True):
        conversation_id = conversation_of(key)
        precision = one.manifest.precision or full_precision
        tokens = sum(chunk.tokens for chunk in chunks)
        page = pages.setdefault(conversation_id, StoredPages(one.used_ns, one.manifest, tokens, precision))
        known = seen.setdefault(conversation_id, set())
        page.runs += _runs(conversation_id, [chunk for chunk in chunks if chunk.key not in known], precision)
        known.update(chunk.key for chunk in chunks)
    return pages


def report_stored_blocks(request_id: str, config: EngineConfig) -> BlocksReported:
    """Before a model is loaded: whatever lies on disk, each conversation under the model that used it last."""
    files = StoreFiles(config.kv_dir, _ANY_FORMAT)
    pages: dict[str, StoredPages] = {}
    total = 0
    for folder in _folders(files):
        total += folder_bytes(folder)
        fingerprint = files.digest_of(folder)
        if fingerprint is None:
            continue
        for key, page in stored_pages(Catalog(files, fingerprint).stored()).items():
            if key not in pages or _page_rank(page) > _page_rank(pages[key]):
                pages[key] = page
    newest_first = sorted(pages.items(), key=lambda item: item[1].used_ns, reverse=True)
    budget = config.memory_budget_bytes
    return BlocksReported(
        request_id=request_id,
        conversations=tuple(page.row(key, None) for key, page in newest_first),
        memory_bytes=0,
        budget_bytes=budget,
        disk_bytes=total,
        high_water_bytes=budget * HIGH_WATER_PERCENT // 100,
        low_water_bytes=budget * LOW_WATER_PERCENT // 100,
        disk_cap_bytes=config.disk_cap_bytes,
    )


def _folders(files: StoreFiles) -> list[Path]:
    try:
        return files.folders()
    except OSError:
        return []


def _page_rank(page: StoredPages) -> tuple[bool, int, int]:
    return is_pruned(page.manifest), page.tokens, page.used_ns


def _rank(stored: Stored) -> tuple[bool, int, bool]:
    manifest = stored[0].manifest
    return is_pruned(manifest), sum(chunk.tokens for chunk in stored[1]), manifest.is_exact


def _runs(conversation_id: str, chunks: Sequence[StoredChunk], precision: str) -> Iterable[BlockRun]:
    def is_shared(chunk: StoredChunk) -> bool:
        return any(conversation_of(user) != conversation_id for user in chunk.users)

    for shared, group in groupby(chunks, key=is_shared):
        run = list(group)
        tokens, nbytes = sum(chunk.tokens for chunk in run), sum(chunk.nbytes for chunk in run)
        count = sum(-(-chunk.tokens // BLOCK_TOKENS) for chunk in run)
        yield BlockRun(count, tokens, precision, shared, BlockPlace.DISK, nbytes)
