"""The text field of the composer: grows with the text, knows which key sends, and loses or doubles no syllable.

Invariant for input methods: what is being composed is committed exactly once before the text is read. Platforms that
do not commit when asked are helped: the preedit is inserted here, and a late commit of the same text is dropped.
Files, and texts too long for a field that lays out every line of them, are handed on.
"""

from __future__ import annotations

import math
import time

from PySide6.QtCore import QEvent, QMimeData, QSize, Qt, Signal, Slot
from PySide6.QtGui import (
    QDragEnterEvent,
    QFocusEvent,
    QGuiApplication,
    QInputMethodEvent,
    QKeyEvent,
    QResizeEvent,
    QTextBlockFormat,
    QTextCursor,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextEdit, QWidget

from ui.composer.mime_files import files_of, is_picture, text_of
from ui.tokens import LINE_HEIGHT_PX

MOST_LINES = 8
_LEAST_PX = 38
_LATE_S = 1.0  # a commit that comes later than this is another one
LONG_TEXT = 20_000  # characters; longer pastes become an attachment


class ComposerEdit(QTextEdit):
    send_pressed = Signal()
    content_changed = Signal()
    focus_changed = Signal(bool)
    up_pressed = Signal()  # in an empty field
    files_pasted = Signal(object)  # list[Path]
    long_text_pasted = Signal(str)
    picture_pasted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.sends_with = "enter"
        self._most_lines = MOST_LINES
        self._preedit = ""
        self._taken = ""  # committed here for the input method, which may still commit it itself
        self._taken_at = 0.0
        self.setAcceptRichText(False)
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setDocumentMargin(1)
        self.textChanged.connect(self._on_text_changed)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.setPlainText("")
        self._fit()

    @property
    def is_composing(self) -> bool:
        return bool(self._preedit)

    @property
    def is_blank(self) -> bool:
        if self._preedit.strip():
            return False
        block = self.document().begin()
        while block.isValid():  # not the whole text at every key
            if block.text().strip():
                return False
            block = block.next()
        return True

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
            self._take(taken)
        return self.toPlainText()

    def replace_text(self, text: str) -> None:
        """Show another text; what was being composed belongs to the old one and is dropped."""
        if self._preedit:
            self._take(self._preedit)
            self.inputMethodEvent(QInputMethodEvent("", []))
            QGuiApplication.inputMethod().reset()
        self.setPlainText(text)
        cursor = self.textCursor()
        cursor.movePosition(cursor.MoveOperation.End)
        self.setTextCursor(cursor)

    def set_most_lines(self, most: int) -> None:
        """How far it grows before it scrolls."""
        if most != self._most_lines:
            self._most_lines = most
            self._fit()

    def setPlainText(self, text: str) -> None:
        """Also gives the lines their height, which a new text has lost; neither can be undone."""
        super().setPlainText(text)
        self.document().setUndoRedoEnabled(False)
        cursor = QTextCursor(self.document())
        cursor.select(QTextCursor.SelectionType.Document)
        block = QTextBlockFormat()
        between = max(0, LINE_HEIGHT_PX - self.fontMetrics().height())  # below a line: the first stands at the top
        block.setLineHeight(between, QTextBlockFormat.LineHeightTypes.LineDistanceHeight.value)
        cursor.mergeBlockFormat(block)
        self.document().setUndoRedoEnabled(True)

    # Qt overrides

    def event(self, event: QEvent) -> bool:
        is_override = event.type() == QEvent.Type.ShortcutOverride and bool(self._preedit)
        if is_override and isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape:
            event.accept()  # it ends composing; the window's Esc would stop the reply
            return True
        return super().event(event)

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
        if event.key() == Qt.Key.Key_Escape and self._preedit:
            self.committed_text()
            return
        is_plain = not event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier
        if event.key() == Qt.Key.Key_Up and is_plain and not self._preedit and self.document().isEmpty():
            self.up_pressed.emit()
            return
        super().keyPressEvent(event)

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        is_late = event.commitString() == self._taken != "" and time.monotonic() - self._taken_at < _LATE_S
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

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return bool(files_of(source)) or super().canInsertFromMimeData(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        self.committed_text()
        text = text_of(source)
        if files := files_of(source):
            self.files_pasted.emit(files)
        elif is_picture(source):
            self.picture_pasted.emit()
        elif len(text) > LONG_TEXT:
            self.long_text_pasted.emit(text)
        elif text:
            self.textCursor().insertText(text)
            self.ensureCursorVisible()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if files_of(event.mimeData()):
            event.ignore()  # the whole composer takes files
        else:
            super().dragEnterEvent(event)

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
        most = self._most_lines * LINE_HEIGHT_PX
        self.setFixedHeight(max(_LEAST_PX, min(wanted, most)))
        needs_bar = wanted > most
        policy = Qt.ScrollBarPolicy
        self.setVerticalScrollBarPolicy(policy.ScrollBarAsNeeded if needs_bar else policy.ScrollBarAlwaysOff)

    def _take(self, preedit: str) -> None:
        self._taken, self._taken_at = preedit, time.monotonic()

    def _sends(self, modifiers: Qt.KeyboardModifier) -> bool:
        if modifiers & Qt.KeyboardModifier.ShiftModifier:
            return False
        if modifiers & (Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.MetaModifier):
            return True
        return self.sends_with == "enter"
