"""The lab's pages by name. What the keyboard goes to has a frame, once the keyboard is used; a click needs none."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFocusEvent, QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QListWidget, QWidget

_BY_KEY = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason, Qt.FocusReason.ShortcutFocusReason)


class PageList(QListWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("labList")

    # Qt overrides

    def focusInEvent(self, event: QFocusEvent) -> None:
        self._show_frame(event.reason() in _BY_KEY)
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
