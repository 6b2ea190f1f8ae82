"""Deleting chats and folders: hidden at once, gone when the time for undo is over or the window closes. GUI thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.conversation_store import ConversationStore
from app.engine_bridge import EngineBridge
from app.errors import AppError
from ui import numbers
from ui.chat_controller import ChatController
from ui.live_replies import LiveReplies
from ui.sidebar.row_words import title_words
from ui.undo_bar import UndoBar

_LONGEST_TITLE = 40


@dataclass(frozen=True, slots=True)
class DeletedChats:
    """The key of one deletion, of one chat or of several at once."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletedFolder:
    id: int


class Deletions(QObject):
    """A deleted folder's chats become loose ones: at once in the list, in the store when the time is over."""

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
        """Chats."""
        return frozenset(one for key in self._bar.pending if isinstance(key, DeletedChats) for one in key.ids)

    @property
    def hidden_folders(self) -> frozenset[int]:
        return frozenset(key.id for key in self._bar.pending if isinstance(key, DeletedFolder))

    @Slot(object)
    def delete(self, conversation_ids: str | Sequence[str]) -> None:
        """One chat, or several as one deletion."""
        ids = [conversation_ids] if isinstance(conversation_ids, str) else list(conversation_ids)
        ids = [one for one in ids if one not in self.hidden]
        try:
            titles = [self._store.conversation(one).title for one in ids]
        except AppError as error:
            self._controller.show_error(error)
            return
        if not ids:
            return
        for one in ids:
            self._session.stop(one)
        if self._controller.current in ids:
            self._controller.open(None)
        if len(ids) == 1:
            words = self.tr("Deleted “{title}”").format(title=_short(titles[0]))
        else:
            words = self.tr("Deleted {count} chats").format(count=numbers.count(len(ids)))
        self._bar.add(DeletedChats(tuple(ids)), words)
        self.changed.emit()

    @Slot(int)
    def delete_folder(self, folder_id: int) -> None:
        """Its chats stay."""
        try:
            names = [one.name for one in self._store.folders() if one.id == folder_id]
        except AppError as error:
            self._controller.show_error(error)
            return
        if names and folder_id not in self.hidden_folders:
            words = self.tr("Deleted the folder “{name}”; its chats stay").format(name=_short(names[0]))
            self._bar.add(DeletedFolder(folder_id), words)
            self.changed.emit()

    @Slot()
    def delete_current(self) -> None:
        if self._controller.current is not None:
            self.delete(self._controller.current)

    def commit(self) -> None:
        self._bar.commit()

    @Slot(object)
    def _on_committed(self, keys: list[object]) -> None:
        for key in keys:
            match key:
                case DeletedChats():
                    for conversation_id in key.ids:
                        self._delete_for_good(conversation_id)
                case DeletedFolder():
                    self._delete_folder_for_good(key.id)
        self.changed.emit()

    @Slot(object)
    def _on_undone(self, keys: list[object]) -> None:
        """The chat deleted last is shown again; where several were deleted at once, the one at the top."""
        self.changed.emit()
        chats = [key for key in keys if isinstance(key, DeletedChats)]
        if chats:
            self._controller.open(chats[-1].ids[0])

    def _delete_for_good(self, conversation_id: str) -> None:
        reply = self._live.of(conversation_id)
        try:
            self._session.delete(conversation_id)
        except AppError as error:
            self._controller.show_error(error)
            return
        if reply is not None:
            self._bridge.retire(reply.request_id)
        self._controller.forget(conversation_id)
        self.deleted.emit(conversation_id)

    def _delete_folder_for_good(self, folder_id: int) -> None:
        try:
            self._store.delete_folder(folder_id)
        except AppError as error:
            self._controller.show_error(error)


def _short(title: str) -> str:
    words = title_words(title)
    return words if len(words) <= _LONGEST_TITLE else f"{words[: _LONGEST_TITLE - 1]}…"
