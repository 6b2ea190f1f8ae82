"""What can be done with the chats selected and with a folder: the actions with their keys, and the menus of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import QModelIndex, QObject, QPoint, Qt, Signal, Slot
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMenu, QWidget

from ui.sidebar.conversation_model import ConversationModel, ListRole
from ui.sidebar.conversation_view import ConversationView
from ui.sidebar.list_rows import ChatRow
from ui.sidebar.row_words import one_line, pin_help

EXPORT_FORMATS = {"markdown": "Markdown", "html": "HTML", "json": "JSON"}  # names, the same in every language


class ChatMenu(QObject):
    """Every signal carries conversation ids, from the top of the list, or a folder's id."""

    pin_requested = Signal(str, bool)
    move_requested = Signal(object, object)
    folder_create_requested = Signal(object)
    folder_delete_requested = Signal(int)
    duplicate_requested = Signal(str)
    export_requested = Signal(object, str)
    compress_requested = Signal(str)
    undo_compression_requested = Signal(str)
    delete_requested = Signal(object)
    undo_requested = Signal()

    def __init__(self, view: ConversationView, model: ConversationModel, parent: QWidget) -> None:
        super().__init__(parent)
        self._view = view
        self._model = model
        self._targets: list[str] = []
        self._popup: QMenu | None = None
        self.pin = QAction(self)
        self.compress = QAction(self)
        self.undo_compression = QAction(self)
        self.pin.triggered.connect(self._on_pin_triggered)
        self.compress.triggered.connect(self._on_compress_triggered)
        self.undo_compression.triggered.connect(self._on_undo_compression_triggered)
        for key, slot in (
            (_DELETE, self._on_delete_pressed),
            (_RENAME, self._on_rename_pressed),
            (QKeySequence(QKeySequence.StandardKey.Undo), self.undo_requested.emit),
        ):
            action = QAction(self)
            action.setShortcut(key)
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)  # only while the list has the focus
            action.triggered.connect(slot)
            view.addAction(action)

    def targets(self, index: QModelIndex) -> list[str]:
        """The chats that a menu at this row is about: all that are selected if it is one of them, else it alone."""
        found = index.data(ListRole.CONVERSATION_ID) if index.isValid() else None
        selected = self._view.selected_ids
        return selected if found in selected else [found] if found else []

    def open_at(self, position: QPoint) -> None:
        """At this place of the view, once: a key may ask twice, by itself and by the system."""
        if self._popup is not None:
            return
        menu = self.menu(self._view.indexAt(position))
        menu.aboutToHide.connect(self._on_menu_hidden)
        menu.popup(self._view.viewport().mapToGlobal(position))
        self._popup = menu if menu.isVisible() else None

    def menu(self, index: QModelIndex) -> QMenu:
        """For the row's chats or folder, or for the blank part of the list."""
        menu = QMenu(self._view)
        menu.setToolTipsVisible(True)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._targets = self.targets(index)
        folder_id = index.data(ListRole.FOLDER_ID) if index.isValid() else None
        if self._targets:
            self._fill_for_chats(menu, self._targets)
        elif folder_id is not None:
            rename = _with_key(self.tr("Rename"), _RENAME)
            _add(menu, rename, lambda: self._view.edit(self._model.index_of_folder(folder_id)))
            _add(menu, _with_key(self.tr("Delete"), _DELETE), lambda: self.folder_delete_requested.emit(folder_id))
        else:
            _add(menu, self.tr("New folder"), lambda: self.folder_create_requested.emit([]))
        return menu

    def retranslate(self) -> None:
        self.pin.setText(self.tr("Pin"))
        self.pin.setToolTip(pin_help())
        self.compress.setText(self.tr("Compress this chat's memory…"))
        self.undo_compression.setText(self.tr("Undo compression"))

    def _fill_for_chats(self, menu: QMenu, ids: Sequence[str]) -> None:
        is_one = len(ids) == 1
        self.pin.setText(self.tr("Unpin") if self._are_pinned(ids) else self.tr("Pin"))
        menu.addAction(self.pin)
        if is_one:
            _add(menu, _with_key(self.tr("Rename"), _RENAME), lambda: self._view.edit(self._model.index_of(ids[0])))
        if not any(self._is_incognito(one) for one in ids):  # these have their own place
            self._add_folders(menu.addMenu(self.tr("Move to folder")), ids)
        if is_one:
            _add(menu, self.tr("Duplicate"), lambda: self.duplicate_requested.emit(ids[0]))
        export = menu.addMenu(self.tr("Export"))
        for file_format, name in EXPORT_FORMATS.items():
            _add(export, name, partial(self.export_requested.emit, ids, file_format))
        menu.addSeparator()
        if is_one:
            menu.addActions([self.compress, self.undo_compression])
            menu.addSeparator()
        _add(menu, _with_key(self.tr("Delete"), _DELETE), lambda: self.delete_requested.emit(ids))

    def _add_folders(self, menu: QMenu, ids: Sequence[str]) -> None:
        places = {one.folder_id for one in self._model.conversations if one.id in set(ids)}

        def add_place(words: str, folder_id: int | None) -> None:
            action = _add(menu, words, lambda: self.move_requested.emit(ids, folder_id))
            action.setCheckable(True)
            action.setChecked(places == {folder_id})
            action.setEnabled(places != {folder_id})

        for folder in self._model.folders:
            add_place(one_line(folder.name).replace("&", "&&"), folder.id)
        if self._model.folders:
            menu.addSeparator()
        _add(menu, self.tr("New folder…"), lambda: self.folder_create_requested.emit(ids))
        add_place(self.tr("None"), None)

    def _is_incognito(self, conversation_id: str) -> bool:
        row = self._model.index_of(conversation_id).data(ListRole.ROW)
        return isinstance(row, ChatRow) and row.conversation.is_incognito

    def _are_pinned(self, ids: Sequence[str]) -> bool:
        """All of them: else the entry pins those that are not yet."""
        return all(self._model.index_of(one).data(ListRole.IS_PINNED) for one in ids)

    @Slot()
    def _on_menu_hidden(self) -> None:
        self._popup = None

    @Slot()
    def _on_pin_triggered(self) -> None:
        is_pinned = not self._are_pinned(self._targets)
        for conversation_id in self._targets:
            self.pin_requested.emit(conversation_id, is_pinned)

    @Slot()
    def _on_compress_triggered(self) -> None:
        for conversation_id in self._targets[:1]:
            self.compress_requested.emit(conversation_id)

    @Slot()
    def _on_undo_compression_triggered(self) -> None:
        for conversation_id in self._targets[:1]:
            self.undo_compression_requested.emit(conversation_id)

    @Slot()
    def _on_rename_pressed(self) -> None:
        index = self._view.currentIndex()
        if index.isValid() and index.flags() & Qt.ItemFlag.ItemIsEditable:
            self._view.edit(index)

    @Slot()
    def _on_delete_pressed(self) -> None:
        """What is selected; a row that only has the cursor is left alone, unless it is a folder."""
        if ids := self._view.selected_ids:
            self.delete_requested.emit(ids)
        elif (folder_id := self._view.current_folder) is not None:
            self.folder_delete_requested.emit(folder_id)


def _add(menu: QMenu, words: str, slot: Callable[[], object]) -> QAction:
    action = menu.addAction(words)

    def on_triggered(_is_checked: bool) -> None:
        slot()

    action.triggered.connect(on_triggered)
    return action


def _with_key(words: str, key: QKeySequence) -> str:
    """The key stands in a column of its own; it is the list's, not the menu's."""
    return f"{words}\t{key.toString(QKeySequence.SequenceFormat.NativeText)}"


_DELETE, _RENAME = QKeySequence(Qt.Key.Key_Delete), QKeySequence(Qt.Key.Key_F2)
