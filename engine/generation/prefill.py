"""Feeds the part of a prompt that the cache does not hold yet, in chunks; progress and cancel act between chunks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass


def prefill(
    forward: ForwardPass,
    cache: WorkingCache,
    token_ids: list[int],
    chunk: int,
    is_cancelled: Callable[[], bool],
    on_progress: Callable[[int, int], None],
    checkpoint_at: int | None = None,
) -> torch.Tensor | None:
    """Feed `token_ids` (at least one) on top of `cache`, `chunk` at a time.

    Returns the logits after the last one, `[vocab]` in float32, or None when cancelled; what was fed stays cached.
    `on_progress(done, total)` is called before the first and after every chunk. `checkpoint_at`: the cache length at
    which a cache that cannot be cropped is to remember its state.
    """
    logits: torch.Tensor | None = None
    total, done = len(token_ids), 0
    until_checkpoint = checkpoint_at - cache.length if checkpoint_at is not None else 0
    on_progress(0, total)
    while done < total:
        if is_cancelled():
            return None
        stop = min(done + chunk, total)
        if done < until_checkpoint < stop:
            stop = until_checkpoint
        logits = forward(token_ids[done:stop], cache)
        done = stop
        if done == until_checkpoint:
            cache.checkpoint()
        on_progress(done, total)
    return None if is_cancelled() else logits
