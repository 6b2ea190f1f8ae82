"""Which message the keyboard is on: moved by Alt+Up and Alt+Down, and outlined; else the whole transcript is, when the
keyboard came to it."""

from __future__ import annotations

from PySide6.QtCore import QObject, QRectF, Qt, Signal, Slot
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QApplication, QWidget

from ui.theme import Theme
from ui.tokens import RADIUS_CARD
from ui.transcript.message_scroll import MessageScroll
from ui.transcript.message_widget import MessageWidget

_AROUND_X, _AROUND_Y = 10, 6
_LINE_PX = 1.6


class MessageFocus(QObject):
    left = Signal()  # beyond the last message

    def __init__(self, theme: Theme, scroll: MessageScroll) -> None:
        super().__init__(scroll)
        self._scroll = scroll
        self._outline = _Outline(theme, scroll.viewport())
        self._focused: MessageWidget | None = None
        self._is_whole = False
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        application.focusChanged.connect(self._on_focus_changed)
        scroll.placed.connect(self.place)

    def row(self) -> int | None:
        return next((row for row, one in self._scroll.window_rows.widgets.items() if one is self._focused), None)

    def move(self, step: int) -> None:
        """To the message before (-1) or after (1) the one it is on; to the lowest one seen if it is on none."""
        rows = self._scroll.window_rows
        if not rows.messages:
            return
        row = self.row()
        if row is None:
            wanted = self._lowest_seen()
        elif row + step >= len(rows.messages):
            self.left.emit()
            return
        else:
            wanted = max(0, row + step)
        self._focus(wanted)

    def restore(self, row: int) -> None:
        """The message it was on may have been replaced: to what is in its place now."""
        if self.row() is not None:
            return
        if self._scroll.window_rows.messages:
            self._focus(min(row, len(self._scroll.window_rows.messages) - 1))
        else:
            self.left.emit()

    def outline_whole(self, is_whole: bool) -> None:
        self._is_whole = is_whole
        self.place()

    @Slot()
    def place(self) -> None:
        widget = self._focused
        if widget is not None and self.row() is not None:
            self._outline.setGeometry(widget.geometry().adjusted(-_AROUND_X, -_AROUND_Y, _AROUND_X, 2))
        elif self._is_whole:
            self._outline.setGeometry(self._scroll.viewport().rect())
        else:
            self._outline.hide()
            return
        self._outline.show()
        self._outline.raise_()

    @Slot(QWidget, QWidget)
    def _on_focus_changed(self, _old: QWidget | None, _new: QWidget | None) -> None:
        before = self._focused
        self._focused = next((one for one in self._scroll.window_rows.widgets.values() if one.has_key_focus()), None)
        if before is self._focused:
            return
        for widget in (before, self._focused):
            if widget is not None and widget in self._scroll.window_rows.widgets.values():
                widget.update_toolbar()
        self.place()

    def _focus(self, row: int) -> None:
        self._scroll.reveal_row(row).take_focus()

    def _lowest_seen(self) -> int:
        rows, bottom = self._scroll.window_rows, self._scroll.viewport().height()
        value = self._scroll.verticalScrollBar().value()
        lowest = rows.row_at(value + bottom - 1)
        return lowest if rows.top(lowest) < value + bottom or lowest == 0 else lowest - 1


class _Outline(QWidget):
    """Lies above the messages and takes no click."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(self._theme.color("accent"), _LINE_PX))
        rect = QRectF(self.rect()).adjusted(_LINE_PX, _LINE_PX, -_LINE_PX, -_LINE_PX)
        painter.drawRoundedRect(rect, RADIUS_CARD, RADIUS_CARD)
        painter.end()
