"""`ember bench kvzip`: how little of a cache the model needs to find the facts in it again."""

from __future__ import annotations

import torch

from engine.compression import can_compress
from engine.fidelity import recall
from engine.fidelity.recall import FACTS, Questions, ask, most_asked_tokens, plant
from engine.fidelity.schemes import FULL, Scheme, put_through
from engine.fidelity.speed import MOST_STEPS, compare_speed
from engine.kv.pruned import KVZIP
from engine.kv.resident import Resident
from engine.lab.lab import CannotMeasureError, Lab, Row
from engine.lab.source import kvzip_scores, read_source

USUAL = 1100
SHARES = (100, 70, 50, 30, 20, 10)
_LEAST = 600  # below it there is hardly a text around the facts


def kvzip(lab: Lab, context: int | None) -> dict[str, object]:
    """Raises ContextOverflowError, CannotMeasureError, StoppedError."""
    lab.need_crop()
    if not can_compress(lab.model):
        raise CannotMeasureError(
            f"The cache of {lab.model.info.name} cannot be compressed, as not all of its layers see the whole chat;"
            " choose another model.",
            lab.model.info.name,
            "windowed",
        )
    room = max(most_asked_tokens(lab.model), MOST_STEPS)
    context = lab.length(context, USUAL, least=_LEAST, room=room)
    lab.plan(2 + len(SHARES))
    questions = plant(lab.model, context)
    source = read_source(lab, questions.prefix, room)
    lab.step()
    with torch.inference_mode():
        scores = kvzip_scores(lab, source)
        lab.step()
        rows: list[Row] = []
        for percent in SHARES:
            rows.append(_measure(lab, percent, source, scores, questions))
            lab.step(rows[-1])
    source.give_up()
    return {
        "context": len(questions.prefix),
        "rows": rows,
        "facts": [fact.sentence for fact in FACTS],
        "answer_tokens": recall.MOST_ANSWER_TOKENS,
        **lab.facts(),
    }


def _measure(lab: Lab, percent: int, source: Resident, scores: torch.Tensor, questions: Questions) -> Row:
    lab.check()
    scheme = FULL if percent == 100 else Scheme(f"kvzip-{percent}", method=KVZIP, keep=percent / 100)
    kept = put_through(scheme, source, scores, lab.model)
    recalled = ask(lab.model, kept.cache, questions, lab.is_cancelled)
    full = put_through(FULL, source, None, lab.model)
    speed = compare_speed(lab.model.forward, kept.cache, full.cache, lab.ids(MOST_STEPS), lab.is_cancelled)
    row: Row = {
        "scheme": scheme.name,
        "keep_percent": percent,
        "kept": kept.resident.kept,
        "bytes": kept.steady_bytes,
        "ratio": kept.ratio,
        "ratio_whole": kept.ratio_whole,
        "recalled": sum(recalled),
        "asked": len(recalled),
        "recall": sum(recalled) / len(recalled),
        "facts_recalled": recalled,
        **speed.figures(),
    }
    kept.resident.give_up()
    return row
