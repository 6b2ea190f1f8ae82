"""The use cases of a chat, for the window and the command line alike. No Qt; one thread, that of the store.

Invariant: what a person wrote is stored before the engine hears of it, and an event whose request is unknown (stale,
doubled, of a deleted conversation) changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from uuid import uuid4

from app.compressions import Compressions
from app.conversation import Conversation, MessageState
from app.conversation_store import ConversationStore
from app.engine_port import EnginePort
from app.errors import BusyError, CompressingError, EmptyMessageError, NothingToCompressError, StorageError
from app.history import history_of, well_formed
from app.reply import Reply
from app.settings import Settings
from app.title import title_from
from engine.protocol.commands import (
    ChatMessage,
    Compress,
    CompressMethod,
    Forget,
    ForgetUnknown,
    Generate,
    LoadModel,
    Pin,
    Role,
    Undo,
    Verify,
)
from engine.protocol.config import Sampling, Weights
from engine.protocol.events import EngineStopped, Event, Failed, Finished, ModelInfo, ModelLoaded, TextArrived

_log = logging.getLogger(__name__)
_SAVE_EVERY_S = 1.0


class ChatSession:
    """Chats of a store that is in memory only are incognito: the engine is told to keep nothing of them either.

    `on_storage_error` is told, once a reply, that saving failed while the engine was answering; chatting goes on,
    and the text is kept in memory and tried again.
    """

    def __init__(
        self,
        store: ConversationStore,
        engine: EnginePort,
        settings: Settings,
        *,
        on_storage_error: Callable[[StorageError], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model: ModelInfo | None = None
        self.on_storage_error = on_storage_error
        self._store = store
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._pinned: frozenset[str] = frozenset()  # as the engine was told
        self._loading: str | None = None
        self._model_name: str | None = None
        self._replies: dict[str, Reply] = {}  # by request id, in the order they were asked for
        self._waiting: list[Reply] = []  # asked for while a model loads: its tokenizer decides which ids may be fed
        self._unsettled: list[Reply] = []  # ended, and not yet stored
        self._compressions = Compressions(engine)

    def is_busy(self, conversation_id: str) -> bool:
        """Whether a reply is being written there."""
        return self._reply_of(conversation_id) is not None

    def is_compressing(self, conversation_id: str) -> bool:
        """Whether its cache is being compressed or brought back, or waits for that."""
        return self._compressions.is_running(conversation_id)

    def load_model(self, path: Path, weights: Weights) -> str:
        """Load a model; replies asked for meanwhile wait for it. Returns the request id."""
        if self._model_name is None:
            self._forget_unknown()
        self._tell_pinned()
        request_id = _new_id()
        self._loading = request_id
        self._model_name = path.name
        self._engine.submit(LoadModel(request_id, path, weights))
        return request_id

    def new_conversation(self, system_prompt: str = "") -> Conversation:
        return self._store.create_conversation(system_prompt=well_formed(system_prompt))

    def send(
        self,
        conversation_id: str,
        text: str,
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int | None = None,
    ) -> str:
        """Store the message and an empty reply, then ask the engine. Returns the request id.

        Raises EmptyMessageError, BusyError, UnknownConversationError, StorageError; nothing was asked for then.
        """
        text = well_formed(text)
        if not text.strip():
            raise EmptyMessageError("The message is empty; write something first.")
        self._refuse_if_busy(conversation_id)
        self._settle_all()
        conversation = self._store.conversation(conversation_id)
        with self._store.transaction():
            question = self._store.add_message(conversation_id, Role.USER, text)
            answer = self._store.add_message(
                conversation_id, Role.ASSISTANT, "", state=MessageState.STREAMING, model=self._model_name
            )
            if not conversation.title:
                self._store.set_title(conversation_id, title_from(text))
            self._store.set_draft(conversation_id, "")
        reply = Reply(
            request_id=_new_id(),
            question=question,
            answer=answer,
            title_before=conversation.title,
            sampling=sampling or self._settings.sampling(),
            max_new_tokens=max_new_tokens or self._settings.max_new_tokens,
        )
        self._replies[reply.request_id] = reply
        if self._loading is None:
            self._ask(reply)
        else:
            self._waiting.append(reply)
        return reply.request_id

    def verify(self, conversation_id: str) -> str:
        """Ask whether the kept cache answers as a cold one would. Returns the request id."""
        request_id = _new_id()
        history = self.history(conversation_id)
        started_on = self._started_on(conversation_id)
        self._engine.submit(Verify(conversation_id, request_id, history, started_on=started_on))
        return request_id

    def compress(
        self,
        conversation_id: str,
        *,
        keep: float,
        method: CompressMethod = CompressMethod.KVZIP,
        is_int8: bool = False,
    ) -> str:
        """Ask to keep only the share `keep` of its cache, 0.1 to 0.9. Returns the request id.

        Raises BusyError, NothingToCompressError, UnknownConversationError, StorageError.
        """
        history = self._history_to_compress(conversation_id)
        request_id, started_on = _new_id(), self._started_on(conversation_id)
        self._compressions.ask(
            Compress(
                conversation_id,
                request_id,
                history,
                keep,
                method,
                is_int8,
                started_on=started_on,
                is_incognito=self._store.is_in_memory,
            )
        )
        return request_id

    def undo_compression(self, conversation_id: str) -> str:
        """Ask for the whole cache in full precision again. Returns the request id. Raises as `compress` does."""
        history = self._history_to_compress(conversation_id)
        request_id, started_on = _new_id(), self._started_on(conversation_id)
        is_incognito = self._store.is_in_memory
        self._compressions.ask(
            Undo(conversation_id, request_id, history, started_on=started_on, is_incognito=is_incognito)
        )
        return request_id

    def history(self, conversation_id: str) -> tuple[ChatMessage, ...]:
        """The messages as the loaded model gets them, without a reply still being written."""
        conversation = self._store.conversation(conversation_id)
        messages = self._store.messages(conversation_id)
        kept = [message for message in messages if message.state is not MessageState.STREAMING]
        return history_of(conversation, kept, self.model.tokenizer_id if self.model else None)

    def stop(self, conversation_id: str) -> None:
        """Stop the reply being written, if any; what has come of it is kept. Stops compressing too; no change then."""
        self._compressions.stop(conversation_id)
        reply = self._reply_of(conversation_id)
        if reply is not None:
            reply.is_stopped = True
            self._engine.cancel(reply.request_id)

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation, its reply being written and its caches. Raises StorageError; nothing is lost then."""
        self._store.delete_conversation(conversation_id)
        self._unsettled = [reply for reply in self._unsettled if reply.conversation_id != conversation_id]
        reply = self._reply_of(conversation_id)
        if reply is not None:
            self._drop(reply)
            self._engine.cancel(reply.request_id)
        self._compressions.stop(conversation_id)
        self._engine.submit(Forget(conversation_id))
        self._tell_pinned()

    def set_pinned(self, conversation_id: str, is_pinned: bool) -> None:
        """Whether its cache goes last when memory or disk runs short. Raises StorageError."""
        self._store.set_pinned(conversation_id, is_pinned)
        self._tell_pinned()

    def settings_changed(self, settings: Settings) -> None:
        """The next reply uses them."""
        self._settings = settings

    def handle(self, event: Event) -> None:
        """Keep what an event says. Never raises StorageError: `on_storage_error` is told instead."""
        self._compressions.take(event)
        match event:
            case ModelLoaded():
                self.model = event.model
                self._loading_ended(event.request_id)
            case TextArrived():
                self._on_text_arrived(event)
            case Finished() | Failed():
                self._on_ended(event)
            case EngineStopped():
                self.model = None
                self._pinned = frozenset()
                self.close()

    def close(self) -> None:
        """Keep what has come of replies being written, as cancelled ones."""
        self._unsettled.extend(self._replies.values())
        self._replies.clear()
        self._waiting.clear()
        self._settle_telling()

    def _on_text_arrived(self, event: TextArrived) -> None:
        reply = self._replies.get(event.request_id)
        if reply is None:
            return
        reply.take(event)
        now = self._clock()
        if reply.saved_at is not None and now - reply.saved_at < _SAVE_EVERY_S:
            return
        reply.saved_at = now
        try:
            reply.save_partial(self._store)
        except StorageError as error:
            self._tell(error, reply)

    def _on_ended(self, event: Finished | Failed) -> None:
        reply = self._replies.get(event.request_id)
        if reply is not None:
            reply.end = event
            self._drop(reply)
            self._unsettled.append(reply)
            self._settle_telling()
        elif isinstance(event, Failed) and event.request_id == self._loading:
            self.model = None  # the one before was given up first
            self._loading_ended(event.request_id)

    def _loading_ended(self, request_id: str) -> None:
        """The model is there, or cannot be: the engine answers the waiting requests either way."""
        if request_id != self._loading:
            return
        self._loading = None
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            self._ask(reply)

    def _ask(self, reply: Reply) -> None:
        reply.tokenizer_id = self.model.tokenizer_id if self.model else None
        self._engine.submit(
            Generate(
                reply.conversation_id,
                reply.request_id,
                self.history(reply.conversation_id),
                reply.sampling,
                reply.max_new_tokens,
                started_on=self._started_on(reply.conversation_id),
                is_incognito=self._store.is_in_memory,
            )
        )
        if reply.is_stopped:
            self._engine.cancel(reply.request_id)

    def _refuse_if_busy(self, conversation_id: str) -> None:
        if self.is_busy(conversation_id):
            raise BusyError("This conversation is still answering; wait, or stop the reply first.")
        if self.is_compressing(conversation_id):
            raise CompressingError("This conversation is being compressed; wait, or stop that first.")

    def _history_to_compress(self, conversation_id: str) -> tuple[ChatMessage, ...]:
        self._refuse_if_busy(conversation_id)
        if not self._store.conversation(conversation_id).num_messages:
            raise NothingToCompressError("The conversation is empty; there is nothing to compress yet.")
        return self.history(conversation_id)

    def _forget_unknown(self) -> None:
        """Finish deletions that were cut off: the text is gone, what the engine kept of it goes as well."""
        if self._store.is_in_memory:
            return
        try:
            known = frozenset(conversation.id for conversation in self._store.conversations())
        except StorageError as error:
            _log.error("The conversations cannot be read: %s", error)
            return
        self._engine.submit(ForgetUnknown(known))

    def _tell_pinned(self) -> None:
        """Tell the engine, which begins with none, where the set has changed. A preference: nothing fails for it."""
        try:
            pinned = self._store.pinned_ids()
        except StorageError as error:
            _log.error("The pinned conversations cannot be read: %s", error)
            return
        if pinned != self._pinned:
            self._pinned = pinned
            self._engine.submit(Pin(pinned))

    def _started_on(self, conversation_id: str) -> date:
        """The user's calendar day."""
        return self._store.conversation(conversation_id).created_at.astimezone().date()

    def _drop(self, reply: Reply) -> None:
        del self._replies[reply.request_id]
        if reply in self._waiting:
            self._waiting.remove(reply)

    def _reply_of(self, conversation_id: str) -> Reply | None:
        return next((reply for reply in self._replies.values() if reply.conversation_id == conversation_id), None)

    def _settle_all(self) -> None:
        """Raises StorageError; what is not stored yet stays in the list."""
        while self._unsettled:
            self._unsettled[0].settle(self._store)
            self._unsettled.pop(0)

    def _settle_telling(self) -> None:
        try:
            self._settle_all()
        except StorageError as error:
            self._tell(error, self._unsettled[0])

    def _tell(self, error: StorageError, reply: Reply) -> None:
        _log.error("Saving a reply of conversation %s failed: %s", reply.conversation_id, error)
        if not reply.is_failure_told and self.on_storage_error is not None:
            reply.is_failure_told = True
            self.on_storage_error(error)


def _new_id() -> str:
    return uuid4().hex
