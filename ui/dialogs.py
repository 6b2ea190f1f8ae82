"""Opens the settings, a chat's own settings and the list of keys; each at most once at a time. GUI thread."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt, Slot
from PySide6.QtWidgets import QDialog, QWidget

from app.conversation import ChatOptions, Conversation
from app.conversation_store import ConversationStore
from app.errors import AppError
from app.model_library import ModelLibrary
from app.presets import Presets
from app.settings import LoadedSettings
from ui.chat_controller import ChatController
from ui.conversation_changes import ConversationChanges
from ui.settings.chat_settings_dialog import ChatSettingsDialog
from ui.settings.preferences import Preferences
from ui.settings.settings_dialog import SettingsDialog
from ui.settings.shortcuts_dialog import ShortcutsDialog


class Dialogs(QObject):
    """`loaded`: what was wrong with the settings file, told when the settings are opened for the first time."""

    def __init__(
        self,
        preferences: Preferences,
        presets: Presets,
        library: ModelLibrary,
        store: ConversationStore,
        controller: ChatController,
        changes: ConversationChanges,
        loaded: LoadedSettings | None,
        window: QWidget,
    ) -> None:
        super().__init__(window)
        self._preferences = preferences
        self._presets = presets
        self._library = library
        self._store = store
        self._controller = controller
        self._changes = changes
        self._loaded = loaded
        self._window = window
        self.open_dialog: QDialog | None = None

    @Slot()
    def open_settings(self) -> None:
        if self._is_one_open():
            return
        loaded, self._loaded = self._loaded, None
        self._open(SettingsDialog(self._preferences, self._library, self._presets, loaded, self._window))

    @Slot()
    def open_chat_settings(self) -> None:
        """Of the chat that is shown; a new one is stored once something is set."""
        if self._is_one_open():
            return
        current = self._controller.current
        conversation: Conversation | None = None
        if current is not None:
            try:
                conversation = self._store.conversation(current)
            except AppError as error:
                self._controller.show_error(error)
                return
        settings = self._preferences.settings
        dialog = ChatSettingsDialog(conversation, self._presets, self._library, settings, self._window)
        dialog.accepted_with.connect(lambda *ways: self._keep(current, *ways))
        self._open(dialog)

    @Slot()
    def open_shortcuts(self) -> None:
        if not self._is_one_open():
            self._open(ShortcutsDialog(self._window))

    def _keep(self, conversation_id: str | None, system_prompt: str, options: ChatOptions, model: str | None) -> None:
        if conversation_id is None:
            if self._controller.current is not None:
                return  # the new chat that this was for is no longer shown
            conversation_id = self._controller.store_new()
        if conversation_id is not None:
            self._changes.set_ways(conversation_id, system_prompt, options, model)
            self._controller.cost_changed.emit()

    def _is_one_open(self) -> bool:
        """It comes to the front then."""
        if self.open_dialog is None:
            return False
        self.open_dialog.raise_()
        self.open_dialog.activateWindow()
        return True

    def _open(self, dialog: QDialog) -> None:
        self.open_dialog = dialog
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.destroyed.connect(self._on_destroyed)
        dialog.open()

    @Slot()
    def _on_destroyed(self) -> None:
        self.open_dialog = None
