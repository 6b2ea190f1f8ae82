"""`ember bench shared-prefix`: chats that begin with the same words, with what they share kept once, and without."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from engine.kv.manager import CacheManager
from engine.lab.lab import Lab, Row
from engine.protocol.config import KV_AUTO

USUAL = 512
NUM_CHATS = 4
OWN_TOKENS = 64  # of each chat, after what they share
_LEAST = 32


def shared_prefix(lab: Lab, context: int | None) -> dict[str, object]:
    """`context`: tokens that all chats begin with. Raises ContextOverflowError, CannotMeasureError, StoppedError."""
    lab.need_crop()
    context = lab.length(context, USUAL, least=_LEAST, room=OWN_TOKENS + 1)
    lab.plan(2 * NUM_CHATS)
    rows = [*_chats(lab, context, is_shared=False), *_chats(lab, context, is_shared=True)]
    return {
        "context": context,
        "rows": rows,
        "chats": NUM_CHATS,
        "own_tokens": OWN_TOKENS,
        "totals": {name: _total(rows, is_shared=name == "shared") for name in ("apart", "shared")},
        **lab.facts(),
    }


def _chats(lab: Lab, context: int, *, is_shared: bool) -> list[Row]:
    """Caches of their own, in a folder of their own: the user's chats do not take part."""
    config = dataclasses.replace(lab.config, kv_precision=KV_AUTO)
    rows: list[Row] = []
    with lab.scratch() as folder:
        caches = CacheManager(lab.model, config, lambda result: None, lambda event: None, kv_dir=folder)
        try:
            for number in range(NUM_CHATS):
                rows.append(_one(lab, caches, context, number, is_shared=is_shared))
                lab.step(rows[-1])
        finally:
            caches.close(1.0)
    return rows


def _one(lab: Lab, caches: CacheManager, context: int, number: int, *, is_shared: bool) -> Row:
    shared, own = lab.ids(context), lab.ids(OWN_TOKENS, context + number * OWN_TOKENS)
    ids = [*shared, *own]
    before = lab.model.forward.tokens_fed
    name = f"chat-{number}"
    seconds = lab.timed(_first_token(lab, caches, name, ids, context, is_incognito=not is_shared))
    fed = lab.model.forward.tokens_fed - before
    caches.settle(name)
    caches.park_others("")  # as when the next chat is opened: full blocks are found and shared then
    caches.spare.release()
    return {
        "sharing": is_shared,
        "chat": number + 1,
        "prompt_tokens": len(ids),
        "tokens_fed": fed,
        "reused_tokens": len(ids) - fed,
        "ttft_s": seconds,
        "memory_bytes": caches.memory_bytes,
    }


def _first_token(
    lab: Lab, caches: CacheManager, name: str, ids: list[int], context: int, *, is_incognito: bool
) -> Callable[[], None]:
    """Chats that are incognito share nothing: each has its blocks for itself."""

    def run() -> None:
        active = caches.activate(name, ids, is_incognito=is_incognito)
        lab.read(ids[active.reused :], active.cache, checkpoint_at=context)

    return run


def _total(rows: list[Row], *, is_shared: bool) -> Row:
    mine = [row for row in rows if row["sharing"] is is_shared]
    later = [row["ttft_s"] for row in mine[1:]]
    return {
        "tokens_fed": sum(int(str(row["tokens_fed"])) for row in mine),
        "memory_bytes": mine[-1]["memory_bytes"],
        "later_ttft_s": sum(float(str(one)) for one in later) / len(later),
    }
