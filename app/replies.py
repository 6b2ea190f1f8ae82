"""The replies being written and those that ended and are not stored yet. Used by the parts of `app.chat_session`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from app.conversation_store import ConversationStore
from app.errors import StorageError
from app.reply import Reply
from engine.protocol.events import Failed, Finished, TextArrived

_log = logging.getLogger(__name__)
_SAVE_EVERY_S = 1.0


class Replies:
    """`on_storage_error` is told, once a reply, that saving failed; the text is kept in memory and tried again."""

    def __init__(
        self,
        store: ConversationStore,
        on_storage_error: Callable[[StorageError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_storage_error = on_storage_error
        self._store = store
        self._clock = clock
        self._running: dict[str, Reply] = {}  # by request id, in the order they were asked for
        self._unsettled: list[Reply] = []  # ended, and not yet stored

    def begin(self, reply: Reply) -> None:
        self._running[reply.request_id] = reply

    def of(self, conversation_id: str) -> Reply | None:
        return next((reply for reply in self._running.values() if reply.conversation_id == conversation_id), None)

    def take(self, event: TextArrived) -> None:
        """Keep new text, on disk about once a second."""
        reply = self._running.get(event.request_id)
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

    def end(self, event: Finished | Failed) -> Reply | None:
        """Store the end of the reply that the event is about; None for one that is not known."""
        reply = self._running.pop(event.request_id, None)
        if reply is not None:
            reply.end = event
            self._unsettled.append(reply)
            self._settle_telling()
        return reply

    def forget(self, conversation_id: str) -> Reply | None:
        """The conversation is gone. Returns the reply that was being written there."""
        self._unsettled = [reply for reply in self._unsettled if reply.conversation_id != conversation_id]
        reply = self.of(conversation_id)
        if reply is not None:
            del self._running[reply.request_id]
        return reply

    def settle_all(self) -> None:
        """Raises StorageError; what is not stored yet stays in the list."""
        while self._unsettled:
            self._unsettled[0].settle(self._store)
            self._unsettled.pop(0)

    def close(self) -> None:
        """Keep what has come of replies being written, as cancelled ones."""
        self._unsettled.extend(self._running.values())
        self._running.clear()
        self._settle_telling()

    def _settle_telling(self) -> None:
        try:
            self.settle_all()
        except StorageError as error:
            self._tell(error, self._unsettled[0])

    def _tell(self, error: StorageError, reply: Reply) -> None:
        _log.error("Saving a reply of conversation %s failed: %s", reply.conversation_id, error)
        if not reply.is_failure_told:
            reply.is_failure_told = True
            self._on_storage_error(error)
