"""What the model read of a file, to look at."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLabel, QPlainTextEdit, QVBoxLayout, QWidget

from app.conversation import Attachment
from ui import numbers
from ui.theme import mono_font


class AttachmentDialog(QDialog):
    """Gone when closed."""

    def __init__(self, attachment: Attachment, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(attachment.name)
        self.setObjectName("attachmentDialog")
        head = QLabel(
            self.tr("{size}; the model reads {count} characters of it").format(
                size=numbers.size(attachment.num_bytes), count=numbers.count(len(attachment.text))
            )
        )
        head.setProperty("kind", "muted")
        self.text = QPlainTextEdit()
        self.text.setObjectName("attachmentText")
        self.text.setReadOnly(True)
        self.text.setFont(mono_font(13))
        self.text.setPlainText(attachment.text)
        self.text.setAccessibleName(self.tr("Text of {name}").format(name=attachment.name))
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 14, 16, 14)
        column.setSpacing(10)
        column.addWidget(head)
        column.addWidget(self.text, 1)
        column.addWidget(buttons)
        self.resize(680, 520)
