"""Marks the words that were looked for in a message, for a moment."""

from __future__ import annotations

from PySide6.QtCore import QObject, QPoint, QTimer, Slot
from PySide6.QtGui import QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QTextEdit, QWidget

from ui.theme import Theme
from ui.transcript.message_scroll import MessageScroll
from ui.transcript.word_search import find_words

_SHOWN_MS = 2000


class WordMarks(QObject):
    def __init__(self, theme: Theme, scroll: MessageScroll) -> None:
        super().__init__(scroll)
        self._theme = theme
        self._scroll = scroll
        self._timer = QTimer(self, singleShot=True, interval=_SHOWN_MS)
        self._timer.timeout.connect(self.clear)
        self.num_marked = 0

    def mark(self, widget: QWidget, query: str) -> tuple[int, int] | None:
        """Mark `query` in the texts of `widget`. The top and bottom of the first mark in the viewport, None without."""
        self.clear()
        first: tuple[int, int] | None = None
        for edit in widget.findChildren(QTextEdit):
            if not edit.isVisibleTo(widget):
                continue  # a thought that is closed
            selections = []
            for start, length in find_words(edit.document().toPlainText(), query):
                cursor = QTextCursor(edit.document())
                cursor.setPosition(start)
                cursor.setPosition(start + length, QTextCursor.MoveMode.KeepAnchor)
                selection = QTextEdit.ExtraSelection()
                selection.cursor = cursor
                selection.format = self._format()
                selections.append(selection)
            edit.setExtraSelections(selections)
            self.num_marked += len(selections)
            if selections and first is None:
                rect = edit.cursorRect(selections[0].cursor)
                top = edit.viewport().mapTo(self._scroll.viewport(), QPoint(0, rect.top())).y()
                first = (top, top + rect.height())
        if self.num_marked:
            self._timer.start()
        return first

    @Slot()
    def clear(self) -> None:
        self._timer.stop()
        self.num_marked = 0
        for widget in self._scroll.window_rows.widgets.values():
            for edit in widget.findChildren(QTextEdit):
                if edit.extraSelections():
                    edit.setExtraSelections([])

    def _format(self) -> QTextCharFormat:
        result = QTextCharFormat()
        result.setBackground(self._theme.color("accent"))
        result.setForeground(self._theme.color("on_accent"))
        return result
