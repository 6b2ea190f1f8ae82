"""What the list asks for and the store does: names, folders, copies. GUI thread; an error is told, and nothing done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.conversation_store import ConversationStore
from app.errors import AppError
from ui.sidebar.conversation_list import ConversationList
from ui.sidebar.row_words import title_words


class ListActions(QObject):
    changed = Signal()  # the list is to be shown anew
    renamed = Signal(str, str)
    duplicated = Signal(str)  # the id of the copy
    failed = Signal(object)  # AppError

    def __init__(
        self,
        sidebar: ConversationList,
        session: ChatSession,
        store: ConversationStore,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._sidebar = sidebar
        self._session = session
        self._store = store
        sidebar.renamed.connect(self.rename)
        sidebar.pin_requested.connect(self.pin)
        sidebar.move_requested.connect(self.move)
        sidebar.duplicate_requested.connect(self.duplicate)
        sidebar.folder_create_requested.connect(self.create_folder)
        sidebar.folder_renamed.connect(self.rename_folder)

    @Slot(str, str)
    def rename(self, conversation_id: str, title: str) -> None:
        with self._change():
            self._store.set_title(conversation_id, title)
            self.renamed.emit(conversation_id, title)

    @Slot(str, bool)
    def pin(self, conversation_id: str, is_pinned: bool) -> None:
        with self._change():
            self._session.set_pinned(conversation_id, is_pinned)

    @Slot(object, object)
    def move(self, conversation_ids: Sequence[str], folder_id: int | None) -> None:
        with self._change(), self._store.transaction():
            for conversation_id in conversation_ids:
                self._store.set_folder(conversation_id, folder_id)

    @Slot(str)
    def duplicate(self, conversation_id: str) -> None:
        """With all its versions; the copy stands on top and is named so."""
        copy_id = None
        with self._change():
            with self._store.transaction():
                copy = self._store.duplicate_conversation(conversation_id)
                title = self.tr("{title} (copy)").format(title=title_words(copy.title))
                self._store.set_title(copy.id, title)
            copy_id = copy.id
        if copy_id is not None:
            self.duplicated.emit(copy_id)

    @Slot(object)
    def create_folder(self, conversation_ids: Sequence[str]) -> None:
        """With a name that is to be written over: its editor opens at once."""
        folder_id = None
        with self._change():
            with self._store.transaction():
                folder = self._store.create_folder(self._free_name())
                for conversation_id in conversation_ids:
                    self._store.set_folder(conversation_id, folder.id)
            folder_id = folder.id
        if folder_id is not None:
            self._sidebar.edit_folder(folder_id)

    @Slot(int, str)
    def rename_folder(self, folder_id: int, name: str) -> None:
        with self._change():
            self._store.rename_folder(folder_id, name)

    def _free_name(self) -> str:
        names, number = {folder.name for folder in self._store.folders()}, 1
        name = first = self.tr("New folder")
        while name in names:
            number += 1
            name = f"{first} {number}"
        return name

    @contextmanager
    def _change(self) -> Iterator[None]:
        """The list shows what the store holds afterwards, also where the change failed."""
        try:
            yield
        except AppError as error:
            self.failed.emit(error)
        self.changed.emit()
