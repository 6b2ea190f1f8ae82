"""After a deletion: what is gone, and Undo for some seconds. Deletions made meanwhile share the time."""

from __future__ import annotations

from collections.abc import Hashable

from PySide6.QtCore import QEvent, Qt, QTimer, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

from ui import numbers
from ui.announce import announce

UNDO_MS = 7000


class UndoBar(QFrame):
    """`committed` and `undone` carry the keys that were pending, oldest first: a list of what `add` was given.

    It knows nothing of what a key stands for, and several may listen, each to the keys that are its own.
    `focus_after` gets the keyboard when the bar goes while it holds it.
    """

    committed = Signal(object)
    undone = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("undoBar")
        self.focus_after: QWidget | None = None
        self._pending: dict[Hashable, str] = {}
        self._label = QLabel()
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._label.setWordWrap(True)
        self.undo_button = QPushButton()
        self.undo_button.setProperty("kind", "pill")
        self.undo_button.clicked.connect(self.undo)
        self.timer = QTimer(self, singleShot=True, interval=UNDO_MS)
        self.timer.timeout.connect(self.commit)
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 6, 6)
        row.addWidget(self._label, 1)
        row.addWidget(self.undo_button)
        self.hide()
        self._retranslate()

    @property
    def pending(self) -> frozenset[Hashable]:
        """Hidden, and not deleted yet."""
        return frozenset(self._pending)

    @property
    def words(self) -> str:
        return self._label.text()

    def add(self, key: Hashable, words: str) -> None:
        """`words` say what was deleted, as "Deleted a message"."""
        self._pending.pop(key, None)
        self._pending[key] = words
        self._retranslate()
        self.show()
        self.timer.start()
        announce(self, self.tr("{words}. Undo is possible for some seconds.").format(words=self.words))

    @Slot()
    def commit(self) -> None:
        """The time ran out, or the window closes."""
        if keys := self._take():
            self.committed.emit(keys)

    @Slot()
    def undo(self) -> None:
        if keys := self._take():
            self.undone.emit(keys)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _take(self) -> list[Hashable]:
        self.timer.stop()
        had_focus = self.undo_button.hasFocus()
        self.hide()
        if had_focus and self.focus_after is not None:
            self.focus_after.setFocus(Qt.FocusReason.OtherFocusReason)
        keys = list(self._pending)
        self._pending.clear()
        return keys

    def _retranslate(self) -> None:
        self.undo_button.setText(self.tr("Undo"))
        self.undo_button.setAccessibleName(self.tr("Undo the deletion"))
        newest = next(reversed(self._pending.values()), "")
        if len(self._pending) > 1:
            more = numbers.count(len(self._pending) - 1)
            newest = self.tr("{words} and {count} more").format(words=newest, count=more)
        self._label.setText(newest)
