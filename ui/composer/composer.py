"""The card one writes in: the text field, Send that becomes Stop, and a hint under it."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.conversation import Attachment, Draft
from ui.composer.composer_edit import ComposerEdit

_DRAFT_MS = 600


class Composer(QWidget):
    """Knows nothing of conversations: the page gives it a draft and hears of changes, of send and of stop."""

    send_requested = Signal(object)  # Draft
    stop_requested = Signal()
    draft_changed = Signal(object)  # Draft

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._is_busy = False
        self._is_reply = True
        self._hint_text: str | None = None
        self._attachments: tuple[Attachment, ...] = ()
        self.edit = ComposerEdit()
        self.button = QPushButton()
        self.button.setProperty("kind", "accent")
        self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click must not take the focus: it would end composing
        self.button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.hint = QLabel()
        self.hint.setProperty("kind", "muted")
        self.hint.setWordWrap(True)
        self.hint.setTextFormat(Qt.TextFormat.PlainText)
        self._card = _Card(self.edit)
        self._card.setObjectName("composerCard")
        self._draft_timer = QTimer(self, singleShot=True, interval=_DRAFT_MS)
        self._draft_timer.timeout.connect(self._on_draft_due)
        self._lay_out()
        self.edit.send_pressed.connect(self._on_send_pressed)
        self.edit.content_changed.connect(self._on_content_changed)
        self.edit.focus_changed.connect(self._on_focus_changed)
        self.button.clicked.connect(self._on_button_clicked)
        self._retranslate()

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    def set_busy(self, is_busy: bool, *, is_reply: bool = True) -> None:
        """While a reply runs, or something else that can be stopped (not `is_reply`), Send is Stop."""
        if (is_busy, is_reply) != (self._is_busy, self._is_reply):
            self._is_busy, self._is_reply = is_busy, is_reply
            self._retranslate()

    def set_send_key(self, send_with: str) -> None:
        self.edit.sends_with = send_with
        self._retranslate()

    def set_hint(self, text: str | None) -> None:
        """What sending now means; None says which key sends."""
        if text != self._hint_text:
            self._hint_text = text
            self._retranslate()

    def take_draft(self) -> Draft:
        """What is written, with what is being composed; nothing about it is pending afterwards."""
        self._draft_timer.stop()
        return Draft(self.edit.committed_text(), self._attachments)

    def show_draft(self, draft: Draft, *, owner: str = "") -> None:
        self._attachments = draft.attachments
        self.edit.replace_text(draft.text)
        self._draft_timer.stop()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_send_pressed(self) -> None:
        if self._is_busy:
            return
        draft = self.take_draft()
        if not draft.is_blank:
            self.send_requested.emit(draft)

    @Slot()
    def _on_button_clicked(self) -> None:
        if self._is_busy:
            self.stop_requested.emit()
        else:
            self._on_send_pressed()

    @Slot()
    def _on_content_changed(self) -> None:
        self._draft_timer.start()
        self._update_button()

    @Slot()
    def _on_draft_due(self) -> None:
        if self.edit.is_composing:
            self._draft_timer.start()
        else:
            self.draft_changed.emit(Draft(self.edit.toPlainText(), self._attachments))

    @Slot(bool)
    def _on_focus_changed(self, has_focus: bool) -> None:
        self._card.setProperty("active", has_focus)
        self._card.style().unpolish(self._card)
        self._card.style().polish(self._card)

    def _update_button(self) -> None:
        self.button.setEnabled(self._is_busy or bool(self._attachments) or not self.edit.is_blank)

    def _retranslate(self) -> None:
        self.edit.setPlaceholderText(self.tr("Write a message"))
        self.edit.setAccessibleName(self.tr("Message"))
        self.button.setText(self.tr("Stop") if self._is_busy else self.tr("Send"))
        stop = self.tr("Stop the reply") if self._is_reply else self.tr("Stop changing this chat's memory")
        self.button.setAccessibleName(stop if self._is_busy else self.tr("Send the message"))
        self.button.setToolTip(self._key_hint() if self._is_busy else "")
        self.hint.setText(self._hint_text if self._hint_text is not None else self._key_hint())
        self._update_button()

    def _key_hint(self) -> str:
        if self._is_busy and self._is_reply:
            return self.tr("Esc stops the reply")
        if self._is_busy:
            return self.tr("Esc stops it, and this chat's memory stays as it was")
        if self.edit.sends_with == "enter":
            return self.tr("Enter sends, Shift+Enter starts a new line")
        return self.tr("Ctrl+Enter sends, Enter starts a new line")

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.addStretch(1)
        row.addWidget(self.button)
        inside = QVBoxLayout(self._card)
        inside.setContentsMargins(11, 12, 11, 10)
        inside.setSpacing(8)
        inside.addWidget(self.edit)
        inside.addLayout(row)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(6)
        outer.addWidget(self._card)
        hint_row = QHBoxLayout()
        hint_row.setContentsMargins(4, 0, 4, 0)
        hint_row.addWidget(self.hint, 1)
        outer.addLayout(hint_row)


class _Card(QFrame):
    """A click anywhere on the card writes in its field."""

    def __init__(self, edit: ComposerEdit) -> None:
        super().__init__()
        self._edit = edit
        self.setCursor(Qt.CursorShape.IBeamCursor)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._edit.setFocus(Qt.FocusReason.MouseFocusReason)
        event.accept()
