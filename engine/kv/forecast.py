"""How much of a prompt a chat's next turn would find in memory and on disk: `CacheManager.activate`, only looked at.

It takes the same choices in the same order, on outlines. Nothing is read but manifests that are in memory, and at most
the header of one file. Inference thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.kv.choices import may_share
from engine.kv.outline import Outline
from engine.kv.resident import Resident, common_prefix
from engine.protocol.misses import Miss

if TYPE_CHECKING:
    from engine.kv.manager import CacheManager


@dataclass(frozen=True, slots=True)
class Forecast:
    """`reused` tokens, of which `from_disk` would be restored and `copied` copied within memory first; the next one's
    position is `shift` before its number. `moved_tokens`: see `Outline`. `is_exact`: they are in full precision.
    """

    reused: int
    from_disk: int
    copied: int
    miss: Miss | None
    moved_tokens: int = 0
    shift: int = 0
    is_exact: bool = True


def forecast(caches: CacheManager, key: str, token_ids: Sequence[int], history_tokens: int) -> Forecast:
    """What `activate` with the same arguments would come to, as long as no file turns out to be damaged."""
    wanted = token_ids[: len(token_ids) - 1]
    resident = caches.resident(key)
    can_persist = caches.model.can_persist
    chat = Outline.of(resident) if resident is not None and can_persist else Outline(key)
    from_disk = 0
    if not chat.length:
        branch = caches.choices.moved_branch(key, wanted, caches.residents) if can_persist else None
        lossy = caches.choices.lossy_manifest(key, wanted) if branch is None else None
        if branch is not None:
            chat = Outline.of(branch[0]).begun(key, branch[1])
        elif lossy is not None:
            chat = Outline.of_manifest(*lossy, caches.persistence.compressed.layout)
            from_disk = lossy[1]
    known_length = chat.length
    common = common_prefix(chat.token_ids, token_ids)
    others = [one for one in caches.residents if one is not resident and may_share(one, key)]
    if caches.choices.comes_back_exact(chat, wanted):
        chat, from_disk = Outline(key), 0
    elif caches.choices.is_resumed_in_place(chat, wanted, others):
        chat = chat.resumed()
    reused, is_exact = chat.cut(min(common, len(wanted))) if chat.is_active else (0, True)
    copied = 0
    moved = (chat.moved_tokens, chat.shift) if reused >= chat.moved_tokens else (0, 0)
    if can_persist:
        reached, is_best_exact = _in_memory(chat, others, wanted)
        if reached > reused:
            copied = reached - (reused if is_exact and caches.can_crop else 0)
            reused, is_exact = reached, is_best_exact
            moved = 0, 0
    miss: Miss | None = None
    from_disk = min(from_disk, reused) if not is_exact else 0
    if can_persist and is_exact:
        read, miss = caches.filler.on_disk(key, wanted, reused, can_crop=caches.can_crop)
        from_disk += read
        reused += read
    found = [miss] if miss is not None else []
    miss = caches.reasons.miss(key, token_ids, history_tokens, found, known_length, common, reused, caches.can_crop)
    return Forecast(reused, from_disk, copied, miss, *moved, is_exact=is_exact or not reused)


def _in_memory(chat: Outline, others: Sequence[Resident], wanted: Sequence[int]) -> tuple[int, bool]:
    """How far the copy that reaches furthest would reach, and whether it is exact. Of equals the chat's own wins."""
    best = chat.usable(wanted) if not chat.is_active else 0, chat.is_exact
    for one in others:
        if one.is_exact and (usable := one.usable(wanted)) > best[0]:
            best = usable, True
    return best
