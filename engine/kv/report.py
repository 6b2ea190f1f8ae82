"""The whole cache in numbers: sums of tensors in memory and of files on disk, by conversation, what is shared once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.kv.resident import Resident
from engine.kv.store.report import report_disk
from engine.model.loader import LoadedModel
from engine.protocol.config import EngineConfig
from engine.protocol.events import CacheReported, CacheState, ConversationCache

if TYPE_CHECKING:
    from engine.kv.manager import CacheManager


def report_caches(
    request_id: str,
    conversation_ids: Sequence[str] | None,
    caches: CacheManager,
    model: LoadedModel,
    config: EngineConfig,
) -> CacheReported:
    """Every known conversation's place, in memory (most recent first) and on disk."""
    disk = report_disk(caches.persistence.catalog.files.kv_dir, config.memory_budget_bytes)
    on_disk = {row.conversation_id: row for row in disk.conversations}
    residents = {one.conversation_id: one for one in reversed(caches.residents)}
    wanted = conversation_ids if conversation_ids is not None else [*residents, *on_disk]
    rows = [_row(key, residents.get(key), on_disk.get(key), caches, model) for key in dict.fromkeys(wanted)]
    memory = caches.memory_bytes
    used = memory - caches.spare.nbytes
    slack = sum(one.slack_bytes for one in residents.values())
    blocks = {id(block): block for one in residents.values() for block in one.blocks}
    shared = sum(block.nbytes for block in blocks.values() if block.refs > 1)
    return CacheReported(
        request_id=request_id,
        budget_bytes=config.memory_budget_bytes,
        memory_bytes=memory,
        disk_bytes=disk.disk_bytes,
        shared_bytes=shared if memory else disk.shared_bytes,
        waste_ratio=slack / used if used else 0.0,
        conversations=tuple(rows),
        device_bytes=caches.device_bytes,
        disk_cap_bytes=config.disk_cap_bytes,
        spare_bytes=caches.spare.nbytes,
    )


def _row(
    key: str, resident: Resident | None, stored: ConversationCache | None, caches: CacheManager, model: LoadedModel
) -> ConversationCache:
    if resident is None or resident.length == 0:
        is_ready = stored is not None and caches.persistence.is_stored(key)
        return ConversationCache(
            conversation_id=key,
            tokens=stored.tokens if stored is not None and is_ready else 0,
            memory_bytes=0,
            disk_bytes=stored.disk_bytes if stored is not None else 0,
            shared_bytes=stored.shared_bytes if stored is not None else 0,
            precision=stored.precision if stored is not None and is_ready else model.geometry.precision,
            place="disk" if is_ready else "none",
            state=CacheState.ON_DISK if is_ready else CacheState.COLD,
            is_pinned=key in caches.pinned,
            kept=stored.kept if stored is not None and is_ready else 1.0,
        )
    return ConversationCache(
        conversation_id=key,
        tokens=resident.length,
        memory_bytes=resident.own_bytes + resident.shared_bytes,
        disk_bytes=stored.disk_bytes if stored is not None else 0,
        shared_bytes=resident.shared_bytes,
        precision=resident.precision(model.geometry.precision),
        kept=resident.kept,
        place=resident.place,
        state=CacheState.WARM,
        waste_bytes=resident.slack_bytes,
        is_pinned=key in caches.pinned,
    )
