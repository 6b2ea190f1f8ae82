"""Putting chats away from memory because the user asked for it: saved first, then dropped, each step told.

Inference thread, between turns.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from engine.kv.chat_key import conversation_of
from engine.kv.pressure import Action, PressureKind
from engine.kv.relief import Relief
from engine.memory import return_freed_memory

if TYPE_CHECKING:
    from engine.kv.manager import CacheManager


def free_now(caches: CacheManager, relief: Relief, conversation_ids: Collection[str] | None) -> None:
    """All branches of these conversations, of all where there is None; the memory kept ready for the next chat too."""
    wanted = [
        one
        for one in caches.residents
        if one.length and (conversation_ids is None or conversation_of(one.conversation_id) in conversation_ids)
    ]
    for resident in wanted:
        key = resident.conversation_id
        if relief.can_save(resident) and not caches.is_kept_on_disk(resident):
            relief.carry_out(Action(PressureKind.SAVE, key, 0, 0.0))
        caches.persistence.writer.release(key)
        own = resident.own_bytes
        back_s = caches.rates.load_s(own)
        if not caches.is_kept_on_disk(resident):
            back_s = caches.rates.prefill_s(resident.length)
        relief.carry_out(Action(PressureKind.DROP, key, own, back_s))
    if conversation_ids is None:
        caches.spare.release()
    return_freed_memory()
