"""What a search found, in place of the list: how many chats, and the chats with their excerpts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractListModel, QEvent, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal, Slot
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QLabel, QListView, QVBoxLayout, QWidget

from ui.announce import announce
from ui.sidebar.row_words import chats_words, title_words
from ui.sidebar.search_delegate import SearchDelegate
from ui.sidebar.search_field import takes_escape
from ui.sidebar.search_rows import FoundChat, FoundRow, FoundText
from ui.theme import Theme

_Index = QModelIndex | QPersistentModelIndex


class SearchModel(QAbstractListModel):
    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._rows: Sequence[FoundRow] = ()

    @property
    def rows(self) -> Sequence[FoundRow]:
        return self._rows

    def show_rows(self, rows: Sequence[FoundRow]) -> None:
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def rowCount(self, parent: _Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._rows)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self._rows[index.row()] if index.isValid() else None
        match row, role:
            case None, _:
                return None
            case _, Qt.ItemDataRole.UserRole:
                return row
            case FoundChat(), Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.AccessibleTextRole:
                return title_words(row.title)
            case FoundText(), Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.AccessibleTextRole:
                return row.text
        return None


class SearchResults(QWidget):
    chosen = Signal(str, object)  # a conversation, and the id of a message in it or None
    left_at_top = Signal()
    escape_pressed = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.model = SearchModel(self)
        self.view = _ResultView()
        self.view.setModel(self.model)
        self.view.setItemDelegate(SearchDelegate(theme, self.view))
        self.view.entered_row.connect(self._on_entered)
        self.view.clicked.connect(self._on_entered)
        self.view.left_at_top.connect(self.left_at_top)
        self.view.escape_pressed.connect(self.escape_pressed)
        self.count = QLabel()
        self.count.setProperty("kind", "muted")
        self.count.setTextFormat(Qt.TextFormat.PlainText)
        self.count.setWordWrap(True)
        self.count.setContentsMargins(8, 2, 8, 0)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)
        column.addWidget(self.count)
        column.addWidget(self.view, 1)
        theme.changed.connect(self.view.viewport().update)
        self.setAccessibleName(self.tr("Search results"))

    def show_rows(self, rows: Sequence[FoundRow]) -> None:
        """The row with the cursor keeps it where it is found again."""
        row = self.view.currentIndex().data(Qt.ItemDataRole.UserRole)
        if list(rows) != list(self.model.rows):
            self.model.show_rows(rows)
        if row is not None and row in rows:
            self.view.setCurrentIndex(self.model.index(list(rows).index(row), 0))
        num_chats = sum(isinstance(one, FoundChat) for one in rows)
        self._tell(chats_words(num_chats) if num_chats else self.tr("Nothing found: try fewer words"))

    def show_failure(self, sentence: str) -> None:
        self.model.show_rows(())
        self._tell(sentence)

    @Slot()
    def enter(self) -> None:
        """The keyboard goes to the first row."""
        if self.model.rowCount():
            self.view.setFocus(Qt.FocusReason.TabFocusReason)
            if not self.view.currentIndex().isValid():
                self.view.setCurrentIndex(self.model.index(0, 0))

    @Slot()
    def choose(self) -> None:
        """The row with the cursor, else the first message found; a title where no text was."""
        index = self.view.currentIndex()
        if not index.isValid() and self.model.rowCount():
            texts = (row for row, one in enumerate(self.model.rows) if isinstance(one, FoundText))
            index = self.model.index(next(texts, 0), 0)
        self._on_entered(index)

    def retranslate(self) -> None:
        self.view.setAccessibleName(self.tr("Search results"))

    @Slot(QModelIndex)
    def _on_entered(self, index: QModelIndex) -> None:
        row = index.data(Qt.ItemDataRole.UserRole) if index.isValid() else None
        if row is not None:
            self.chosen.emit(row.conversation_id, None if isinstance(row, FoundChat) else row.message_id)

    def _tell(self, words: str) -> None:
        if words != self.count.text():
            self.count.setText(words)
            announce(self.count, words)


class _ResultView(QListView):
    entered_row = Signal(QModelIndex)
    left_at_top = Signal()
    escape_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.setResizeMode(QListView.ResizeMode.Adjust)  # the height of an excerpt depends on the width
        self.setEditTriggers(QListView.EditTrigger.NoEditTriggers)
        self.setMouseTracking(True)

    def event(self, event: QEvent) -> bool:
        if takes_escape(event):
            if event.type() == QEvent.Type.KeyPress:
                self.escape_pressed.emit()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        match event.key():
            case Qt.Key.Key_Return | Qt.Key.Key_Enter:
                self.entered_row.emit(self.currentIndex())
            case Qt.Key.Key_Up if self.currentIndex().row() <= 0:
                self.left_at_top.emit()
            case _:
                super().keyPressEvent(event)
