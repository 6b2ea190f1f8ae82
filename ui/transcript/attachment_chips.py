"""The files that went with a message: a small button each, that shows what the model read of it."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QEvent, QRect, QSize, Qt
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QPushButton, QWidget

from app.conversation import Attachment
from ui import numbers
from ui.icons import icon
from ui.theme import Theme, ui_font
from ui.tokens import SECONDARY_PX
from ui.transcript.attachment_dialog import AttachmentDialog

_CHIP_PX, _GAP = 28, 6
_AROUND_PX = 40  # icon, padding and border of a chip
_WIDEST_PX = 270  # name and size
_ROUNDING_PX = 3  # the widths of name and size may add up to a little more than that of both


class AttachmentChips(QWidget):
    """In rows, as many as fit beside one another."""

    def __init__(self, theme: Theme, attachments: tuple[Attachment, ...], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._attachments = attachments
        self.buttons: list[QPushButton] = []
        for attachment in attachments:
            button = QPushButton(self)
            button.setProperty("kind", "file")
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setCursor(Qt.CursorShape.PointingHandCursor)
            button.clicked.connect(partial(self._show, attachment))
            self.buttons.append(button)
        self.recolour()
        self._retranslate()

    def recolour(self) -> None:
        for button in self.buttons:
            button.setIcon(icon("file", self._theme.tokens.muted, 14))

    def natural_width(self, at_most: int) -> int:
        return max(rect.right() + 1 for rect in self._rects(at_most))

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return max(rect.bottom() + 1 for rect in self._rects(width))

    def sizeHint(self) -> QSize:
        return QSize(self.width(), self.heightForWidth(self.width()))

    def resizeEvent(self, event: QResizeEvent) -> None:
        for button, rect, attachment in zip(self.buttons, self._rects(self.width()), self._attachments, strict=True):
            button.setGeometry(rect)
            button.setText(_words(attachment, rect.width() - _AROUND_PX + _ROUNDING_PX).replace("&", "&&"))

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _show(self, attachment: Attachment) -> None:
        dialog = AttachmentDialog(attachment, self.window())
        dialog.open()

    def _retranslate(self) -> None:
        for button, attachment in zip(self.buttons, self._attachments, strict=True):
            size = numbers.size(attachment.num_bytes)
            button.setText(_words(attachment, _WIDEST_PX).replace("&", "&&"))
            button.setAccessibleName(self.tr("File {name}, {size}").format(name=attachment.name, size=size))
            button.setToolTip(self.tr("Show the text that the model read of {name}").format(name=attachment.name))

    def _rects(self, width: int) -> list[QRect]:
        metrics = QFontMetrics(ui_font(SECONDARY_PX))
        rects: list[QRect] = []
        x = y = 0
        for attachment in self._attachments:
            chip = min(width, metrics.horizontalAdvance(_words(attachment, _WIDEST_PX)) + _AROUND_PX)
            if x and x + chip > width:
                x, y = 0, y + _CHIP_PX + _GAP
            rects.append(QRect(x, y, chip, _CHIP_PX))
            x += chip + _GAP
        return rects


def _words(attachment: Attachment, at_most: int) -> str:
    """Name and size in `at_most` pixels; the name gives way."""
    metrics = QFontMetrics(ui_font(SECONDARY_PX))
    size = f"  {numbers.size(attachment.num_bytes)}"
    room = max(0, at_most - metrics.horizontalAdvance(size))
    return metrics.elidedText(attachment.name, Qt.TextElideMode.ElideMiddle, room) + size
