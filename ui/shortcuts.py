"""Every key of the window in one table: what binds them, what menus show beside their entries, what F1 lists.

No key of a place is used twice, and none that counts everywhere is used in a place of its own. Keys that take something
away count only in the list or on a message, never while a text is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtGui import QAction, QKeySequence, QShortcut
from PySide6.QtWidgets import QMenu, QWidget


class Place(StrEnum):
    """Where a key counts."""

    WINDOW = "window"
    COMPOSER = "composer"
    MESSAGE = "message"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Shortcut:
    """`keys` as Qt writes them in English; the first one is shown in menus."""

    name: str
    keys: tuple[str, ...]
    place: Place = Place.WINDOW


SHORTCUTS = (
    Shortcut("new_chat", ("Ctrl+N",)),
    Shortcut("new_incognito", ("Ctrl+Shift+N",)),
    Shortcut("search", ("Ctrl+K",)),
    Shortcut("previous_chat", ("Ctrl+PgUp",)),
    Shortcut("next_chat", ("Ctrl+PgDown",)),
    Shortcut("focus_composer", ("Ctrl+L",)),
    Shortcut("focus_transcript", ("F6",)),
    Shortcut("previous_message", ("Alt+Up",)),
    Shortcut("next_message", ("Alt+Down",)),
    Shortcut("attach", ("Ctrl+Shift+A",)),
    Shortcut("stop", ("Esc",)),
    Shortcut("regenerate", ("Ctrl+R",)),
    Shortcut("jump_to_end", ("Ctrl+J",)),
    Shortcut("choose_model", ("Ctrl+Shift+L",)),
    Shortcut("chat_settings", ("Ctrl+.",)),
    Shortcut("settings", ("Ctrl+,",)),
    Shortcut("pin", ("Ctrl+Shift+P",)),
    Shortcut("duplicate", ("Ctrl+Shift+D",)),
    Shortcut("compress", ("Ctrl+Shift+M",)),
    Shortcut("undo_compression", ("Ctrl+Shift+U",)),
    Shortcut("export_chat", ("Ctrl+Shift+E",)),
    Shortcut("import_chats", ("Ctrl+Shift+I",)),
    Shortcut("memory_panel", ("Ctrl+M",)),
    Shortcut("lab", ("Ctrl+Shift+K",)),
    Shortcut("more", ("F10",)),
    Shortcut("shortcuts", ("F1", "Ctrl+/")),
    Shortcut("quit", ("Ctrl+Q",)),
    Shortcut("send", ("Return", "Ctrl+Return"), Place.COMPOSER),
    Shortcut("break_line", ("Shift+Return",), Place.COMPOSER),
    Shortcut("edit_last", ("Up",), Place.COMPOSER),
    Shortcut("copy_message", ("Ctrl+C",), Place.MESSAGE),
    Shortcut("edit_message", ("F2", "Return"), Place.MESSAGE),
    Shortcut("earlier_version", ("Alt+Left",), Place.MESSAGE),
    Shortcut("later_version", ("Alt+Right",), Place.MESSAGE),
    Shortcut("delete_message", ("Del",), Place.MESSAGE),
    Shortcut("undo_delete_message", ("Ctrl+Z",), Place.MESSAGE),
    Shortcut("open_chat", ("Return",), Place.LIST),
    Shortcut("rename", ("F2",), Place.LIST),
    Shortcut("delete", ("Del",), Place.LIST),
    Shortcut("undo_delete", ("Ctrl+Z",), Place.LIST),
    Shortcut("menu", ("Shift+F10", "Menu"), Place.LIST),
)
_BY_NAME = {shortcut.name: shortcut for shortcut in SHORTCUTS}


def bind_shortcuts(window: QWidget, slots: Mapping[str, Callable[[], object]]) -> None:
    """Make the keys of these names call these slots, wherever in `window` the focus is. Raises KeyError."""
    for name, slot in slots.items():
        for key in _BY_NAME[name].keys:
            QShortcut(QKeySequence(key), window).activated.connect(slot)


def key_texts(name: str) -> list[str]:
    """The keys as this system writes them: "Ctrl+N", "⌘N"."""
    form = QKeySequence.SequenceFormat.NativeText
    return [QKeySequence(key).toString(form).replace("Return", "Enter") for key in _BY_NAME[name].keys]


def show_key(action: QAction, name: str) -> None:
    """Write the key beside an entry of a menu that no button owns. It is `bind_shortcuts` that listens to it."""
    action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
    action.setShortcut(QKeySequence(_BY_NAME[name].keys[0]))


def show_keys(menu: QMenu, entries: Mapping[str, QAction]) -> None:
    """The same in a button's menu, while it is open: else the keys were ambiguous while the button has the focus."""

    def show() -> None:
        for name, action in entries.items():
            action.setShortcut(QKeySequence(_BY_NAME[name].keys[0]))

    def hide() -> None:
        for action in entries.values():
            action.setShortcut(QKeySequence())

    menu.aboutToShow.connect(show)
    menu.aboutToHide.connect(hide)


