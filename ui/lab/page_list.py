"""The lab's pages by name. The one that the keyboard goes to has a frame, but for where a click brought it there."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFocusEvent, QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QListWidget, QWidget


class PageList(QListWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("labList")
        self.setProperty("isByKey", True)

    # Qt overrides

    def focusInEvent(self, event: QFocusEvent) -> None:
        if event.reason() is not Qt.FocusReason.ActiveWindowFocusReason:  # it comes back as it was
            self._show_frame(event.reason() is not Qt.FocusReason.MouseFocusReason)
        super().focusInEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        self._show_frame(True)
        super().keyPressEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._show_frame(False)
        super().mousePressEvent(event)

    # private

    def _show_frame(self, is_by_key: bool) -> None:
        if self.property("isByKey") is not is_by_key:
            self.setProperty("isByKey", is_by_key)
            self.style().unpolish(self)
            self.style().polish(self)
