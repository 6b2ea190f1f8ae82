"""What the engine keeps of chats follows what is stored of them: it is told who is pinned and who is gone.

Preferences and tidying up: nothing fails because of them, so what cannot be read is logged and left.
"""

from __future__ import annotations

import logging

from app.conversation_store import ConversationStore
from app.engine_port import EnginePort
from app.errors import StorageError
from engine.protocol.commands import Forget, ForgetUnknown, Pin

_log = logging.getLogger(__name__)


class EngineUpkeep:
    def __init__(self, store: ConversationStore, engine: EnginePort) -> None:
        self._store = store
        self._engine = engine
        self._pinned: frozenset[str] = frozenset()  # as the engine was told

    def tell_pinned(self) -> None:
        """Where the set has changed. The engine begins with none."""
        try:
            pinned = self._store.pinned_ids()
        except StorageError as error:
            _log.error("The pinned conversations cannot be read: %s", error)
            return
        if pinned != self._pinned:
            self._pinned = pinned
            self._engine.submit(Pin(pinned))

    def forget(self, conversation_id: str) -> None:
        """It was deleted."""
        self._engine.submit(Forget(conversation_id))
        self.tell_pinned()

    def forget_unknown(self) -> None:
        """Finish deletions that were cut off: the text is gone, what the engine kept of it goes as well."""
        if self._store.is_in_memory:
            return
        try:
            known = frozenset(conversation.id for conversation in self._store.conversations())
        except StorageError as error:
            _log.error("The conversations cannot be read: %s", error)
            return
        self._engine.submit(ForgetUnknown(known))

    def engine_stopped(self) -> None:
        self._pinned = frozenset()
