"""One line at the foot of the list that says what just happened, for some seconds."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QWidget

from ui.announce import announce

TOLD_MS = 7000


class ToldBar(QFrame):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("undoBar")
        self._label = QLabel()
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._label.setWordWrap(True)
        self.timer = QTimer(self, singleShot=True, interval=TOLD_MS)
        self.timer.timeout.connect(self.hide)
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 8, 12, 8)
        row.addWidget(self._label)
        self.hide()

    @property
    def words(self) -> str:
        return self._label.text()

    @Slot(str)
    def tell(self, words: str) -> None:
        self._label.setText(words)
        self.show()
        self.timer.start()
        if not words.endswith("…"):  # progress is not spoken many times
            announce(self, words)
