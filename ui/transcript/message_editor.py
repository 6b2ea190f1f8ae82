"""Writing a message anew in its place: the composer's text field, Save and Cancel."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, Signal, Slot
from PySide6.QtGui import QKeyEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from engine.protocol.commands import Role
from ui.composer.composer_edit import ComposerEdit


class MessageEditor(QFrame):
    """Holds the text until it is saved or dropped. `saved` is emitted only while saving is allowed."""

    saved = Signal(str)
    cancelled = Signal()

    def __init__(self, role: Role, text: str, sends_with: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._role = role
        self._can_save = True
        self.original = text
        self.is_saved = False  # and not changed since
        self.setObjectName("editorCard")
        self.edit = ComposerEdit()
        self.edit.sends_with = sends_with
        self.save_button = QPushButton()
        self.save_button.setProperty("kind", "accent")
        self.save_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click must not end composing
        self.cancel_button = QPushButton()
        self.hint = QLabel()
        self.hint.setProperty("kind", "muted")
        self._lay_out()
        self.edit.send_pressed.connect(self.save)
        self.edit.content_changed.connect(self._on_content_changed)
        self.save_button.clicked.connect(self.save)
        self.cancel_button.clicked.connect(self.cancelled)
        self.edit.replace_text(text)
        self._retranslate()

    @property
    def text(self) -> str:
        """With what is being composed."""
        return self.edit.committed_text()

    def set_can_save(self, can_save: bool) -> None:
        """False while a reply runs: what is written stays, and waits."""
        self._can_save = can_save
        self._retranslate()

    def set_text(self, text: str) -> None:
        self.edit.replace_text(text)

    def heightForWidth(self, width: int) -> int:
        return self.sizeHint().height()

    def sizeHint(self) -> QSize:
        return self._column.sizeHint()

    @Slot()
    def save(self) -> None:
        text = self.edit.committed_text()
        if not self._can_save or not text.strip():
            return
        if text == self.original and self._role is Role.ASSISTANT:
            self.cancelled.emit()
        else:
            self.is_saved = True
            self.saved.emit(text)

    # Qt overrides

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.cancelled.emit()
            return
        super().keyPressEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._update_save()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_content_changed(self) -> None:
        self.is_saved = False
        self._update_save()

    def _update_save(self) -> None:
        self.save_button.setEnabled(self._can_save and not self.edit.is_blank)

    def _retranslate(self) -> None:
        is_question = self._role is Role.USER
        self.edit.setAccessibleName(self.tr("Edit your message") if is_question else self.tr("Edit reply"))
        self.save_button.setText(self.tr("Save and ask again") if is_question else self.tr("Save"))
        self.save_button.setAccessibleName(self.save_button.text())
        self.cancel_button.setText(self.tr("Cancel"))
        self.cancel_button.setAccessibleName(self.tr("Cancel editing"))
        if not self._can_save:
            self.hint.setText(self.tr("It can be saved when the reply has ended"))
        elif self.edit.sends_with == "enter":
            self.hint.setText(self.tr("Enter saves, Esc cancels"))
        else:
            self.hint.setText(self.tr("Ctrl+Enter saves, Esc cancels"))
        self._update_save()

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self.hint, 1)
        row.addWidget(self.cancel_button)
        row.addWidget(self.save_button)
        self._column = column = QVBoxLayout(self)
        column.setContentsMargins(11, 10, 11, 10)
        column.setSpacing(8)
        column.addWidget(self.edit)
        column.addLayout(row)
