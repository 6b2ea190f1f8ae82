"""What a person does with whole chats: rename, pin, put into folders, copy, their own settings. GUI thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.conversation import ChatOptions
from app.conversation_store import ConversationStore
from app.errors import AppError
from ui.chat_controller import ChatController
from ui.sidebar.conversation_list import ConversationList
from ui.sidebar.row_words import title_words

_Result = TypeVar("_Result")


class ConversationChanges(QObject):
    """What fails is told in the chat that is shown, and nothing has changed then."""

    changed = Signal()

    def __init__(
        self,
        session: ChatSession,
        store: ConversationStore,
        controller: ChatController,
        sidebar: ConversationList,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._store = store
        self._controller = controller
        self._sidebar = sidebar
        sidebar.renamed.connect(self.rename)
        sidebar.pin_requested.connect(self.set_pinned)
        sidebar.move_requested.connect(self.move)
        sidebar.duplicate_requested.connect(self.duplicate)
        sidebar.folder_create_requested.connect(self.create_folder)
        sidebar.folder_renamed.connect(self.rename_folder)

    @Slot(str, str)
    def rename(self, conversation_id: str, title: str) -> None:
        self._do(lambda: self._store.set_title(conversation_id, title))

    @Slot(str, bool)
    def set_pinned(self, conversation_id: str, is_pinned: bool) -> None:
        self._do(lambda: self._session.set_pinned(conversation_id, is_pinned))

    @Slot(bool)
    def set_current_pinned(self, is_pinned: bool) -> None:
        if self._controller.current is not None:
            self.set_pinned(self._controller.current, is_pinned)

    @Slot()
    def toggle_current_pinned(self) -> None:
        current = self._controller.current
        if current is not None:
            self._do(lambda: self._session.set_pinned(current, not self._store.conversation(current).is_pinned))

    @Slot(object, object)
    def move(self, conversation_ids: Sequence[str], folder_id: int | None) -> None:
        def move_all() -> None:
            with self._store.transaction():
                for conversation_id in conversation_ids:
                    self._store.set_folder(conversation_id, folder_id)

        self._do(move_all)

    @Slot(str)
    def duplicate(self, conversation_id: str) -> None:
        """Show a copy of the whole chat, branches included."""

        def copy() -> str:
            title = title_words(self._store.conversation(conversation_id).title)
            copied = self._store.duplicate_conversation(conversation_id)
            self._store.set_title(copied.id, self.tr("{title} (copy)").format(title=title))
            return copied.id

        if copied_id := self._do(copy):
            self._controller.open(copied_id)

    @Slot()
    def duplicate_current(self) -> None:
        if self._controller.current is not None:
            self.duplicate(self._controller.current)

    @Slot()
    def rename_current(self) -> None:
        self._sidebar.edit_title(self._controller.current)

    @Slot(object)
    def create_folder(self, conversation_ids: Sequence[str]) -> None:
        """With these chats in it, perhaps none; its name is asked for at once."""

        def create() -> int:
            with self._store.transaction():
                folder = self._store.create_folder(self._free_folder_name())
                for conversation_id in conversation_ids:
                    self._store.set_folder(conversation_id, folder.id)
            return folder.id

        if (folder_id := self._do(create)) is not None:
            self._sidebar.edit_folder(folder_id)

    @Slot(int, str)
    def rename_folder(self, folder_id: int, name: str) -> None:
        self._do(lambda: self._store.rename_folder(folder_id, name))

    def set_ways(self, conversation_id: str, system_prompt: str, options: ChatOptions, model: str | None) -> None:
        """What the chat sets otherwise than the settings do."""

        def keep() -> None:
            with self._store.transaction():
                self._store.set_system_prompt(conversation_id, system_prompt)
                self._store.set_options(conversation_id, options)
                self._store.set_model(conversation_id, model)

        self._do(keep)

    def _free_folder_name(self) -> str:
        """ "New folder", "New folder 2" ..."""
        taken = {folder.name for folder in self._store.folders()}
        name, number = self.tr("New folder"), 2
        while name in taken:
            name, number = self.tr("New folder {number}").format(number=number), number + 1
        return name

    def _do(self, action: Callable[[], _Result]) -> _Result | None:
        result: _Result | None = None
        try:
            result = action()
        except AppError as error:
            self._controller.show_error(error)
        self.changed.emit()
        return result
