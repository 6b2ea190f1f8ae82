"""Keeps the rows that are in sight where they are while rows above them come and go."""

from __future__ import annotations

from types import TracebackType

from PySide6.QtCore import QPersistentModelIndex, QPoint
from PySide6.QtWidgets import QListView


class ScrollAnchor:
    """Around a change of the model. A list that stands at its top stays there, and shows what is new."""

    def __init__(self, view: QListView) -> None:
        self._view = view
        self._anchor = QPersistentModelIndex()
        self._top = 0

    def __enter__(self) -> None:
        if self._view.verticalScrollBar().value() > 0:
            index = self._view.indexAt(QPoint(self._view.viewport().width() // 2, 0))
            self._anchor = QPersistentModelIndex(index)
            self._top = self._view.visualRect(index).top()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._anchor.isValid():
            bar = self._view.verticalScrollBar()
            moved = self._view.visualRect(self._view.model().index(self._anchor.row(), 0)).top() - self._top
            if moved:
                bar.setValue(bar.value() + moved)
