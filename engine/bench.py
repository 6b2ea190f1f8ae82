"""The measurements behind `ember bench`, by name: each returns the JSON object of the public contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.fidelity import measure as fidelity
from engine.lab.attention import attention
from engine.lab.heads import heads
from engine.lab.kvzip import kvzip
from engine.lab.lab import Lab, Row, Tell, finite
from engine.lab.loop import loop
from engine.lab.memory import memory
from engine.lab.precisions import precisions
from engine.lab.prefill_decode import prefill_decode
from engine.lab.resume import resume
from engine.lab.shared_prefix import shared_prefix
from engine.lab.speed import decode, prefill
from engine.lab.use_cache import use_cache
from engine.model.forward import is_out_of_memory
from engine.model.loader import LoadedModel
from engine.protocol.commands import BenchName, RunBench
from engine.protocol.config import EngineConfig
from engine.protocol.errors import OutOfMemoryError

_USUAL_FIDELITY = 1000
_EXPERIMENTS: dict[BenchName, Callable[[Lab, int | None], dict[str, object]]] = {
    BenchName.DECODE: decode,
    BenchName.PREFILL: prefill,
    BenchName.RESUME: resume,
    BenchName.FIDELITY: lambda lab, context: fidelity.run(
        lab.model, context or _USUAL_FIDELITY, lab.config.prefill_chunk, lab.is_cancelled, on_progress=lab.progress
    ),
    BenchName.USE_CACHE: use_cache,
    BenchName.MEMORY: memory,
    BenchName.LOOP: loop,
    BenchName.PRECISIONS: precisions,
    BenchName.ATTENTION: attention,
    BenchName.SHARED_PREFIX: shared_prefix,
    BenchName.HEADS: heads,
    BenchName.KVZIP: kvzip,
    BenchName.PREFILL_DECODE: prefill_decode,
}


def _tell_nobody(done: int, total: int, row: Row | None) -> None:
    pass


def run(
    command: RunBench,
    model: LoadedModel,
    config: EngineConfig,
    is_cancelled: Callable[[], bool],
    tell: Tell = _tell_nobody,
) -> dict[str, object]:
    """Measure at `context` tokens; `tell` hears of every step and row (see `BenchProgress`).

    Raises ContextOverflowError, CannotMeasureError, NoScratchError, StoppedError when cancelled.
    """
    lab = Lab(model, config, is_cancelled, tell)
    # Caches of the chats stay where they are: a measurement that runs out of memory has to end instead.
    in_use, model.forward.on_out_of_memory = model.forward.on_out_of_memory, lambda: False
    try:
        with torch.random.fork_rng():
            found: dict[str, Any] = finite(_EXPERIMENTS[command.name](lab, command.context))
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError("Memory ran out while measuring; choose a smaller --context.") from error
    finally:
        model.forward.on_out_of_memory = in_use
    context = {"context": found["context"]} if "context" in found else {}
    return {**context, "model": model.info.name, "weights": str(model.info.weights), **found}
