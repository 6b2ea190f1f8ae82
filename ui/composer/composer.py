"""The card one writes in: the files that go along, the text field, Send that becomes Stop, and a hint under it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from app.attachments import pasted_attachment
from app.conversation import Draft
from app.errors import AttachmentError
from ui.composer.attach_button import AttachButton
from ui.composer.attachment_bar import MOST_ROWS, AttachmentBar
from ui.composer.card import ComposerCard
from ui.composer.composer_edit import LONG_TEXT, MOST_LINES, ComposerEdit
from ui.composer.composer_hint import ComposerHint
from ui.composer.cost_words import Cost
from ui.tokens import LINE_HEIGHT_PX

_DRAFT_MS = 600
_LONGEST_TEXT = 3 * LONG_TEXT
_LOW_WINDOW_PX = 600
_ELSE_PX = 340  # of the window's height, for everything but the text


class Composer(QWidget):
    """Knows nothing of conversations: the page gives it a draft and hears of changes, of send and of stop.

    `draft_changed` comes some time after the last change; its `attachments` is the same tuple object as long as no file
    came or went. `content_changed` and `attachments_changed` come at once. `edit_last_requested`: Up in an empty field.
    """

    send_requested = Signal(object)  # Draft
    stop_requested = Signal()
    draft_changed = Signal(object)  # Draft
    edit_last_requested = Signal()
    content_changed = Signal()
    attachments_changed = Signal()
    busy_changed = Signal(bool)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._is_busy = False
        self._is_reply = True
        self.edit = ComposerEdit()
        self.files = AttachmentBar()
        self.attach_button = AttachButton(self)
        self.button = QPushButton()
        self.button.setProperty("kind", "accent")
        self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click must not take the focus: it would end composing
        self.button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.hint = ComposerHint()
        self._card = ComposerCard(self.edit)
        self._draft_timer = QTimer(self, singleShot=True, interval=_DRAFT_MS)
        self._draft_timer.timeout.connect(self._on_draft_due)
        self._lay_out()
        self._wire()
        self._retranslate()

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    @property
    def draft(self) -> Draft:
        """What is there now, without what is being composed."""
        return Draft(self.edit.toPlainText(), self.files.attachments)

    def set_busy(self, is_busy: bool, *, is_reply: bool = True) -> None:
        """While a reply runs, or something else that can be stopped (not `is_reply`), Send is Stop."""
        if (is_busy, is_reply) != (self._is_busy, self._is_reply):
            self._is_busy, self._is_reply = is_busy, is_reply
            self.hint.draft_changed()  # what was told of the state before
            self._retranslate()
            self.busy_changed.emit(is_busy)

    def set_send_key(self, send_with: str) -> None:
        self.edit.sends_with = send_with
        self._retranslate()

    def set_hint(self, text: str | None, action: str = "") -> None:
        """What sending now means, before anything else; None leaves the cost to be told. `action` names its button."""
        self.hint.set_hint(text, action)

    def set_cost(self, cost: Cost | None) -> None:
        """What sending this very draft costs. One that `is_refused` is not sent: its words say why."""
        self.hint.set_cost(cost)

    def take_draft(self) -> Draft:
        """What is written, with what is being composed; nothing about it is pending afterwards."""
        self._draft_timer.stop()
        return Draft(self.edit.committed_text(), self.files.attachments)

    def show_draft(self, draft: Draft, *, owner: str = "") -> None:
        """`owner`: whom it belongs to. Files still being read for the draft before are kept for its owner."""
        text, attachments = draft.text, draft.attachments
        if len(text) > _LONGEST_TEXT:  # from the command line; the field would take seconds to lay it out
            text, attachments = "", (*attachments, pasted_attachment(text, self.tr("Pasted text")))
        self.edit.replace_text(text)
        self.files.show_attachments(attachments, owner)
        self.hint.draft_changed()
        if draft.attachments is self.files.attachments:
            self._draft_timer.stop()  # nothing has come that is not stored

    @Slot(object)
    def accept_files(self, paths: Sequence[Path]) -> None:
        """Attach them; each is read and shows what has come of it."""
        self.files.add_files(paths)
        self.edit.setFocus(Qt.FocusReason.OtherFocusReason)

    # slots

    @Slot()
    def _on_send_pressed(self) -> None:
        if self._is_busy:
            if not self.draft.is_blank:
                self.hint.tell(self.tr("This chat is still answering: wait, or stop it with Esc"))
            return
        draft = self.take_draft()
        name = self.files.name_being_read
        if name is not None:
            self.hint.tell(self.tr("{name} is still being read; send in a moment").format(name=name))
        elif self.hint.is_refused:
            self.hint.tell_refusal()
        elif not draft.is_blank:
            self.send_requested.emit(draft)

    @Slot()
    def _on_button_clicked(self) -> None:
        if self._is_busy:
            self.stop_requested.emit()
        else:
            self._on_send_pressed()

    @Slot()
    def _on_up_pressed(self) -> None:
        if not self._is_busy and not self.files.chips:
            self.edit_last_requested.emit()

    @Slot()
    def _on_about_to_ask(self) -> None:
        self.edit.committed_text()

    @Slot(str)
    def _on_long_text_pasted(self, text: str) -> None:
        name = self.tr("Pasted text")
        try:
            self.files.add(pasted_attachment(text, name))
        except AttachmentError as error:
            self.files.show_error(name, error)

    @Slot()
    def _on_picture_pasted(self) -> None:
        self.hint.tell(self.tr("Pictures cannot be read here; paste text, or attach text, code or a PDF"))

    @Slot()
    def _on_files_changed(self) -> None:
        self.attachments_changed.emit()
        self._on_content_changed()

    @Slot()
    def _on_content_changed(self) -> None:
        self.hint.draft_changed()
        self._draft_timer.start()
        self._update_button()
        self.content_changed.emit()

    @Slot()
    def _on_draft_due(self) -> None:
        if self.edit.is_composing:
            self._draft_timer.start()
        else:
            self.draft_changed.emit(self.draft)

    @Slot(bool)
    def _on_focus_changed(self, has_focus: bool) -> None:
        self._card.mark("active", has_focus)

    @Slot()
    def _on_files_emptied(self) -> None:
        self.edit.setFocus(Qt.FocusReason.TabFocusReason)

    # Qt overrides

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self.window() is not self:
            self.window().installEventFilter(self)
            self._fit_to(self.window().height())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QResizeEvent) and watched is self.window():
            self._fit_to(event.size().height())
        return False

    def _fit_to(self, window_px: int) -> None:
        """In a low window it grows less, so that something of the chat is left to see."""
        self.edit.set_most_lines(max(3, min(MOST_LINES, (window_px - _ELSE_PX) // LINE_HEIGHT_PX)))
        self.files.set_most_rows(MOST_ROWS if window_px >= _LOW_WINDOW_PX else MOST_ROWS // 2)

    def _update_button(self) -> None:
        self.button.setEnabled(self._is_busy or bool(self.files.chips) or not self.edit.is_blank)

    def _retranslate(self) -> None:
        self.hint.set_state(is_busy=self._is_busy, is_reply=self._is_reply, sends_with=self.edit.sends_with)
        keys = self.hint.key_words()
        self.edit.setPlaceholderText(self.tr("Write a message"))
        self.edit.setAccessibleName(self.tr("Message"))
        self.edit.setAccessibleDescription(keys)
        self.button.setText(self.tr("Stop") if self._is_busy else self.tr("Send"))
        stop = self.tr("Stop the reply") if self._is_reply else self.tr("Stop changing this chat's memory")
        self.button.setAccessibleName(stop if self._is_busy else self.tr("Send the message"))
        self.button.setToolTip(keys if self._is_busy else "")
        self._update_button()

    def _wire(self) -> None:
        edit, files, attach = self.edit, self.files, self.attach_button
        edit.send_pressed.connect(self._on_send_pressed)
        edit.content_changed.connect(self._on_content_changed)
        edit.focus_changed.connect(self._on_focus_changed)
        edit.up_pressed.connect(self._on_up_pressed)
        edit.long_text_pasted.connect(self._on_long_text_pasted)
        edit.picture_pasted.connect(self._on_picture_pasted)
        files.changed.connect(self._on_files_changed)
        files.emptied_by_keys.connect(self._on_files_emptied)
        for came in (edit.files_pasted, self._card.files_dropped, attach.chosen):
            came.connect(self.accept_files)
        attach.about_to_ask.connect(self._on_about_to_ask)
        self.button.clicked.connect(self._on_button_clicked)

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.addWidget(self.attach_button)
        row.addStretch(1)
        row.addWidget(self.button)
        inside = QVBoxLayout(self._card)
        inside.setContentsMargins(11, 12, 11, 10)
        inside.setSpacing(8)
        inside.addWidget(self.files)
        inside.addWidget(self.edit)
        inside.addLayout(row)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(6)
        outer.addWidget(self._card)
        outer.addWidget(self.hint)
