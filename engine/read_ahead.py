"""After a turn, while nobody waits: the cache is brought to what the next prompt will begin with. Inference thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import torch

from engine import compaction, context_view
from engine.generation.prefill import prefill
from engine.kv.chat_key import chat_key
from engine.kv.manager import CacheManager
from engine.kv.prefill_speed import FEW_TOKENS
from engine.kv.resident import common_prefix
from engine.model.forward import is_out_of_memory
from engine.model.loader import LoadedModel
from engine.prompt import Prompt, answered
from engine.protocol.commands import ChatMessage, Generate
from engine.protocol.config import ContextPolicy
from engine.protocol.errors import EngineError
from engine.protocol.events import Event, Finished, FinishReason, ViewMoved

_CHUNK = 128  # tokens between two looks at whether the user acts
_MOST_TOKENS = 4096  # read ahead after a turn, but for a view that was moved


def read_ahead(
    command: Generate,
    finished: Finished,
    prompt: Prompt,
    model: LoadedModel,
    caches: CacheManager,
    emit: Callable[[Event], None],
    is_wanted: Callable[[], bool],
) -> None:
    """Given up between chunks when `is_wanted` says that the user acts, and where it would be long.

    A reply that was cut short may be continued: its cache is kept at its end, and only followed where nothing changes
    before that. Where the next turn would overflow the context, the view is moved for it now, or the cache compressed.
    """
    messages = answered(command, prompt, finished.text, finished.token_ids if finished.ids_match_text else None)
    is_cut_short = finished.finish_reason is not FinishReason.STOP
    with contextlib.suppress(EngineError):  # a template that takes no further question
        follow = _Follow(command, model, caches, is_wanted)
        ids = follow.ids_of(messages)
        room = model.info.context_length - (len(ids) - follow.shift(ids))
        reserve = context_view.reserve_ahead(command.max_new_tokens, model.info.context_length)
        if (
            command.on_overflow is ContextPolicy.COMPRESS
            and room < reserve
            and compaction.can_move_together(model, caches)
        ):
            if follow.move_together(messages, ids, reserve):
                room = reserve
            elif is_wanted():
                return
        if command.on_overflow is not ContextPolicy.STOP and room < reserve:
            view = context_view.move(messages, follow.ids_of, model.info.context_length)
            if view.num_dropped:
                num_dropped = prompt.num_dropped + view.num_dropped
                emit(
                    ViewMoved(
                        command.conversation_id, command.request_id, num_dropped, len(view.token_ids), is_ahead=True
                    )
                )
                follow.read(view.token_ids, model.info.context_length)
                return
        follow.read(ids, _MOST_TOKENS, is_cut_short=is_cut_short)


class _Follow:
    def __init__(
        self, command: Generate, model: LoadedModel, caches: CacheManager, is_wanted: Callable[[], bool]
    ) -> None:
        self._command = command
        self._key = chat_key(command.conversation_id, command.branch)
        self._model = model
        self._caches = caches
        self._is_wanted = is_wanted

    def ids_of(self, messages: Sequence[ChatMessage]) -> list[int]:
        """What the next prompt will begin with. Raises TemplateError."""
        return self._model.history.next_prompt_prefix(messages, started_on=self._command.started_on)

    def shift(self, ids: list[int]) -> int:
        """How much earlier than their numbers the tokens after `ids` stand in the chat's cache."""
        cache = self._caches.active_cache(self._key)
        if cache is None or cache.reachable(common_prefix(cache.token_ids, ids)) < cache.moved_tokens:
            return 0
        return cache.shift

    def move_together(self, messages: Sequence[ChatMessage], ids: list[int], reserve: int) -> bool:
        """Compress the cache, so that what comes next fits the context."""
        resident = self._caches.resident(self._key)
        return resident is not None and compaction.move_together(
            self._model, self._caches, resident, messages, ids, reserve, self._is_wanted
        )

    def read(self, ids: list[int], most_tokens: int, *, is_cut_short: bool = False) -> None:
        cache = self._caches.active_cache(self._key)
        if cache is None:
            return
        end = len(ids) - self.shift(ids)
        if is_cut_short:
            cache.checkpoint()
        shared = common_prefix(cache.token_ids, ids)
        to_read = len(ids) - cache.reachable(shared)
        if not 0 < to_read <= min(most_tokens, self._model.info.context_length - end):
            return
        if shared < cache.length:
            if is_cut_short:
                return
            self._caches.persistence.writer.release(self._key)
            cache.rollback(shared)
        rest, length = ids[cache.length :], cache.length
        is_exact = cache.is_exact
        started = time.perf_counter()
        try:
            prefill(self._model.forward, cache, rest, _CHUNK, self._is_wanted, lambda done, total: None)
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        if len(rest) <= FEW_TOKENS and cache.length == len(ids):
            self._caches.rates.prefilled(len(rest), time.perf_counter() - started, length, is_exact=is_exact)
