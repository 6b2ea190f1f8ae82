"""What is done with the cache a chat has: compressed, brought back, compared with a cold one. The session's thread."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from app.chat_view import ChatViews
from app.conversation import Conversation
from app.conversation_store import ConversationStore
from app.engine_port import EnginePort
from app.errors import NothingToCompressError
from engine.protocol.commands import Compress, CompressMethod, Undo, Verify
from engine.protocol.events import Compressed, EngineStopped, Event, Failed


class KeptCache:
    """At most one change of a chat's cache at a time; the engine does them in turn with the replies.

    `refuse_if_busy` raises BusyError where something runs in a chat.
    """

    def __init__(
        self,
        store: ConversationStore,
        engine: EnginePort,
        views: ChatViews,
        refuse_if_busy: Callable[[str], None],
    ) -> None:
        self._store = store
        self._engine = engine
        self._views = views
        self._refuse_if_busy = refuse_if_busy
        self._changes: dict[str, str] = {}  # request ids, by conversation id

    def is_changing(self, conversation_id: str) -> bool:
        """Whether it is being compressed or brought back, or waits for that."""
        return conversation_id in self._changes

    def compress(
        self,
        conversation_id: str,
        *,
        keep: float,
        method: CompressMethod = CompressMethod.KVZIP,
        is_int8: bool = False,
    ) -> str:
        """Ask to keep only the share `keep` of it, 0.1 to 0.9. Returns the request id.

        Raises BusyError, NothingToCompressError, UnknownConversationError, StorageError.
        """
        view = self._views.settled(self._ready(conversation_id))
        return self._ask(
            Compress(
                conversation_id,
                uuid4().hex,
                view.messages,
                keep,
                method,
                is_int8,
                started_on=view.started_on,
                is_incognito=view.is_incognito,
                branch=view.branch,
            )
        )

    def undo_compression(self, conversation_id: str) -> str:
        """Ask for all of it in full precision again. Returns the request id. Raises as `compress` does."""
        view = self._views.settled(self._ready(conversation_id))
        return self._ask(
            Undo(
                conversation_id,
                uuid4().hex,
                view.messages,
                started_on=view.started_on,
                is_incognito=view.is_incognito,
                branch=view.branch,
            )
        )

    def verify(self, conversation_id: str) -> str:
        """Ask whether it answers as a cold one would. Returns the request id.

        Raises UnknownConversationError, StorageError.
        """
        view = self._views.settled(self._store.conversation(conversation_id))
        request_id = uuid4().hex
        self._engine.submit(
            Verify(conversation_id, request_id, view.messages, started_on=view.started_on, branch=view.branch)
        )
        return request_id

    def stop(self, conversation_id: str) -> None:
        """Stop changing it, if it is. The engine answers with `Failed`, or with `Compressed` where it was done."""
        if request_id := self._changes.get(conversation_id):
            self._engine.cancel(request_id)

    def take(self, event: Event) -> None:
        match event:
            case Compressed() | Failed():
                ended = [one for one, request_id in self._changes.items() if request_id == event.request_id]
                for conversation_id in ended:
                    del self._changes[conversation_id]
            case EngineStopped():
                self._changes.clear()

    def _ready(self, conversation_id: str) -> Conversation:
        self._refuse_if_busy(conversation_id)
        conversation = self._store.conversation(conversation_id)
        if not conversation.num_messages:
            raise NothingToCompressError("The conversation is empty; there is nothing to compress yet.")
        return conversation

    def _ask(self, command: Compress | Undo) -> str:
        self._changes[command.conversation_id] = command.request_id
        self._engine.submit(command)
        return command.request_id
