"""What `ContextPolicy.COMPRESS` does when a chat has grown to the length that its model reads.

The pairs that matter least leave its cache, and what is left moves together (`engine.kv.compaction`), so that about
half of the context is free again. Nothing is read anew, and whatever is exact is saved first. Each pair is scored once:
what was moved before keeps its scores. Inference thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.compression import can_compress, repeat_prompts
from engine.kv.forecast import forecast
from engine.kv.kvzip import CHUNK_TOKENS, LEAST_CHUNK, SINK_TOKENS, RepeatPrompts, score
from engine.kv.manager import CacheManager
from engine.kv.resident import Resident, common_prefix
from engine.model.forward import is_out_of_memory
from engine.model.loader import LoadedModel
from engine.protocol.commands import ChatMessage, Role
from engine.protocol.errors import EngineError

_FREE_PART = 2  # of the context, one of so many is free afterwards
_TAIL_PART = 16  # and at most one of so many is kept whole at the end
_LEAST_TAIL, _MOST_TAIL = 128, 512
_LEAST_PART = 16  # what is thinned out is left at least one part of so many, or it is not worth it

IsCancelled = Callable[[], bool]
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The first `stop` tokens of a cache are thinned out to `most` pairs a lane; the first `head` stay before all."""

    head: int
    stop: int
    most: int

    @classmethod
    def of(
        cls,
        length: int,
        shift: int,
        *,
        first_stop: int,
        last_stop: int,
        head: int,
        to_come: int,
        context_length: int,
        least_room: int,
    ) -> Plan | None:
        """None where it would not help. `length` tokens stand `shift` positions before their number; what is thinned
        out ends from `first_stop` to `last_stop`; `to_come` positions have to be free afterwards; `least_room` are
        needed after what is scored."""
        after = min(context_length // _FREE_PART, context_length - to_come)
        tail = max(_LEAST_TAIL, min(_MOST_TAIL, context_length // _TAIL_PART))
        tail = max(tail, least_room - (context_length - (length - shift)))
        stop = max(first_stop, min(length - tail, last_stop))
        most = after - (length - stop)
        head = max(head, SINK_TOKENS)
        is_possible = first_stop <= stop <= last_stop and stop + least_room - shift <= context_length
        if not is_possible or not max(2 * head, context_length // _LEAST_PART) <= most < stop - shift:
            return None
        return cls(head, stop, most)


@dataclass(frozen=True, slots=True)
class Outlook:
    """How a prompt that is too long by itself fits: its next token's position is `shift` before its number, once
    `to_score` tokens were looked at anew, and what was left of them moved together."""

    shift: int
    to_score: int = 0


def can_move_together(model: LoadedModel, caches: CacheManager) -> bool:
    """Whether this model's caches can be thinned out and moved together."""
    return can_compress(model) and caches.rotation is not None


def outlook(
    model: LoadedModel,
    caches: CacheManager,
    key: str,
    messages: Sequence[ChatMessage],
    token_ids: Sequence[int],
    reserve: int,
) -> Outlook | None:
    """What the chat's cache would do for a prompt that leaves less than `reserve` tokens. None: it does not help.

    Nothing is changed or read.
    """
    if not can_move_together(model, caches):
        return None
    ahead = forecast(caches, key, token_ids, 0)
    rest = len(token_ids) - ahead.reused
    if model.info.context_length - (len(token_ids) - ahead.shift) >= reserve:
        return Outlook(ahead.shift)
    plan = _plan(
        model, messages, token_ids, ahead.reused, ahead.shift, ahead.moved_tokens, ahead.reused, rest + reserve
    )
    if plan is None:
        return None
    return Outlook(plan.stop - plan.most, plan.stop - ahead.moved_tokens)


def move_together(
    model: LoadedModel,
    caches: CacheManager,
    resident: Resident,
    messages: Sequence[ChatMessage],
    token_ids: Sequence[int],
    reserve: int,
    is_cancelled: IsCancelled,
    on_progress: OnProgress = lambda done, total: None,
) -> bool:
    """Make room in an active cache for the rest of `token_ids` and `reserve` more, if it can be made.

    Returns whether it was; nothing has changed otherwise.
    """
    cache = resident.working
    if cache is None or caches.rotation is None or (resident.is_pruned and not cache.moved_tokens):
        return False
    shared = common_prefix(cache.token_ids, token_ids)
    to_come = max(0, len(token_ids) - cache.length) + reserve
    plan = _plan(model, messages, token_ids, cache.length, cache.shift, max(1, cache.hot_start), shared, to_come)
    if plan is None:
        return False
    if resident.is_exact:
        caches.save_now(resident.conversation_id)
    caches.persistence.writer.release(resident.conversation_id)
    before = resident.own_bytes
    try:
        scores = _score(model, resident, plan, is_cancelled, on_progress)
        if scores is None:
            return False
        resident.move_together(scores, plan.head, plan.most, caches.rotation)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    except ValueError:
        return False
    caches.tell_compressed(resident, max(0, before - resident.own_bytes))
    return True


def _plan(
    model: LoadedModel,
    messages: Sequence[ChatMessage],
    token_ids: Sequence[int],
    length: int,
    shift: int,
    first_stop: int,
    last_stop: int,
    to_come: int,
) -> Plan | None:
    return Plan.of(
        length,
        shift,
        first_stop=first_stop,
        last_stop=last_stop,
        head=_head(model, messages, token_ids),
        to_come=to_come,
        context_length=model.info.context_length,
        least_room=repeat_prompts(model).most_tokens + LEAST_CHUNK,
    )


def _score(
    model: LoadedModel, resident: Resident, plan: Plan, is_cancelled: IsCancelled, on_progress: OnProgress
) -> torch.Tensor | None:
    """The end is put aside meanwhile: its positions are those that the repetition takes."""
    cache = resident.working
    assert cache is not None
    ids, stop, length = list(cache.token_ids), plan.stop, cache.length
    tail = [one.clone() for one in cache.arena.read(stop, length)]
    prompts: RepeatPrompts = repeat_prompts(model)
    room = model.info.context_length - (stop - cache.shift) - prompts.most_tokens
    cache.rollback(stop)
    try:
        return score(model.forward, cache, prompts, stop, is_cancelled, on_progress, min(CHUNK_TOKENS, room))
    finally:
        cache.reserve(length)
        cache.arena.write(stop, tail)
        cache.publish(ids)


def _head(model: LoadedModel, messages: Sequence[ChatMessage], token_ids: Sequence[int]) -> int:
    """How many of the tokens are the system prompt's."""
    system = [one for one in messages if one.role is Role.SYSTEM]
    if system:
        with contextlib.suppress(EngineError):
            return common_prefix(model.history.ids(system, add_generation_prompt=False), token_ids)
    return 0
