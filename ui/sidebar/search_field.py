"""The search field: tells what is looked for a moment after typing, a syllable that is being composed included."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QFocusEvent, QInputMethodEvent, QKeyEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from ui.sidebar.row_words import one_line

DEBOUNCE_MS = 80


class SearchField(QLineEdit):
    query_changed = Signal(str)
    down_pressed = Signal()
    enter_pressed = Signal()
    escape_pressed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._preedit = ""
        self._query = ""
        self.timer = QTimer(self, singleShot=True, interval=DEBOUNCE_MS)
        self.timer.timeout.connect(self.tell)
        self.textChanged.connect(self._on_text_changed)

    @property
    def typed(self) -> str:
        """What the field shows."""
        at = self.cursorPosition()
        return self.text()[:at] + self._preedit + self.text()[at:]

    @property
    def query(self) -> str:
        """What was told last."""
        return self._query

    @Slot()
    def tell(self) -> None:
        """Tell it at once."""
        self.timer.stop()
        query = one_line(self.typed)
        if query != self._query:
            self._query = query
            self.query_changed.emit(query)

    # Qt overrides

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        preedit = event.preeditString()
        super().inputMethodEvent(event)
        if preedit != self._preedit:
            self._preedit = preedit
            self._wait()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        match event.key():
            case Qt.Key.Key_Down:
                self.tell()
                self.down_pressed.emit()
            case Qt.Key.Key_Return | Qt.Key.Key_Enter:
                self.tell()
                self.enter_pressed.emit()
            case _:
                super().keyPressEvent(event)

    def event(self, event: QEvent) -> bool:
        """Esc is the window's too; in a field that holds something it is the field's."""
        if (self.text() or self._preedit) and takes_escape(event):
            if event.type() == QEvent.Type.KeyPress:
                self.escape_pressed.emit()
            return True
        return super().event(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self._preedit = ""
        self._wait()

    @Slot()
    def _on_text_changed(self) -> None:
        if self.text() or self._preedit:
            self._wait()
        else:
            self.tell()  # the list comes back at once

    def _wait(self) -> None:
        self.timer.start()


def takes_escape(event: QEvent) -> bool:
    """Whether it is Esc; then it is taken from the window's shortcut."""
    is_escape = isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape
    if is_escape and event.type() == QEvent.Type.ShortcutOverride:
        event.accept()
    return is_escape and event.type() in (QEvent.Type.ShortcutOverride, QEvent.Type.KeyPress)
