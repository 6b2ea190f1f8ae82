"""Asking the engine for replies, in the order in which they were wanted. Used by `app.chat_session` only.

While a model loads they wait: its tokenizer decides which stored token ids may be fed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from app.chat_view import ChatViews
from app.conversation_store import ConversationStore
from app.engine_port import EnginePort
from app.errors import StorageError
from app.history import History
from app.model_switch import ModelSwitch
from app.replies import Replies
from app.reply import Reply
from app.settings import Settings
from engine.protocol.commands import Generate
from engine.protocol.config import ContextPolicy
from engine.protocol.events import Failed, Finished, ViewMoved

_log = logging.getLogger(__name__)


class ReplyRequests:
    def __init__(
        self,
        store: ConversationStore,
        engine: EnginePort,
        replies: Replies,
        models: ModelSwitch,
        views: ChatViews,
        settings: Callable[[], Settings],
    ) -> None:
        self._store = store
        self._engine = engine
        self._replies = replies
        self._models = models
        self._views = views
        self._settings = settings
        self._waiting: list[Reply] = []
        self._asked: dict[str, tuple[str, History]] = {}  # by conversation: the last request and what it was given

    def begin(self, reply: Reply) -> str:
        """Its messages are stored. Returns the request id."""
        self._replies.begin(reply)
        if self._models.is_loading:
            self._waiting.append(reply)
        else:
            self._ask(reply)
        return reply.request_id

    def model_is_decided(self) -> None:
        """It is there, or cannot be: the engine answers the waiting requests either way."""
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            self._ask(reply)

    def stop(self, conversation_id: str) -> None:
        """What has come of the reply, if one is being written, is kept."""
        reply = self._replies.of(conversation_id)
        if reply is not None:
            reply.is_stopped = True
            self._engine.cancel(reply.request_id)

    def forget(self, conversation_id: str) -> None:
        """The conversation is gone."""
        reply = self._replies.forget(conversation_id)
        if reply is not None:
            self._stop_waiting(reply)
            self._engine.cancel(reply.request_id)
        self._asked.pop(conversation_id, None)

    def end(self, event: Finished | Failed) -> None:
        reply = self._replies.end(event)
        if reply is not None:
            self._stop_waiting(reply)

    def move_view(self, event: ViewMoved) -> None:
        """Store where the model's view of the chat begins from now on; it is in the log where that fails."""
        request_id, history = self._asked.get(event.conversation_id, ("", None))
        if history is None or request_id != event.request_id:
            return
        try:
            self._store.set_view_from(event.conversation_id, history.source_after(event.num_dropped))
        except StorageError as error:
            _log.error("Where the model's view begins could not be kept: %s", error)

    def close(self) -> None:
        self._waiting.clear()
        self._replies.close()

    def _ask(self, reply: Reply) -> None:
        conversation = self._store.conversation(reply.conversation_id)
        reply.tokenizer_id = self._models.tokenizer_id
        messages = self._store.messages(conversation.id)
        view = self._views.of(conversation, messages if reply.continues else messages[:-1])  # asked for is the last one
        history = view.history
        if not reply.continues:
            history = dataclasses.replace(history, sources=(*history.sources, reply.answer.id))
        self._asked[conversation.id] = (reply.request_id, history)
        self._engine.submit(
            Generate(
                conversation.id,
                reply.request_id,
                view.messages,
                reply.sampling,
                reply.max_new_tokens,
                started_on=view.started_on,
                is_incognito=view.is_incognito,
                branch=view.branch,
                continues=reply.continues,
                on_overflow=ContextPolicy(self._settings().context_policy),
            )
        )
        if reply.is_stopped:
            self._engine.cancel(reply.request_id)

    def _stop_waiting(self, reply: Reply) -> None:
        self._waiting = [one for one in self._waiting if one is not reply]