def _tr(source: str) -> str:
    return QCoreApplication.translate("Shortcuts", source)


def place_words(place: Place) -> str:
    return {
        Place.WINDOW: _tr("Everywhere"),
        Place.COMPOSER: _tr("While writing a message"),
        Place.MESSAGE: _tr("On a message"),
        Place.LIST: _tr("In the list of chats"),
    }[place]


def shortcut_words(name: str) -> str:
    """What the key does. Raises KeyError."""
    return (_everywhere() | _in_places())[name]


def _everywhere() -> dict[str, str]:
    return {
        "new_chat": _tr("New chat"),
        "new_incognito": _tr("New incognito chat"),
        "search": _tr("Search chats"),
        "previous_chat": _tr("Previous chat in the list"),
        "next_chat": _tr("Next chat in the list"),
        "focus_composer": _tr("Go to the message field"),
        "focus_transcript": _tr("Go to the messages"),
        "previous_message": _tr("Previous message"),
        "next_message": _tr("Next message"),
        "attach": _tr("Attach files"),
        "stop": _tr("Stop the reply, or go to the message field"),
        "regenerate": _tr("Answer again: the message chosen, or the last one"),
        "jump_to_end": _tr("Jump to the end"),
        "choose_model": _tr("Choose a model"),
        "chat_settings": _tr("Chat settings"),
        "settings": _tr("Settings"),
        "pin": _tr("Pin chat"),
        "duplicate": _tr("Duplicate chat"),
        "compress": _tr("Compress this chat's memory"),
        "undo_compression": _tr("Undo compression"),
        "export_chat": _tr("Export this chat"),
        "import_chats": _tr("Import chats"),
        "memory_panel": _tr("Memory panel"),
        "lab": _tr("Cache lab"),
        "more": _tr("Open the menu"),
        "shortcuts": _tr("Keyboard shortcuts"),
        "quit": _tr("Quit Ember"),
    }


def _in_places() -> dict[str, str]:
    return {
        "send": _tr("Send the message, as chosen in the settings"),
        "break_line": _tr("New line"),
        "edit_last": _tr("Edit your last message, while the field is empty"),
        "copy_message": _tr("Copy the message"),
        "edit_message": _tr("Edit the message"),
        "earlier_version": _tr("Earlier version"),
        "later_version": _tr("Later version"),
        "delete_message": _tr("Delete the message"),
        "undo_delete_message": _tr("Bring a deleted message back"),
        "open_chat": _tr("Open the chat"),
        "rename": _tr("Rename the chat"),
        "delete": _tr("Delete the chat"),
        "undo_delete": _tr("Bring a deleted chat back"),
        "menu": _tr("What can be done with the chat"),
    }
