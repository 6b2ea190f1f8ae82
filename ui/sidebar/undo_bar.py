"""After a deletion: what is gone, and Undo for some seconds. Deletions made meanwhile share the time."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, QTimer, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

from ui import numbers

UNDO_MS = 7000


class UndoBar(QFrame):
    """`committed` and `undone` carry the ids that were pending, a list of str."""

    committed = Signal(object)
    undone = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("undoBar")
        self._pending: dict[str, str] = {}
        self._label = QLabel()
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._label.setWordWrap(True)
        self.undo_button = QPushButton()
        self.undo_button.setProperty("kind", "pill")
        self.undo_button.clicked.connect(self._on_undo_clicked)
        self.timer = QTimer(self, singleShot=True, interval=UNDO_MS)
        self.timer.timeout.connect(self.commit)
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 6, 6)
        row.addWidget(self._label, 1)
        row.addWidget(self.undo_button)
        self.hide()
        self._retranslate()

    @property
    def pending(self) -> frozenset[str]:
        """Hidden, and not deleted yet."""
        return frozenset(self._pending)

    def add(self, conversation_id: str, title: str) -> None:
        self._pending[conversation_id] = title
        self._retranslate()
        self.show()
        self.timer.start()

    @Slot()
    def commit(self) -> None:
        """The time ran out, or the window closes."""
        self.timer.stop()
        self.hide()
        if ids := list(self._pending):
            self._pending.clear()
            self.committed.emit(ids)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_undo_clicked(self) -> None:
        self.timer.stop()
        self.hide()
        ids = list(self._pending)
        self._pending.clear()
        self.undone.emit(ids)

    def _retranslate(self) -> None:
        self.undo_button.setText(self.tr("Undo"))
        self.undo_button.setAccessibleName(self.tr("Undo the deletion"))
        if len(self._pending) == 1:
            title = next(iter(self._pending.values()))
            short = title if len(title) <= 40 else f"{title[:39]}…"
            self._label.setText(self.tr("Deleted “{title}”").format(title=short or self.tr("New chat")))
        else:
            self._label.setText(self.tr("Deleted {count} chats").format(count=numbers.count(len(self._pending))))
