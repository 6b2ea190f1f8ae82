"""`ember bench precisions`: what each codec makes of a cache: size, speed, predictions, and a reply."""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass

import torch

from engine.fidelity.divergence import Reference
from engine.fidelity.exact import exact_forward
from engine.fidelity.schemes import FULL, SCHEMES, Kept, Scheme, SchemeError, put_through
from engine.fidelity.speed import MOST_STEPS, compare_speed
from engine.kv.resident import Resident
from engine.lab.lab import Lab, Row
from engine.lab.source import read_source
from engine.model.forward import is_out_of_memory
from engine.protocol.commands import ChatMessage, Role
from engine.protocol.errors import EngineError

USUAL = 512
NAMES = ("full", "int8", "balanced", "compact", "bnb-8bit", "bnb-nf4")
SCORED_TOKENS = 64
REPLY_TOKENS = 60
_LEAST = 64
_QUESTION_TOKENS = 96  # most that the question and the template take
_QUESTION = "\n\nWhat is this text about? Answer in two sentences."
_DAY = dt.date(2024, 6, 3)  # for templates that print one


@dataclass(frozen=True, slots=True)
class _Chat:
    """A chat read up to its last token, which is fed to every cache anew."""

    source: Resident
    last: int


def precisions(lab: Lab, context: int | None) -> dict[str, object]:
    """Raises ContextOverflowError, CannotMeasureError, StoppedError."""
    lab.need_crop()
    room = max(SCORED_TOKENS + 1, REPLY_TOKENS + _QUESTION_TOKENS, MOST_STEPS)
    context = lab.length(context, USUAL, least=_LEAST, room=room)
    schemes = [scheme for name in NAMES for scheme in SCHEMES if scheme.name == name]
    lab.plan(2 + len(schemes))
    text = lab.ids(context + SCORED_TOKENS + 1)
    source = read_source(lab, text[:context], MOST_STEPS)
    lab.step()
    chat = _ask(lab, context)
    lab.step()
    with torch.inference_mode():
        exact = exact_forward(lab.model)
        reference = Reference(
            lab.model.forward,
            lambda: put_through(FULL, source, None, lab.model).cache,
            text[context:],
            lab.is_cancelled,
            exact,
        )
        full_reply = _reply(lab, put_through(FULL, chat.source, None, lab.model), chat)
        rows: list[Row] = []
        for scheme in schemes:
            rows.append(_measure(lab, scheme, source, reference, chat, full_reply))
            lab.step(rows[-1])
    source.give_up()
    chat.source.give_up()
    return {
        "context": context,
        "rows": rows,
        "scored_tokens": SCORED_TOKENS,
        "reply_tokens": len(full_reply),
        "arithmetic": "float32" if exact is not None else lab.model.info.dtype,
        **lab.facts(),
    }


def _measure(
    lab: Lab, scheme: Scheme, source: Resident, reference: Reference, chat: _Chat, full_reply: list[int]
) -> Row:
    """One codec; an `error` tells where it does not work with this model, or so short a text."""
    row: Row = {"scheme": scheme.name}
    try:
        kept = put_through(scheme, source, None, lab.model)
        figures = reference.divergence(kept.cache).figures()
        kept.resident.give_up()
        kept = put_through(scheme, source, None, lab.model)
        full = put_through(FULL, source, None, lab.model)
        speed = compare_speed(lab.model.forward, kept.cache, full.cache, lab.ids(MOST_STEPS), lab.is_cancelled)
        row |= {
            "bytes_per_token": kept.ratio * lab.model.geometry.bytes_per_token,
            "ratio": kept.ratio,
            "ratio_whole": kept.ratio_whole,
            "steady_bytes": kept.steady_bytes,
            "kl": figures["kl"],
            "top1": figures["top1"],
            **speed.figures(),
        }
        kept.resident.give_up()
        reply = _reply(lab, put_through(scheme, chat.source, None, lab.model), chat)
    except (SchemeError, RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return row | {"error": str(error)}
    pairs = zip(reply, full_reply, strict=False)
    first = next((index for index, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    if first is None and len(reply) != len(full_reply):
        first = min(len(reply), len(full_reply))
    decode = lab.model.tokenizer.decode
    return row | {
        "reply": decode(reply),
        "reply_ids": reply,
        "first_difference": first,
        "same_text": decode(reply if first is None else reply[:first]),
        "different_text": "" if first is None else decode(reply[first:]),
    }


def _ask(lab: Lab, context: int) -> _Chat:
    """About a text, as a chat would; its bare tokens where the model's template takes no message."""
    model = lab.model
    ids: list[int] = []
    text = str(model.tokenizer.decode(lab.ids(context), skip_special_tokens=True))
    with contextlib.suppress(EngineError):
        ids = model.history.ids([ChatMessage(Role.USER, text + _QUESTION)], started_on=_DAY)
    if not 2 <= len(ids) <= model.info.context_length - REPLY_TOKENS:
        ids = lab.ids(context + 1)
    return _Chat(read_source(lab, ids[:-1], REPLY_TOKENS + 1), ids[-1])


def _reply(lab: Lab, kept: Kept, chat: _Chat) -> list[int]:
    """Greedy, up to the token that ends it."""
    found: list[int] = []
    token_id = chat.last
    while len(found) < REPLY_TOKENS:
        lab.check()
        token_id = int(lab.model.forward([token_id], kept.cache).argmax())
        if token_id in lab.model.stop_ids:
            break
        found.append(token_id)
    kept.resident.give_up()
    return found
