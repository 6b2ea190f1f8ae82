"""`ember bench resume`: a chat gets one more message, read from the start, and resumed from its snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from engine.kv.manager import CacheManager
from engine.kv.store.writer import SaveResult
from engine.lab.lab import CannotMeasureError, Lab, NoScratchError

USUAL = 2048
_NEXT_MESSAGE_TOKENS = 12
_ROOM = _NEXT_MESSAGE_TOKENS + 32
_SAVE_TIMEOUT_S = 120.0


def resume(lab: Lab, context: int | None) -> dict[str, object]:
    """Raises ContextOverflowError, CannotMeasureError, NoScratchError, StoppedError."""
    if not lab.model.can_persist:
        raise CannotMeasureError(
            f"The cache of {lab.model.info.name} cannot be saved; choose another model.",
            lab.model.info.name,
            "not_copied",
        )
    context = lab.length(context, USUAL, least=1, room=_ROOM)
    lab.plan(4)
    model = lab.model
    prompt = lab.ids(context + _NEXT_MESSAGE_TOKENS)
    done = threading.Event()
    results: list[SaveResult] = []

    def on_done(result: SaveResult) -> None:
        results.append(result)
        done.set()

    with lab.scratch() as folder:
        start = _starter(lab, on_done, folder)
        caches = start()
        try:
            started = time.perf_counter()
            cache = caches.activate("bench", prompt[:context]).cache
            lab.read(prompt[:context], cache)
            cache.checkpoint()
            lab.read(prompt[context:], cache)
            cold_s = time.perf_counter() - started
            lab.step()
            cache.rollback(context)
            not_queued = caches.save("bench", "bench")
            if not_queued is not None or not done.wait(_SAVE_TIMEOUT_S) or results[0].error is not None:
                raise _not_saved(folder, not_queued[1] if not_queued else "", results)
            del cache
            caches.close(_SAVE_TIMEOUT_S)
            lab.step()
            caches = start()
            copy_s = _copy_s(max(1, context * model.geometry.bytes_per_token))
            lab.step()
            started = time.perf_counter()
            active = caches.activate("bench", prompt)
            restore_s = time.perf_counter() - started
            lab.read(prompt[active.reused :], active.cache)
            resumed_s = time.perf_counter() - started
            lab.step()
        finally:
            caches.close(_SAVE_TIMEOUT_S)
    return {
        "context": context,
        "cold_ttft_s": cold_s,
        "resumed_ttft_s": resumed_s,
        "ratio": cold_s / resumed_s,
        "restore_s": restore_s,
        "restore_to_copy_ratio": restore_s / copy_s,
        "reused_tokens": active.reused,
        "save_s": results[0].save_s,
        "bytes_written": results[0].bytes_written,
    }


def _not_saved(folder: Path, words: str, results: list[SaveResult]) -> NoScratchError:
    error = results[0].error if results else None
    reason = words or (error.strerror or type(error).__name__ if error is not None else "it took too long")
    return NoScratchError(
        f"Ember cannot write to {folder.parent} ({reason}), which this measurement needs; free some space, and measure"
        " again.",
        path=str(folder.parent),
        reason=reason,
    )


def _starter(lab: Lab, on_done: Callable[[SaveResult], None], folder: Path) -> Callable[[], CacheManager]:
    return lambda: CacheManager(lab.model, lab.config, on_done, lambda event: None, kv_dir=folder)


def _copy_s(nbytes: int) -> float:
    """Seconds to copy this much from memory to memory: the bandwidth that a restore is held against."""
    source, target = torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)
    times: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - started)
    return min(times)
