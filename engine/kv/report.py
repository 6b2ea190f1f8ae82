"""The whole cache in numbers: sums of tensors in memory and of files on disk, by conversation, what is shared once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from engine.kv.chat_key import conversation_of
from engine.kv.resident import Resident
from engine.kv.store.report import report_disk
from engine.memory import read_memory
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
    """Every known conversation's place, in memory (most recent first) and on disk; its branches are told as one."""
    disk = report_disk(caches.persistence.catalog.files.kv_dir, config.memory_budget_bytes)
    on_disk = {row.conversation_id: row for row in disk.conversations}
    residents: dict[str, list[Resident]] = {}
    for one in reversed(caches.residents):
        residents.setdefault(conversation_of(one.conversation_id), []).append(one)
    wanted = conversation_ids if conversation_ids is not None else [*residents, *on_disk]
    ready = caches.persistence.stored_conversations()
    rows = [
        _row(key, residents.get(key, ()), on_disk.get(key), caches, model, is_ready=key in ready)
        for key in dict.fromkeys(wanted)
    ]
    memory = caches.memory_bytes
    used = memory - caches.spare.nbytes
    slack = sum(one.slack_bytes for one in caches.residents)
    shared = _shared_bytes(residents.values())
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
        memory=read_memory(model.device.type),
    )


def _shared_bytes(conversations: Collection[Sequence[Resident]]) -> int:
    """Of blocks that more than one conversation holds, each once."""
    holders = Counter(key for branches in conversations for key in {id(b) for one in branches for b in one.blocks})
    blocks = {id(block): block for branches in conversations for one in branches for block in one.blocks}
    return sum(block.nbytes for key, block in blocks.items() if holders[key] > 1)


def _row(
    key: str,
    branches: Sequence[Resident],
    stored: ConversationCache | None,
    caches: CacheManager,
    model: LoadedModel,
    *,
    is_ready: bool,
) -> ConversationCache:
    """`branches` in memory, most recent first: state, place, precision and tokens are those of the first one.

    `is_ready`: what is on disk fits this model.
    """
    branches = [one for one in branches if one.length]
    if not branches:
        is_ready = is_ready and stored is not None
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
    last = branches[0]
    held = Counter(id(block) for one in branches for block in one.blocks)
    blocks = {id(block): block for one in branches for block in one.blocks}
    return ConversationCache(
        conversation_id=key,
        tokens=last.length,
        memory_bytes=sum(block.nbytes for block in blocks.values()) + sum(one.buffer_bytes for one in branches),
        disk_bytes=stored.disk_bytes if stored is not None else 0,
        shared_bytes=sum(block.nbytes for index, block in blocks.items() if block.refs > held[index]),
        precision=last.precision(model.geometry.precision),
        kept=last.kept,
        place=last.place,
        state=CacheState.WARM,
        waste_bytes=sum(one.slack_bytes for one in branches),
        is_pinned=key in caches.pinned,
    )
