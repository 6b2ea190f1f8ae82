"""`ember bench loop`: the decode loop by hand, step by step, and how the cache grows by one token each time."""

from __future__ import annotations

import contextlib
import datetime as dt
from functools import partial

import torch

from engine.lab.lab import Lab, Row
from engine.protocol.commands import ChatMessage, Role
from engine.protocol.errors import EngineError

NUM_STEPS = 24
NUM_BEST = 5
QUESTION = "What does a lighthouse keeper do? Answer in one sentence."
_DAY = dt.date(2024, 6, 3)  # for templates that print one


def loop(lab: Lab, context: int | None) -> dict[str, object]:
    """Greedy. `context`: so many tokens of a text are the prompt; None for a question. Raises EngineError."""
    model = lab.model
    prompt = lab.ids(lab.length(context, 1, least=1, room=NUM_STEPS)) if context is not None else _question(lab)
    lab.plan(NUM_STEPS)
    cache = model.new_cache(len(prompt) + NUM_STEPS)
    state: dict[str, torch.Tensor] = {}

    def feed(ids: list[int]) -> None:
        state["logits"] = lab.read(ids, cache)

    seconds = lab.timed(lambda: feed(prompt))
    fed = len(prompt)
    rows: list[Row] = []
    chosen: list[int] = []
    reason = "length"
    for number in range(1, NUM_STEPS + 1):
        best = _best(lab, state["logits"])
        token_id = best[0]["id"]
        assert isinstance(token_id, int)
        chosen.append(token_id)
        rows.append(
            {
                "step": number,
                "fed": fed,
                "ms": seconds * 1e3,
                "cache_tokens": cache.length,
                "cache_bytes": cache.nbytes,
                "id": token_id,
                "text": best[0]["text"],
                "best": best,
            }
        )
        lab.step(rows[-1])
        if token_id in model.stop_ids:
            reason = "stop"
            break
        if number < NUM_STEPS:
            seconds, fed = lab.timed(partial(feed, [token_id])), 1
    return {
        "context": len(prompt),
        "rows": rows,
        "question": QUESTION if context is None else None,
        "prompt": model.tokenizer.decode(prompt),
        "reply": model.tokenizer.decode(chosen),
        "finish_reason": reason,
        "bytes_per_token": model.geometry.bytes_per_token,
        **lab.facts(),
    }


def _question(lab: Lab) -> list[int]:
    """As a chat asks it; bare where the model's template takes no message, or its context is tiny."""
    model = lab.model
    ids: list[int] = []
    with contextlib.suppress(EngineError):
        ids = model.history.ids([ChatMessage(Role.USER, QUESTION)], started_on=_DAY)
    ids = ids or model.tokenizer.encode(QUESTION)
    return ids[-max(1, model.info.context_length - NUM_STEPS) :]


def _best(lab: Lab, logits: torch.Tensor) -> list[Row]:
    """The likeliest tokens, the best first, with their logits and probabilities."""
    probabilities = logits.double().softmax(-1)
    values, ids = torch.topk(logits, min(NUM_BEST, logits.shape[0]))
    return [
        {
            "id": token_id,
            "text": lab.model.tokenizer.decode([token_id]),
            "logit": value,
            "probability": float(probabilities[token_id]),
        }
        for value, token_id in zip(values.tolist(), ids.tolist(), strict=True)
    ]
