"""Ember as one of the engines of `make peers`: the loader, the forward pass and the working cache that a chat has.

The variant is the precision of the weights: 16bit, 8bit or 4bit; "+int8" after it keeps all but the recent part of the
cache in 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine import bench
from engine.kv.blocks import BlockPool
from engine.kv.codecs.registry import codec_named
from engine.kv.relief import ACTIVE_RECENT_TOKENS
from engine.kv.resident import Resident
from engine.model.loader import load_model
from engine.protocol.commands import BenchName, RunBench
from engine.protocol.config import EngineConfig, Weights
from engine.protocol.errors import EngineError
from tests.benchmarks import peer_measures
from tests.benchmarks.peer_job import Job

_RESTART_KEYS = {"save_s": "save_s", "bytes_written": "saved_bytes", "restore_s": "restore_s"}


class EmberPeer:
    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        self._config = EngineConfig(
            job.scratch / "kv", job.scratch / "converted", prefill_chunk=job.chunk, num_threads=job.threads
        )
        weights, _, codec = job.variant.partition("+")
        self._model = load_model(job.model, Weights(weights), self._config, lambda stage: None)
        self._codec = codec_named(codec) if codec else None
        self._resident = Resident("peer", BlockPool(b"peer", self._model.geometry))
        self._resident.working = self._cache = self._model.new_cache(len(job.token_ids))
        self._logits = torch.empty(0)

    def feed(self, token_ids: Sequence[int]) -> None:
        self._logits = self._model.forward(token_ids, self._cache)
        if self._codec is not None and len(token_ids) > 1:
            self._resident.encode_cold(self._codec, ACTIVE_RECENT_TOKENS)

    def greedy(self) -> int:
        return int(self._logits.argmax())

    def rollback(self, num_tokens: int) -> None:
        self._cache.rollback(num_tokens)

    def kv_bytes_per_token(self) -> float:
        return self._cache.nbytes / max(1, self._cache.length)

    def restart(self, job: Job) -> dict[str, float] | None:
        """`ember bench resume`: through the cache manager and the store, with caches of its own."""
        command = RunBench("", BenchName.RESUME, job.longest)
        try:
            found: dict[str, Any] = bench.run(command, self._model, self._config, lambda: False)
        except EngineError as error:
            raise RuntimeError(str(error)) from error
        if found["reused_tokens"] < job.longest:
            raise RuntimeError(f"only {found['reused_tokens']:,} of {job.longest:,} tokens came back")
        return {
            "cold_ttft_s": found["cold_ttft_s"],
            "resumed_ttft_s": found["resumed_ttft_s"],
            **{name: found[key] for key, name in _RESTART_KEYS.items()},
        }

    def note(self) -> str:
        return "" if self._model.forward.step is not None else "the compiled step was not in use"

    def close(self) -> None:
        self._model.close()


if __name__ == "__main__":
    peer_measures.run(EmberPeer)
