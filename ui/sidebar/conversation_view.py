"""The list's keys, mouse and drops. It says what was asked for in terms of chats and folders."""

from __future__ import annotations

import math
import time

from PySide6.QtCore import QItemSelectionModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import (
    QDragEnterEvent,
    QDragLeaveEvent,
    QDragMoveEvent,
    QDropEvent,
    QFocusEvent,
    QInputMethodEvent,
    QKeyEvent,
    QMouseEvent,
)
from PySide6.QtWidgets import QAbstractItemView, QApplication, QListView, QWidget

from ui.sidebar.conversation_delegate import ConversationDelegate
from ui.sidebar.conversation_model import CHATS_MIME, ConversationModel, ListRole
from ui.sidebar.list_rows import ChatRow, FolderRow, Group
from ui.sidebar.row_words import one_line
from ui.theme import Theme

_Flag = QItemSelectionModel.SelectionFlag


class ConversationView(QListView):
    entered_chat = Signal(str)
    collapse_requested = Signal(int, bool)
    dropped = Signal(object, object)  # list of conversation ids, the folder's id or None

    def __init__(self, model: ConversationModel, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._typed = ""
        self._typed_at = -math.inf
        self._delegate = ConversationDelegate(theme, self)
        self.setModel(model)
        self.setItemDelegate(self._delegate)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.setEditTriggers(QListView.EditTrigger.NoEditTriggers)
        self.setSelectionMode(QListView.SelectionMode.ExtendedSelection)
        self.setMouseTracking(True)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setDragDropMode(QListView.DragDropMode.DragDrop)
        self.setDropIndicatorShown(False)

    @property
    def selected_ids(self) -> list[str]:
        """The chats selected, from the top."""
        indexes = sorted(self.selectionModel().selectedIndexes(), key=QModelIndex.row)
        return [found for index in indexes if (found := index.data(ListRole.CONVERSATION_ID))]

    @property
    def current_folder(self) -> int | None:
        """The folder whose own row has the cursor."""
        found = self.currentIndex().data(ListRole.FOLDER_ID)
        return found if isinstance(found, int) else None

    @property
    def is_editing(self) -> bool:
        return self.state() == QAbstractItemView.State.EditingState

    def put_cursor(self, index: QModelIndex) -> None:
        """The arrows go on from here; nothing is selected, and nothing chosen."""
        selection = self.selectionModel()
        selection.blockSignals(True)
        selection.setCurrentIndex(index, _Flag.NoUpdate)
        selection.blockSignals(False)
        self.viewport().update()

    # Qt overrides

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt would make the first row the current one, and by that open its chat."""
        if not self.currentIndex().isValid():
            rows = (self.model().index(row, 0) for row in range(self.model().rowCount()))
            first = next((index for index in rows if index.flags() & Qt.ItemFlag.ItemIsSelectable), QModelIndex())
            if first.isValid():
                self.put_cursor(first)
        super().focusInEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self.is_editing:  # what the editor has no use for, as Return
            super().keyPressEvent(event)
            return
        index = self.currentIndex()
        row = index.data(ListRole.ROW) if index.isValid() else None
        key = event.key()
        if key == Qt.Key.Key_F10 and event.modifiers() == Qt.KeyboardModifier.ShiftModifier:
            self.customContextMenuRequested.emit(self.visualRect(index).center())
            return
        is_plain = event.modifiers() in (Qt.KeyboardModifier.NoModifier, Qt.KeyboardModifier.KeypadModifier)
        if not is_plain:
            pass
        elif isinstance(row, FolderRow) and key in _FOLDER_KEYS:
            is_collapsed = not row.is_collapsed if key not in (_LEFT, _RIGHT) else key == _LEFT
            if is_collapsed != row.is_collapsed:
                self.collapse_requested.emit(row.folder.id, is_collapsed)
            return
        elif isinstance(row, ChatRow) and key == _LEFT and row.is_indented and row.folder is not None:
            model = self.model()
            assert isinstance(model, ConversationModel)
            self.selectionModel().setCurrentIndex(model.index_of_folder(row.folder.id), _Flag.Clear)
            return
        elif isinstance(row, ChatRow) and key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.entered_chat.emit(row.conversation.id)
            return
        super().keyPressEvent(event)

    def keyboardSearch(self, search: str) -> None:
        """Type-ahead by the beginning of a title. Letters typed in one go belong together; one alone goes on."""
        now = time.monotonic()
        is_going_on = now - self._typed_at < QApplication.keyboardInputInterval() / 1000
        self._typed_at = now
        self._typed = one_line(self._typed + search if is_going_on else search).casefold()
        model, start = self.model(), self.currentIndex().row() + (not is_going_on)
        for row in (*range(max(0, start), model.rowCount()), *range(start)):
            index = model.index(row, 0)
            if index.flags() & Qt.ItemFlag.ItemIsEnabled and str(index.data()).casefold().startswith(self._typed):
                self.setCurrentIndex(index)
                return

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        """Type-ahead in Hangul, whose syllables come from an input method."""
        if typed := event.commitString():
            self.keyboardSearch(typed)
        event.accept()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self.indexAt(event.position().toPoint())
        row = index.data(ListRole.ROW) if index.isValid() else None
        if isinstance(row, FolderRow):
            self.selectionModel().setCurrentIndex(index, _Flag.Clear)
            if event.button() is Qt.MouseButton.LeftButton:
                self.collapse_requested.emit(row.folder.id, not row.is_collapsed)
            return
        if event.button() is Qt.MouseButton.RightButton:  # the menu is about the row, which is not chosen by that
            event.accept()
            return
        super().mousePressEvent(event)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """A second click on a folder is not a second turn."""
        index = self.indexAt(event.position().toPoint())
        if not (index.isValid() and isinstance(index.data(ListRole.ROW), FolderRow)):
            super().mouseDoubleClickEvent(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasFormat(CHATS_MIME) and event.source() in (self, None):
            event.acceptProposedAction()

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:
        super().dragMoveEvent(event)  # scrolls where the pointer nears an edge
        index = self.indexAt(event.position().toPoint())
        is_target = self._target(index) is not None
        self._show_target(index if is_target else QModelIndex())
        event.setAccepted(is_target)

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        super().dragLeaveEvent(event)
        self._show_target(QModelIndex())

    def dropEvent(self, event: QDropEvent) -> None:
        """Not Qt's own, which would take the rows dragged out of the model afterwards."""
        target = self._target(self.indexAt(event.position().toPoint()))
        self._show_target(QModelIndex())
        self.stopAutoScroll()
        self.setState(QAbstractItemView.State.NoState)
        if target is None:
            event.ignore()
            return
        event.setDropAction(Qt.DropAction.CopyAction)
        event.accept()
        ids = bytes(event.mimeData().data(CHATS_MIME).data()).decode().split("\n")
        self.dropped.emit(ids, target[0])

    def _target(self, index: QModelIndex) -> tuple[int | None] | None:
        """Where a drop on this row moves chats to: (a folder or None,); None where it would mean nothing."""
        row = index.data(ListRole.ROW) if index.isValid() else None
        match row:
            case FolderRow():
                return (row.folder.id,)
            case ChatRow() if row.is_indented and row.folder is not None:
                return (row.folder.id,)
            case ChatRow() if row.heading.group not in _NO_TARGETS:
                return (None,)
            case None:
                return None
        group = getattr(row, "group", None)
        return (None,) if group is not None and group not in _NO_TARGETS else None

    def _show_target(self, index: QModelIndex) -> None:
        self._delegate.drop_target = QPersistentModelIndex(index)
        self.viewport().update()


_LEFT, _RIGHT = Qt.Key.Key_Left, Qt.Key.Key_Right
_FOLDER_KEYS = {_LEFT, _RIGHT, Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space}
_NO_TARGETS = {Group.INCOGNITO, Group.PINNED, Group.FOLDERS}
