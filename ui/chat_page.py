"""The right side of the window: header, transcript or empty state, composer. Files dropped anywhere are attached."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QStackedWidget, QVBoxLayout, QWidget

from ui.composer.composer import Composer
from ui.composer.mime_files import files_of
from ui.empty_state import EmptyState
from ui.header import Header
from ui.theme import Theme
from ui.tokens import READING_WIDTH, SPACE_S, SPACE_XL
from ui.transcript.transcript import Transcript


class ChatPage(QWidget):
    def __init__(self, theme: Theme, header: Header, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setAcceptDrops(True)
        self.header = header
        self.transcript = Transcript(theme)
        self.empty = EmptyState(theme)
        self.composer = Composer()
        self._stack = QStackedWidget()
        self._stack.addWidget(self.empty)
        self._stack.addWidget(self.transcript)
        self._composer_row = QHBoxLayout()
        self._composer_row.addWidget(self.composer)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 16)
        column.setSpacing(0)
        column.addWidget(header)
        column.addWidget(self._stack, 1)
        column.addSpacing(SPACE_S)
        column.addLayout(self._composer_row)

    @property
    def is_empty(self) -> bool:
        return self._stack.currentWidget() is self.empty

    def show_empty(self, is_empty: bool) -> None:
        self._stack.setCurrentWidget(self.empty if is_empty else self.transcript)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if files_of(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        if files := files_of(event.mimeData()):
            event.acceptProposedAction()
            self.composer.accept_files(files)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        side = max(SPACE_XL, (self.width() - READING_WIDTH) // 2)
        self._composer_row.setContentsMargins(side, 0, side, 0)
