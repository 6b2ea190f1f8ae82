"""A block of code: its language, a Copy button, and coloured text that grows while a reply streams."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, QTimer, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from ui.markdown.blocks import Code
from ui.theme import Theme
from ui.transcript.block_marks import INDENT_PX
from ui.transcript.code_text import CodeText

_COPIED_MS = 1500


class CodeBlock(QWidget):
    def __init__(self, theme: Theme, code: Code, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._language = QLabel()
        self._language.setProperty("kind", "muted")
        self._language.setTextFormat(Qt.TextFormat.PlainText)
        self._copy = QPushButton()
        self._copy.setProperty("kind", "flat")
        self._copy.clicked.connect(self._on_copy_clicked)
        self._restore_label = QTimer(self, singleShot=True, interval=_COPIED_MS)
        self._restore_label.timeout.connect(self._retranslate)
        self._text = CodeText(theme, code.info)
        head = QFrame()
        head.setObjectName("codeHead")
        row = QHBoxLayout(head)
        row.setContentsMargins(12, 4, 6, 4)
        row.addWidget(self._language)
        row.addStretch(1)
        row.addWidget(self._copy)
        card = QFrame()
        card.setObjectName("codeCard")
        column = QVBoxLayout(card)
        column.setContentsMargins(1, 1, 1, 1)
        column.setSpacing(0)
        column.addWidget(head)
        column.addWidget(self._text)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(code.depth * INDENT_PX, 9, 0, 6)
        outer.addWidget(card)
        self._language.setText(code.info)
        self._retranslate()
        self.show_code(code)

    @property
    def code(self) -> str:
        return self._text.code

    @property
    def language(self) -> str:
        return self._language.text()

    def show_code(self, code: Code) -> None:
        """Show `code`; when it only grew, the rest is appended."""
        if code.info != self._language.text():
            self._language.setText(code.info)
            self._text.set_language(code.info)
        self._text.show_code(code.text)

    def finish(self) -> None:
        self._text.finish()

    def recolour(self) -> None:
        self._text.recolour()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_copy_clicked(self) -> None:
        QGuiApplication.clipboard().setText(self._text.code)
        self._copy.setText(self.tr("Copied"))
        self._restore_label.start()

    @Slot()
    def _retranslate(self) -> None:
        self._copy.setText(self.tr("Copy"))
        self._copy.setAccessibleName(self.tr("Copy this code"))
        self._text.setAccessibleName(self.tr("Code"))
