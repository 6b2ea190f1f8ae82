"""The use cases of a chat, for the window and the command line alike. No Qt; one thread, that of the store.

`ChatSession` makes their parts, hands them the engine's events, and does itself what concerns all of them.
Invariant: an event whose request is unknown (stale, doubled, of a deleted conversation) changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from app.chat_view import ChatViews
from app.conversation import ChatOptions, Conversation
from app.conversation_store import ConversationStore
from app.costs import Costs
from app.engine_port import EnginePort
from app.engine_upkeep import EngineUpkeep
from app.errors import BusyError, CompressingError, StorageError
from app.history import well_formed
from app.kept_cache import KeptCache
from app.model_switch import FindModel, ModelSwitch
from app.replies import Replies
from app.reply_requests import ReplyRequests
from app.settings import Settings
from app.store.removal import Removed
from app.turns import Turns
from engine.protocol.config import Weights
from engine.protocol.events import EngineStopped, Event, Failed, Finished, ModelInfo, TextArrived, ViewMoved


class ChatSession:
    """`turns`: what is said. `cache`: what is done with a chat's kept cache. `costs`: what sending would cost.

    `on_storage_error` is told, once a reply, that saving failed while the engine was answering; chatting goes on.
    `on_load` is told the request id of a load that a conversation's own model asked for.
    """

    def __init__(
        self,
        store: ConversationStore,
        engine: EnginePort,
        settings: Settings,
        *,
        find_model: FindModel | None = None,
        on_storage_error: Callable[[StorageError], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_load: Callable[[str], None] | None = None
        self.on_storage_error = on_storage_error
        self._store = store
        self._settings = settings
        self._models = ModelSwitch(engine, find_model)
        self._upkeep = EngineUpkeep(store, engine)
        self._replies = Replies(store, self._tell_storage_error, clock)
        views = ChatViews(store, self._models)
        self._requests = ReplyRequests(store, engine, self._replies, self._models, views, self._current_settings)
        self.turns = Turns(store, self._requests, self._models, self._current_settings, self._ready)
        self.cache = KeptCache(store, engine, views, self._refuse_if_busy)
        self.costs = Costs(store, engine, self._models, views, self._current_settings)

    @property
    def model(self) -> ModelInfo | None:
        return self._models.info

    def is_busy(self, conversation_id: str) -> bool:
        """Whether a reply is being written there."""
        return self._replies.of(conversation_id) is not None

    def is_compressing(self, conversation_id: str) -> bool:
        """Whether its cache is being compressed or brought back, or waits for that."""
        return self.cache.is_changing(conversation_id)

    def load_model(self, path: Path, weights: Weights) -> str:
        """Load a model; replies asked for meanwhile wait for it. Returns the request id."""
        if self._models.name is None:
            self._upkeep.forget_unknown()
        self._upkeep.tell_pinned()
        request_id = uuid4().hex
        self._models.load(request_id, path, weights)
        return request_id

    # -- conversations and their messages --------------------------------------------------------------------------

    def new_conversation(
        self,
        system_prompt: str | None = None,
        *,
        is_incognito: bool = False,
        options: ChatOptions | None = None,
        model: str | None = None,
    ) -> Conversation:
        """`system_prompt` None takes the settings' one. Raises StorageError."""
        return self._store.create_conversation(
            system_prompt=well_formed(self._settings.system_prompt if system_prompt is None else system_prompt),
            is_incognito=is_incognito,
            options=options or ChatOptions(),
            model=model,
        )

    def stop(self, conversation_id: str) -> None:
        """Stop the reply being written, if any; what has come of it is kept. Stops compressing too; no change then."""
        self.cache.stop(conversation_id)
        self._requests.stop(conversation_id)

    def show_version(self, conversation_id: str, message_id: int) -> None:
        """Take up the branch of another version. Raises BusyError, StorageError."""
        self._refuse_if_busy(conversation_id)
        self._store.select_version(message_id)

    def delete_message(self, conversation_id: str, message_id: int, *, and_below: bool) -> Removed:
        """Delete a message, `and_below` with all that followed it. Raises BusyError, StorageError."""
        self._refuse_if_busy(conversation_id)
        return self._store.remove_branch(message_id) if and_below else self._store.remove_message(message_id)

    def undo_delete(self, conversation_id: str, removed: Removed) -> None:
        """Raises BusyError, StorageError."""
        self._refuse_if_busy(conversation_id)
        self._store.put_back(removed)

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation, its reply being written and its caches. Raises StorageError; nothing is lost then."""
        self._store.delete_conversation(conversation_id)
        self._requests.forget(conversation_id)
        self.cache.stop(conversation_id)
        self._upkeep.forget(conversation_id)

    def set_pinned(self, conversation_id: str, is_pinned: bool) -> None:
        """Whether its cache goes last when memory or disk runs short. Raises StorageError."""
        self._store.set_pinned(conversation_id, is_pinned)
        self._upkeep.tell_pinned()

    # -- what comes in ---------------------------------------------------------------------------------------------

    def settings_changed(self, settings: Settings) -> None:
        """The next reply uses them."""
        self._settings = settings

    def handle(self, event: Event) -> None:
        """Keep what an event says. Never raises StorageError: `on_storage_error` is told instead."""
        self.cache.take(event)
        if self._models.take(event):
            self._requests.model_is_decided()
        match event:
            case TextArrived():
                self._replies.take(event)
            case Finished() | Failed():
                self._requests.end(event)
            case ViewMoved():
                self._requests.move_view(event)
            case EngineStopped():
                self._upkeep.engine_stopped()
                self.close()

    def close(self) -> None:
        """Keep what has come of replies being written, as cancelled ones."""
        self._requests.close()

    # -- private ---------------------------------------------------------------------------------------------------

    def _ready(self, conversation_id: str) -> Conversation:
        """The conversation, once nothing runs in it and its own model is there or on its way."""
        self._refuse_if_busy(conversation_id)
        self._replies.settle_all()
        conversation = self._store.conversation(conversation_id)
        path = self._models.missing_for(conversation, self._settings)
        if path is not None:
            request_id = self.load_model(path, self._settings.weights)
            if self.on_load is not None:
                self.on_load(request_id)
        return conversation

    def _refuse_if_busy(self, conversation_id: str) -> None:
        if self.is_busy(conversation_id):
            raise BusyError("This conversation is still answering; wait, or stop the reply first.")
        if self.is_compressing(conversation_id):
            raise CompressingError("This conversation is being compressed; wait, or stop that first.")

    def _current_settings(self) -> Settings:
        return self._settings

    def _tell_storage_error(self, error: StorageError) -> None:
        if self.on_storage_error is not None:
            self.on_storage_error(error)
