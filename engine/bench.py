"""The measurements behind `ember bench`: each returns the JSON object of the public contract."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from engine.fidelity import measure as fidelity
from engine.generation.prefill import prefill
from engine.kv.manager import CacheManager
from engine.kv.store.writer import SaveResult
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel
from engine.protocol.commands import BenchName, RunBench
from engine.protocol.config import EngineConfig
from engine.protocol.errors import ContextOverflowError, EngineError

_TEXT = (
    "A harbour town keeps its own time. The ferries leave when the tide allows, the bakers rise before the gulls, "
    "and the lighthouse keeper writes down every ship that passes, with its cargo, its flag and the hour. "
)
_DECODE_STEPS = 32
_NEXT_MESSAGE_TOKENS = 12
_SAVE_TIMEOUT_S = 120.0


class BenchFailedError(EngineError):
    """A measurement could not be completed."""

    code = "bench"


def run(
    command: RunBench, model: LoadedModel, config: EngineConfig, is_cancelled: Callable[[], bool]
) -> dict[str, object]:
    """Measure at `context` tokens. Raises ContextOverflowError, BenchFailedError, or EngineError when cancelled."""
    if command.name is BenchName.FIDELITY:
        found = fidelity.run(model, command.context, config.prefill_chunk, is_cancelled)
        return {**found, "weights": str(model.info.weights)}
    needed = command.context + _DECODE_STEPS + _NEXT_MESSAGE_TOKENS
    if command.context < 1 or needed > model.info.context_length:
        raise ContextOverflowError(
            f"--context must be between 1 and {model.info.context_length - _DECODE_STEPS - _NEXT_MESSAGE_TOKENS:,}"
            f" for {model.info.name}.",
            prompt_tokens=str(command.context),
            context_length=str(model.info.context_length),
        )
    bench = _Bench(model, config, is_cancelled)
    measure = {BenchName.DECODE: bench.decode, BenchName.PREFILL: bench.prefill, BenchName.RESUME: bench.resume}
    result = measure[command.name](command.context)
    return {"context": command.context, "model": model.info.name, "weights": str(model.info.weights), **result}


class _Bench:
    def __init__(self, model: LoadedModel, config: EngineConfig, is_cancelled: Callable[[], bool]) -> None:
        self._model = model
        self._config = config
        self._is_cancelled = is_cancelled

    def decode(self, context: int) -> dict[str, object]:
        cache = self._filled(context)
        started = time.perf_counter()
        for token_id in self._ids(_DECODE_STEPS):
            self._model.forward([token_id], cache)
        elapsed = time.perf_counter() - started
        return {"decode_tps": _DECODE_STEPS / elapsed, "ms_per_token": elapsed / _DECODE_STEPS * 1e3}

    def prefill(self, context: int) -> dict[str, object]:
        started = time.perf_counter()
        self._filled(context)
        return {"prefill_tps": context / (time.perf_counter() - started)}

    def resume(self, context: int) -> dict[str, object]:
        """A chat of `context` tokens gets one more message: read from the start, and resumed from its snapshot."""
        prompt = self._ids(context + _NEXT_MESSAGE_TOKENS)
        done = threading.Event()
        results: list[SaveResult] = []

        def on_done(result: SaveResult) -> None:
            results.append(result)
            done.set()

        self._config.kv_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bench-", dir=self._config.kv_dir) as folder:
            caches = CacheManager(self._model, self._config, on_done, lambda event: None, kv_dir=Path(folder))
            try:
                started = time.perf_counter()
                cache = self._filled(context, caches.activate("bench", prompt[:context]).cache)
                self._feed(prompt[context:], cache)
                cold_s = time.perf_counter() - started
                cache.rollback(context)
                reason = caches.save("bench", "bench")
                if reason is not None or not done.wait(_SAVE_TIMEOUT_S) or results[0].error is not None:
                    raise BenchFailedError(f"The snapshot could not be saved ({reason or results}).")
                del cache
                caches.close(_SAVE_TIMEOUT_S)
                caches = CacheManager(self._model, self._config, on_done, lambda event: None, kv_dir=Path(folder))
                copy_s = _copy_s(context * self._model.geometry.bytes_per_token)
                started = time.perf_counter()
                active = caches.activate("bench", prompt)
                restore_s = time.perf_counter() - started
                self._feed(prompt[active.reused :], active.cache)
                resumed_s = time.perf_counter() - started
            finally:
                caches.close(_SAVE_TIMEOUT_S)
        return {
            "cold_ttft_s": cold_s,
            "resumed_ttft_s": resumed_s,
            "ratio": cold_s / resumed_s,
            "restore_s": restore_s,
            "restore_to_copy_ratio": restore_s / copy_s,
            "reused_tokens": active.reused,
            "save_s": results[0].save_s,
            "bytes_written": results[0].bytes_written,
        }

    def _ids(self, count: int) -> list[int]:
        text_ids: list[int] = self._model.tokenizer.encode(_TEXT, add_special_tokens=False)
        return (text_ids * (count // len(text_ids) + 1))[:count]

    def _filled(self, context: int, cache: WorkingCache | None = None) -> WorkingCache:
        if cache is None:
            cache = self._model.new_cache(context)
        self._feed(self._ids(context), cache)
        return cache

    def _feed(self, ids: list[int], cache: WorkingCache) -> None:
        chunk = self._config.prefill_chunk
        if prefill(self._model.forward, cache, ids, chunk, self._is_cancelled, lambda done, total: None) is None:
            raise BenchFailedError("The measurement was stopped.")


def _copy_s(nbytes: int) -> float:
    """Seconds to copy this much from memory to memory: the bandwidth that a restore is held against."""
    source, target = torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)
    times: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - started)
    return min(times)
