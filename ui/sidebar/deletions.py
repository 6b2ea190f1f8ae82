"""Deleting a chat: hidden at once, gone when the time for undo is over or the window closes. GUI thread."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.conversation_store import ConversationStore
from app.engine_bridge import EngineBridge
from app.errors import AppError
from ui.chat_controller import ChatController
from ui.live_replies import LiveReplies
from ui.sidebar.undo_bar import UndoBar


class Deletions(QObject):
    changed = Signal()
    deleted = Signal(str)

    def __init__(
        self,
        session: ChatSession,
        store: ConversationStore,
        bridge: EngineBridge,
        controller: ChatController,
        live: LiveReplies,
        undo_bar: UndoBar,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._store = store
        self._bridge = bridge
        self._controller = controller
        self._live = live
        self._bar = undo_bar
        undo_bar.committed.connect(self._on_committed)
        undo_bar.undone.connect(self._on_undone)

    @property
    def hidden(self) -> frozenset[str]:
        return self._bar.pending

    @Slot(str)
    def delete(self, conversation_id: str) -> None:
        try:
            title = self._store.conversation(conversation_id).title
        except AppError as error:
            self._controller.show_error(error)
            return
        self._session.stop(conversation_id)
        if self._controller.current == conversation_id:
            self._controller.open(None)
        self._bar.add(conversation_id, title)
        self.changed.emit()

    @Slot()
    def delete_current(self) -> None:
        if self._controller.current is not None:
            self.delete(self._controller.current)

    def commit(self) -> None:
        self._bar.commit()

    @Slot(object)
    def _on_committed(self, ids: list[str]) -> None:
        for conversation_id in ids:
            reply = self._live.of(conversation_id)
            try:
                self._session.delete(conversation_id)
            except AppError as error:
                self._controller.show_error(error)
                continue
            if reply is not None:
                self._bridge.retire(reply.request_id)
            self._controller.forget(conversation_id)
            self.deleted.emit(conversation_id)
        self.changed.emit()

    @Slot(object)
    def _on_undone(self, ids: list[str]) -> None:
        self.changed.emit()
        if ids:
            self._controller.open(ids[-1])
