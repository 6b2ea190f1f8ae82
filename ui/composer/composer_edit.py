"""The text field of the composer: grows with the text, knows which key sends, and loses or doubles no syllable.

Invariant for input methods: what is being composed is committed exactly once before the text is read. Platforms that
do not commit when asked are helped: the preedit is inserted here, and a late commit of the same text is dropped.
"""

from __future__ import annotations

import math

from PySide6.QtCore import QMimeData, QSize, Qt, Signal, Slot
from PySide6.QtGui import QFocusEvent, QGuiApplication, QInputMethodEvent, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextEdit, QWidget

from ui.tokens import LINE_HEIGHT_PX

_MOST_LINES = 8
_LEAST_PX = 38


class ComposerEdit(QTextEdit):
    send_pressed = Signal()
    content_changed = Signal()
    focus_changed = Signal(bool)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.sends_with = "enter"
        self._preedit = ""
        self._taken = ""  # committed here for the input method, which may still commit it itself
        self.setAcceptRichText(False)
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setDocumentMargin(1)
        self.textChanged.connect(self._on_text_changed)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self._fit()

    @property
    def is_composing(self) -> bool:
        return bool(self._preedit)

    @property
    def is_blank(self) -> bool:
        return not self._preedit.strip() and not self.toPlainText().strip()

    def committed_text(self) -> str:
        """Commit what is being composed and return the whole text."""
        if self._preedit:
            QGuiApplication.inputMethod().commit()
        if self._preedit:
            taken = self._preedit
            commit = QInputMethodEvent("", [])
            commit.setCommitString(taken)
            self.inputMethodEvent(commit)
            QGuiApplication.inputMethod().reset()
            self._taken = taken
        return self.toPlainText()

    def replace_text(self, text: str) -> None:
        """Show another text; what was being composed belongs to the old one and is dropped."""
        if self._preedit:
            self._taken = self._preedit
            self.inputMethodEvent(QInputMethodEvent("", []))
            QGuiApplication.inputMethod().reset()
        self.setPlainText(text)
        cursor = self.textCursor()
        cursor.movePosition(cursor.MoveOperation.End)
        self.setTextCursor(cursor)

    # Qt overrides

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            event.accept()
            if self._sends(event.modifiers()):
                if not event.isAutoRepeat():
                    self.send_pressed.emit()
            else:
                self.committed_text()
                self.textCursor().insertText("\n")
                self.ensureCursorVisible()
            return
        super().keyPressEvent(event)

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        is_late = bool(self._taken) and event.commitString() == self._taken
        if event.preeditString() or event.commitString():
            self._taken = ""
        if is_late:
            event.setCommitString("")
        self._preedit = event.preeditString()
        super().inputMethodEvent(event)
        self.content_changed.emit()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focus_changed.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.focus_changed.emit(False)

    def insertFromMimeData(self, source: QMimeData) -> None:
        if source.hasText():
            self.textCursor().insertText(source.text())
            self.ensureCursorVisible()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def sizeHint(self) -> QSize:
        return QSize(200, self.height())

    @Slot()
    def _on_text_changed(self) -> None:
        self.content_changed.emit()

    @Slot()
    def _fit(self) -> None:
        wanted = math.ceil(self.document().size().height())
        most = _MOST_LINES * LINE_HEIGHT_PX
        self.setFixedHeight(max(_LEAST_PX, min(wanted, most)))
        needs_bar = wanted > most
        policy = Qt.ScrollBarPolicy
        self.setVerticalScrollBarPolicy(policy.ScrollBarAsNeeded if needs_bar else policy.ScrollBarAlwaysOff)

    def _sends(self, modifiers: Qt.KeyboardModifier) -> bool:
        if modifiers & Qt.KeyboardModifier.ShiftModifier:
            return False
        if modifiers & (Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.MetaModifier):
            return True
        return self.sends_with == "enter"
