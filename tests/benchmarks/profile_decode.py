"""One decode step of the loaded model at a given context: how long it takes, and by which of its parts.

.venv/bin/python -m tests.benchmarks.profile_decode --context 2048
.venv/bin/python -m tests.benchmarks.profile_decode --context 512 --weights 4bit --steps 64

The whole step is timed without a profiler, whatever runs it. Where one compiled kernel does all of it, the part that
grows with the context is told, and then the same step as torch operators do it, by their kinds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from app.paths import resources_dir
from engine.generation.prefill import prefill
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel, load_model
from engine.protocol.config import EngineConfig, Weights
from tests.benchmarks import machine, operator_times
from tests.benchmarks.operator_times import PartTime
from tests.benchmarks.peer_job import make_token_ids
from tests.benchmarks.peer_process import compile_now

_WARM_STEPS = 8
_PROFILED_STEPS = 8
_SHORT_CONTEXT = 64


@dataclass(frozen=True, slots=True)
class WholeStep:
    """Milliseconds of one step without a profiler, and the bytes that it has to read at least."""

    median_ms: float
    best_ms: float
    weights_bytes: int
    cache_bytes: int

    @property
    def bytes_a_second(self) -> float:
        return (self.weights_bytes + self.cache_bytes) / (self.median_ms / 1e3)


class Stepper:
    """A cache filled to `context`; every step decodes one token at the end of it and takes it back."""

    def __init__(self, model: LoadedModel, ids: Sequence[int], context: int, chunk: int) -> None:
        self._model = model
        self._context = context
        self._ids = ids
        self._cache: WorkingCache = model.new_cache(len(ids))
        prefill(model.forward, self._cache, list(ids[:context]), chunk, lambda: False, lambda done, total: None)

    def __call__(self) -> None:
        self._model.forward([self._ids[self._context]], self._cache)
        self._cache.rollback(self._context)

    def cut(self, context: int) -> None:
        self._context = context
        self._cache.rollback(context)

    def time(self, steps: int) -> WholeStep:
        for _ in range(_WARM_STEPS):
            self()
        times = []
        for _ in range(steps):
            started = time.perf_counter()
            self()
            times.append((time.perf_counter() - started) * 1e3)
        cache_bytes = self._context * self._model.geometry.bytes_per_token
        info = self._model.info
        second = info.second_copy_bytes  # the step reads this copy of the weights, torch the other
        weights_bytes = second if second and self._model.forward.step is not None else info.weights_bytes - second
        return WholeStep(statistics.median(times), min(times), weights_bytes, cache_bytes)


def whole_lines(name: str, whole: WholeStep) -> list[str]:
    return [
        f"{name}: {whole.median_ms:.2f} ms a step (median), {whole.best_ms:.2f} ms (best),"
        f" {1e3 / whole.median_ms:.1f} tok/s;",
        f"  reads {whole.weights_bytes / 1e6:.0f} MB of weights and {whole.cache_bytes / 1e6:.0f} MB of cache:"
        f" {whole.bytes_a_second / 1e9:.1f} GB a second",
    ]


def part_lines(whole: WholeStep, parts: Sequence[PartTime]) -> list[str]:
    """What the operators do not take is Python's and torch's way to them."""
    rows = [(one.part, one.self_ms, one.operators) for one in parts]
    rows.append(("outside operators (Python)", whole.median_ms - sum(one.self_ms for one in parts), 0))
    found = [f"  {'':28}{'ms':>8}{'share':>8}{'operators':>11}"]
    for part, took_ms, count in rows:
        found.append(f"  {part:28}{took_ms:8.2f}{took_ms / whole.median_ms:8.0%}{count or '':>11}".rstrip())
    between = ", ".join(f"{one.part} {one.python_ms:.1f}" for one in sorted(parts, key=lambda one: -one.python_ms)[:5])
    return [*found, f"  between operators with the profiler's own work, ms: {between}"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    compile_now()
    if (busy := machine.busy_percent()) > machine.BUSY_PERCENT:
        print(f"other programs use {busy:.0f}% of the processor", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ember-profile-") as scratch:
        config = EngineConfig(Path(scratch) / "kv", Path(scratch) / "converted", num_threads=options.threads)
        model = load_model(options.model, Weights(options.weights), config, lambda stage: None)
    print(f"{model.info.name}, {options.weights}, {options.context:,} tokens cached, {options.threads} threads")
    stepper = Stepper(model, make_token_ids(options.model, options.context + 1), options.context, config.prefill_chunk)
    compiled_step = model.forward.step
    compiled = stepper.time(options.steps) if compiled_step is not None else None
    if compiled is not None:
        print("\n".join(whole_lines("compiled step", compiled)), flush=True)
    model.forward.step = None  # its threads sleep by themselves, and torch does the steps
    whole = stepper.time(options.steps)
    parts = operator_times.measure(model.forward._model, stepper, _PROFILED_STEPS)
    print("\n".join([*whole_lines("torch operators", whole), *part_lines(whole, parts)]))
    if compiled is not None:
        model.forward.step = compiled_step
        stepper.cut(min(_SHORT_CONTEXT, options.context))
        beyond_ms = compiled.median_ms - stepper.time(options.steps).median_ms
        print(f"compiled step: {beyond_ms:.2f} ms of it for what is cached beyond {_SHORT_CONTEXT} tokens")
    model.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--weights", choices=[one.value for one in Weights], default=Weights.BITS_16.value)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--model", type=Path, default=resources_dir() / "models" / "SmolLM2-135M-Instruct")
    return parser


if __name__ == "__main__":
    sys.exit(main())
