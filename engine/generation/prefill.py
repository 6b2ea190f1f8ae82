"""Feeds the part of a prompt that the cache does not hold yet, in chunks; progress and cancel act between chunks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.kv.working_cache import KVCache
from engine.model.forward import ForwardPass


def prefill(
    forward: ForwardPass,
    cache: KVCache,
    token_ids: list[int],
    chunk: int,
    is_cancelled: Callable[[], bool],
    on_progress: Callable[[int, int], None],
) -> torch.Tensor | None:
    """Feed `token_ids` (at least one) on top of `cache`, `chunk` at a time.

    Returns the logits after the last one, `[vocab]` in float32, or None when cancelled; what was fed stays cached.
    `on_progress(done, total)` is called before the first and after every chunk.
    """
    logits: torch.Tensor | None = None
    total = len(token_ids)
    on_progress(0, total)
    for start in range(0, total, chunk):
        if is_cancelled():
            return None
        logits = forward(token_ids[start : start + chunk], cache)
        on_progress(min(start + chunk, total), total)
    return None if is_cancelled() else logits
