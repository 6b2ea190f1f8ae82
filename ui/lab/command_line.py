"""The same on the command line, to be copied."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Slot
from PySide6.QtWidgets import QApplication, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from ui.theme import mono_font
from ui.tokens import SECONDARY_PX, SPACE_S


class CommandLine(QWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.label = QLabel()
        self.label.setProperty("kind", "muted")
        self.command = QLabel()
        self.command.setObjectName("labCommand")
        self.command.setFont(mono_font(SECONDARY_PX))
        self.command.setWordWrap(True)
        self.command.setTextFormat(Qt.TextFormat.PlainText)
        self.copy_button = QPushButton()
        self.copy_button.setProperty("kind", "flat")
        self.copy_button.setAutoDefault(False)
        self.copy_button.clicked.connect(self._on_copy_clicked)
        row = QHBoxLayout()
        row.setSpacing(SPACE_S)
        row.addWidget(self.command, 1)
        row.addWidget(self.copy_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        column.addWidget(self.label)
        column.addLayout(row)
        self._retranslate()

    @property
    def text(self) -> str:
        return self.command.text()

    def show_command(self, command: str) -> None:
        self.command.setText(command)
        self.copy_button.setEnabled(bool(command))

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_copy_clicked(self) -> None:
        QApplication.clipboard().setText(self.command.text())

    def _retranslate(self) -> None:
        self.label.setText(self.tr("The same on the command line"))
        self.copy_button.setText(self.tr("Copy"))
        self.copy_button.setAccessibleName(self.tr("Copy the command"))
