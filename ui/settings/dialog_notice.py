"""A sentence at the top of a dialog: what was wrong, or how something went. It can be sent away."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

from ui.tokens import SPACE_M, SPACE_S


class DialogNotice(QFrame):
    """Hidden while there is nothing to say."""

    undo_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("notice")
        self.words = QLabel()
        self.words.setWordWrap(True)
        self.words.setTextFormat(Qt.TextFormat.PlainText)
        self.words.setProperty("kind", "notice")
        self.undo_button = _flat()
        self.close_button = _flat()
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_M, SPACE_S, SPACE_S, SPACE_S)
        row.setSpacing(SPACE_S)
        row.addWidget(self.words, 1)
        row.addWidget(self.undo_button)
        row.addWidget(self.close_button)
        self.undo_button.clicked.connect(self._on_undo_clicked)
        self.close_button.clicked.connect(self.hide)
        self._retranslate()
        self.hide()

    def show_words(self, words: str, *, can_undo: bool = False) -> None:
        self.words.setText(words)
        self.words.setAccessibleName(words)
        self.undo_button.setVisible(can_undo)
        self.setVisible(bool(words))

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_undo_clicked(self) -> None:
        self.hide()
        self.undo_requested.emit()

    def _retranslate(self) -> None:
        self.undo_button.setText(self.tr("Undo"))
        self.undo_button.setAccessibleName(self.tr("Undo"))
        self.close_button.setText(self.tr("Dismiss"))
        self.close_button.setAccessibleName(self.tr("Dismiss this message"))


def _flat() -> QPushButton:
    button = QPushButton()
    button.setProperty("kind", "flat")
    button.setAutoDefault(False)
    return button
