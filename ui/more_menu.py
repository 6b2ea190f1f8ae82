"""The menu behind the three dots: what can be done with the chat that is shown, and with the window.

Its entries stay and change in place, so that a menu that is open follows what happens meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QEvent, Signal, SignalInstance, Slot
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from app.settings import Settings
from ui.choice_menu import add_choices
from ui.settings.words import choice_words
from ui.shortcuts import show_keys


class MoreMenu(QMenu):
    theme_chosen = Signal(str)
    language_chosen = Signal(str)
    send_key_chosen = Signal(str)
    new_incognito_requested = Signal()
    import_requested = Signal()
    export_requested = Signal(str)  # the chat shown, as "markdown", "html" or "json"
    export_all_requested = Signal()
    chat_settings_requested = Signal()
    settings_requested = Signal()
    shortcuts_requested = Signal()
    memory_requested = Signal()
    lab_requested = Signal()
    quit_requested = Signal()
    pin_requested = Signal(bool)
    rename_requested = Signal()
    duplicate_requested = Signal()
    delete_requested = Signal()
    compress_requested = Signal()
    undo_compression_requested = Signal()

    def __init__(self, settings: Settings, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._settings = settings
        self.new_incognito = self._add(self.new_incognito_requested)
        self.import_chats = self._add(self.import_requested)
        self.export_menu = self.addMenu("")
        self.exports = {
            name: self._add_export(partial(self.export_requested.emit, name)) for name in ("markdown", "html", "json")
        }
        self.export_menu.addSeparator()
        self.export_all = self._add_export(self.export_all_requested.emit)
        self.addSeparator()
        self.chat_settings = self._add(self.chat_settings_requested)
        self.pin = QAction(self)
        self.pin.setCheckable(True)
        self.pin.triggered.connect(self.pin_requested)
        self.addAction(self.pin)
        self.rename = self._add(self.rename_requested)
        self.duplicate = self._add(self.duplicate_requested)
        self.compress = self._add(self.compress_requested)
        self.undo_compression = self._add(self.undo_compression_requested)
        self.delete_chat = self._add(self.delete_requested)
        self.addSeparator()
        self.theme_menu = self.addMenu("")
        self.language_menu = self.addMenu("")
        self.send_menu = self.addMenu("")
        self.settings_action = self._add(self.settings_requested)
        self.memory = self._add(self.memory_requested)
        self.lab = self._add(self.lab_requested)
        self.shortcuts = self._add(self.shortcuts_requested)
        self.addSeparator()
        self.quit = self._add(self.quit_requested)
        of_this_menu = {
            "new_incognito": self.new_incognito,
            "import_chats": self.import_chats,
            "chat_settings": self.chat_settings,
            "pin": self.pin,
            "duplicate": self.duplicate,
            "compress": self.compress,
            "undo_compression": self.undo_compression,
            "settings": self.settings_action,
            "memory_panel": self.memory,
            "lab": self.lab,
            "shortcuts": self.shortcuts,
            "quit": self.quit,
        }
        show_keys(self, of_this_menu)
        show_keys(self.export_menu, {"export_chat": self.exports["markdown"]})
        self.aboutToShow.connect(self._fill_choices)
        self.show_conversation(False)
        self.show_compression(False, False)
        self.retranslate()

    def show_conversation(self, is_there: bool) -> None:
        """Whether the chat shown is stored; a new one has nothing yet to rename or export."""
        for action in (self.pin, self.rename, self.duplicate, self.delete_chat, *self.exports.values()):
            action.setEnabled(is_there)

    def show_pinned(self, is_pinned: bool) -> None:
        self.pin.setChecked(is_pinned)

    def show_compression(self, can_compress: bool, can_undo: bool) -> None:
        self.compress.setEnabled(can_compress)
        self.undo_compression.setEnabled(can_undo)

    def show_settings(self, settings: Settings) -> None:
        self._settings = settings

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)

    def retranslate(self) -> None:
        self.new_incognito.setText(self.tr("New incognito chat"))
        self.import_chats.setText(self.tr("Import chats…"))
        self.export_menu.setTitle(self.tr("Export"))
        self.exports["markdown"].setText(self.tr("This chat as Markdown…"))
        self.exports["html"].setText(self.tr("This chat as HTML…"))
        self.exports["json"].setText(self.tr("This chat as JSON…"))
        self.export_all.setText(self.tr("All chats as JSON…"))
        self.chat_settings.setText(self.tr("Chat settings…"))
        self.pin.setText(self.tr("Pin chat"))
        self.rename.setText(self.tr("Rename chat"))
        self.duplicate.setText(self.tr("Duplicate chat"))
        self.compress.setText(self.tr("Compress this chat's memory…"))
        self.undo_compression.setText(self.tr("Undo compression"))
        self.delete_chat.setText(self.tr("Delete chat"))
        self.theme_menu.setTitle(self.tr("Theme"))
        self.language_menu.setTitle(self.tr("Language"))
        self.send_menu.setTitle(self.tr("Send with"))
        self.settings_action.setText(self.tr("Settings…"))
        self.memory.setText(self.tr("Memory panel"))
        self.lab.setText(self.tr("Cache lab"))
        self.shortcuts.setText(self.tr("Keyboard shortcuts"))
        self.quit.setText(self.tr("Quit Ember"))

    @Slot()
    def _fill_choices(self) -> None:
        chosen = self._settings
        for menu, name, signal in (
            (self.theme_menu, "theme", self.theme_chosen),
            (self.language_menu, "language", self.language_chosen),
            (self.send_menu, "send_with", self.send_key_chosen),
        ):
            menu.clear()
            add_choices(menu, choice_words(name), getattr(chosen, name), signal.emit)

    def _add(self, signal: SignalInstance) -> QAction:
        action = QAction(self)
        action.triggered.connect(lambda _checked: signal.emit())
        self.addAction(action)
        return action

    def _add_export(self, ask: Callable[[], None]) -> QAction:
        action = QAction(self)
        action.triggered.connect(lambda _checked: ask())
        self.export_menu.addAction(action)
        return action
