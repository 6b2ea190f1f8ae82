"""Which chat of the list is open, and where its cursor stands. A chat is opened by whatever puts the cursor on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from PySide6.QtCore import QItemSelectionModel, QModelIndex, QObject, QPersistentModelIndex, Signal, Slot

from ui.sidebar.conversation_model import ConversationModel, ListRole
from ui.sidebar.conversation_view import ConversationView
from ui.sidebar.scroll_anchor import ScrollAnchor

_Flag = QItemSelectionModel.SelectionFlag


class OpenChat(QObject):
    chosen = Signal(str)

    def __init__(self, view: ConversationView, model: ConversationModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._view = view
        self._model = model
        self._current: str | None = None
        view.selectionModel().currentChanged.connect(self._on_current_changed)
        view.clicked.connect(self._on_clicked)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around a change of the rows: the open chat stays marked, and a cursor whose row goes moves to the next."""
        was_shown = self._is_shown
        cursor = QPersistentModelIndex(self._view.currentIndex())
        had_cursor = cursor.isValid()
        neighbours = self._model.chats_from(cursor.row()) if had_cursor else []
        with ScrollAnchor(self._view):
            yield
        if had_cursor and not cursor.isValid():
            rows = map(self._model.index_of, neighbours)
            self._view.put_cursor(next(filter(QModelIndex.isValid, rows), QModelIndex()))
        if not was_shown and self._is_shown:
            self.select(self._current)

    def select(self, conversation_id: str | None) -> None:
        """Mark the chat that is shown, without choosing it again. Others that are selected with it stay so."""
        is_other = conversation_id != self._current
        self._mark(conversation_id)
        index = self._model.index_of(conversation_id) if conversation_id else QModelIndex()
        if index.isValid() and index == self._view.currentIndex() and not is_other:
            return
        selection = self._view.selectionModel()
        selection.blockSignals(True)
        if index.isValid():
            selection.setCurrentIndex(index, _Flag.ClearAndSelect)
            self._view.scrollTo(index)
        else:
            selection.clearSelection()
        selection.blockSignals(False)
        self._view.viewport().update()

    def step(self, step: int) -> None:
        """Choose the next chat of the list (1) or the one before (-1), counted from the one that is open."""
        chats = self._model.chat_ids
        if not chats:
            return
        if self._current in chats:
            place = min(max(chats.index(self._current) + step, 0), len(chats) - 1)
        else:
            place = 0 if step > 0 else -1
        self.choose(chats[place])

    @Slot(str)
    def choose(self, conversation_id: str) -> None:
        if conversation_id != self._current:
            self.select(conversation_id)
            self.chosen.emit(conversation_id)

    @property
    def _is_shown(self) -> bool:
        return self._current is not None and self._model.index_of(self._current).isValid()

    def _mark(self, conversation_id: str | None) -> None:
        self._current = conversation_id
        self._model.set_open(conversation_id)

    @Slot(QModelIndex, QModelIndex)
    def _on_current_changed(self, current: QModelIndex, _previous: QModelIndex) -> None:
        """Qt selects the row afterwards, or adds it to those selected."""
        conversation_id = current.data(ListRole.CONVERSATION_ID) if current.isValid() else None
        if conversation_id and conversation_id != self._current and not self._model.is_refreshing:
            self._mark(conversation_id)
            self.chosen.emit(conversation_id)

    @Slot(QModelIndex)
    def _on_clicked(self, index: QModelIndex) -> None:
        """On the row that has the cursor already, and is not open: a new chat is, or one was deleted."""
        conversation_id = index.data(ListRole.CONVERSATION_ID)
        if conversation_id:
            self.choose(conversation_id)
