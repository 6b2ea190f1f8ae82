"""A text in a full cache, to be put through the ways of keeping one (`engine.fidelity.schemes`)."""

from __future__ import annotations

import torch

from engine.compression import repeat_prompts
from engine.fidelity.divergence import StoppedError
from engine.fidelity.schemes import extent_of
from engine.kv.blocks import BlockPool
from engine.kv.kvzip import CHUNK_TOKENS, LEAST_CHUNK, score
from engine.kv.resident import Resident
from engine.lab.lab import CannotMeasureError, Lab


def read_source(lab: Lab, ids: list[int], room: int) -> Resident:
    """An active chat of its own pool that has read `ids`, with room for so many more. Raises StoppedError."""
    source = Resident("lab", BlockPool(b"lab", lab.model.geometry))
    source.is_incognito = True
    source.working = lab.model.new_cache(len(ids) + room)
    lab.read(ids, source.working)
    source.working.checkpoint()
    return source


def kvzip_scores(lab: Lab, source: Resident) -> torch.Tensor:
    """See `engine.kv.kvzip.score`. Raises StoppedError, CannotMeasureError where there is no room for it."""
    prompts = repeat_prompts(lab.model)
    room = lab.model.info.context_length - source.length - prompts.most_tokens
    stop = extent_of(source.length).stop
    if source.working is None or not stop or room < LEAST_CHUNK:
        raise CannotMeasureError(
            f"{source.length:,} tokens are too few, or too many, to find out what matters in them; choose another"
            " --context.",
            lab.model.info.name,
            "scoring_room",
            tokens=str(source.length),
        )
    chunk = min(CHUNK_TOKENS, room)
    scores = score(lab.model.forward, source.working, prompts, stop, lab.is_cancelled, lambda done, total: None, chunk)
    if scores is None:
        raise StoppedError
    return scores
