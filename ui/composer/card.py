"""The card around the field: a click anywhere on it writes, and files may be dropped anywhere on it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QDragLeaveEvent, QDropEvent, QMouseEvent
from PySide6.QtWidgets import QFrame, QWidget

from ui.composer.mime_files import files_of


class ComposerCard(QFrame):
    files_dropped = Signal(object)  # list[Path]

    def __init__(self, field: QWidget) -> None:
        super().__init__()
        self._field = field
        self.setObjectName("composerCard")
        self.setCursor(Qt.CursorShape.IBeamCursor)
        self.setAcceptDrops(True)

    def mark(self, state: str, is_on: bool) -> None:
        """`state`: "active" while the field has the focus, "drop" while files are held over it."""
        self.setProperty(state, is_on)
        self.style().unpolish(self)
        self.style().polish(self)

    # Qt overrides

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._field.setFocus(Qt.FocusReason.MouseFocusReason)
        event.accept()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if files_of(event.mimeData()):
            event.acceptProposedAction()
            self.mark("drop", True)

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        self.mark("drop", False)

    def dropEvent(self, event: QDropEvent) -> None:
        self.mark("drop", False)
        if files := files_of(event.mimeData()):
            event.acceptProposedAction()
            self.files_dropped.emit(files)
