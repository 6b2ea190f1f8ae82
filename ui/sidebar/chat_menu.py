"""What can be done with the chats selected and with a folder: the actions with their keys, and the menus of them."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QObject, Qt, Signal, Slot
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMenu, QWidget

from app.conversation import Folder
from ui.sidebar.conversation_model import ConversationModel, ListRole
from ui.sidebar.conversation_view import ConversationView
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
        self.pin = QAction(self)
        self.rename = QAction(self)
        self.duplicate = QAction(self)
        self.compress = QAction(self)
        self.undo_compression = QAction(self)
        self.delete = QAction(self)
        self.new_folder = QAction(self)
        self._undo = QAction(self)
        self.pin.triggered.connect(self._on_pin_triggered)
        self.duplicate.triggered.connect(self._on_duplicate_triggered)
        self.compress.triggered.connect(self._on_compress_triggered)
        self.undo_compression.triggered.connect(self._on_undo_compression_triggered)
        self.new_folder.triggered.connect(self._on_new_folder_triggered)
        for action, key, slot in (
            (self.delete, QKeySequence(Qt.Key.Key_Delete), self._on_delete_triggered),
            (self.rename, QKeySequence(Qt.Key.Key_F2), self._on_rename_triggered),
            (self._undo, QKeySequence(QKeySequence.StandardKey.Undo), self.undo_requested.emit),
        ):
            action.setShortcut(key)
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)  # only while the list has the focus
            action.triggered.connect(slot)
            view.addAction(action)

    def menu(self) -> QMenu:
        """For the chats selected, else for the folder with the cursor, else for the blank part of the list."""
        menu = QMenu(self._view)
        menu.setToolTipsVisible(True)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        ids = self._view.selected_ids
        if ids:
            self._fill_for_chats(menu, ids)
        elif self._view.current_folder is not None:
            menu.addActions([self.rename, self.delete])
        else:
            menu.addAction(self.new_folder)
        return menu

    def retranslate(self) -> None:
        self.rename.setText(self.tr("Rename"))
        self.duplicate.setText(self.tr("Duplicate"))
        self.compress.setText(self.tr("Compress this chat's memory…"))
        self.undo_compression.setText(self.tr("Undo compression"))
        self.delete.setText(self.tr("Delete"))
        self.new_folder.setText(self.tr("New folder"))
        self.pin.setToolTip(pin_help())
        self.show_pinned()

    def show_pinned(self) -> None:
        """The one entry does what is not done yet: some selected are not pinned, so pin; else unpin."""
        self.pin.setText(self.tr("Unpin") if self._are_pinned(self._view.selected_ids) else self.tr("Pin"))

    def _fill_for_chats(self, menu: QMenu, ids: Sequence[str]) -> None:
        is_one = len(ids) == 1
        self.show_pinned()
        menu.addAction(self.pin)
        if is_one:
            menu.addAction(self.rename)
        self._add_folders(menu.addMenu(self.tr("Move to folder")), ids)
        if is_one:
            menu.addAction(self.duplicate)
        export = menu.addMenu(self.tr("Export"))
        for file_format, name in EXPORT_FORMATS.items():
            action = export.addAction(name)
            action.triggered.connect(self._emit_export(ids, file_format))
        menu.addSeparator()
        if is_one:
            menu.addActions([self.compress, self.undo_compression])
            menu.addSeparator()
        menu.addAction(self.delete)

    def _add_folders(self, menu: QMenu, ids: Sequence[str]) -> None:
        places = {one.folder_id for one in self._model.conversations if one.id in set(ids)}
        here = next(iter(places)) if len(places) == 1 else ...
        for folder in self._model.folders:
            self._add_place(menu, one_line(folder.name).replace("&", "&&"), ids, folder, is_here=folder.id == here)
        if self._model.folders:
            menu.addSeparator()
        new = menu.addAction(self.tr("New folder…"))
        new.triggered.connect(lambda: self.folder_create_requested.emit(ids))
        self._add_place(menu, self.tr("None"), ids, None, is_here=here is None)

    def _add_place(self, menu: QMenu, words: str, ids: Sequence[str], folder: Folder | None, *, is_here: bool) -> None:
        action = menu.addAction(words)
        action.setCheckable(True)
        action.setChecked(is_here)
        action.setEnabled(not is_here)
        folder_id = folder.id if folder else None
        action.triggered.connect(lambda: self.move_requested.emit(ids, folder_id))

    def _emit_export(self, ids: Sequence[str], file_format: str) -> object:
        return lambda: self.export_requested.emit(ids, file_format)

    def _are_pinned(self, ids: Sequence[str]) -> bool:
        return bool(ids) and all(self._model.index_of(one).data(ListRole.IS_PINNED) for one in ids)

    @Slot()
    def _on_pin_triggered(self) -> None:
        ids = self._view.selected_ids
        is_pinned = not self._are_pinned(ids)
        for conversation_id in ids:
            self.pin_requested.emit(conversation_id, is_pinned)

    @Slot()
    def _on_rename_triggered(self) -> None:
        index = self._view.currentIndex()
        if index.isValid() and index.flags() & Qt.ItemFlag.ItemIsEditable:
            self._view.edit(index)

    @Slot()
    def _on_duplicate_triggered(self) -> None:
        for conversation_id in self._view.selected_ids:
            self.duplicate_requested.emit(conversation_id)

    @Slot()
    def _on_compress_triggered(self) -> None:
        for conversation_id in self._view.selected_ids[:1]:
            self.compress_requested.emit(conversation_id)

    @Slot()
    def _on_undo_compression_triggered(self) -> None:
        for conversation_id in self._view.selected_ids[:1]:
            self.undo_compression_requested.emit(conversation_id)

    @Slot()
    def _on_delete_triggered(self) -> None:
        if ids := self._view.selected_ids:
            self.delete_requested.emit(ids)
        elif (folder_id := self._view.current_folder) is not None:
            self.folder_delete_requested.emit(folder_id)

    @Slot()
    def _on_new_folder_triggered(self) -> None:
        self.folder_create_requested.emit([])
