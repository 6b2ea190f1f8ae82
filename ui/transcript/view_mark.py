"""The line above the first message that the model still reads."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRect, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.theme import Theme, ui_font
from ui.tokens import SECONDARY_PX

_PAD_TOP, _PAD_BOTTOM = 4, 18
_GAP = 12
_LINE_ALPHA = 0.45
_SHARE = 0.72  # of the width, at most, for the words
_FLAGS = int(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter) | int(Qt.TextFlag.TextWordWrap)


class ViewMark(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._retranslate()

    @property
    def text(self) -> str:
        return self.accessibleName()

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._words_rect(width).height() + _PAD_TOP + _PAD_BOTTOM

    def sizeHint(self) -> QSize:
        return QSize(self.width(), self.heightForWidth(self.width()))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        words = self._words_rect(self.width())
        words.moveTop(_PAD_TOP)
        middle = words.center().y()
        line = self._theme.color("muted")
        line.setAlphaF(_LINE_ALPHA)
        for left, right in ((0, words.left() - _GAP), (words.right() + _GAP, self.width())):
            painter.fillRect(QRect(left, middle, max(0, right - left), 1), line)
        painter.setFont(ui_font(SECONDARY_PX))
        painter.setPen(self._theme.color("muted"))
        painter.drawText(words, _FLAGS, self.text)
        painter.end()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        self.setAccessibleName(self.tr("The model no longer reads what is above this line: the context was full"))
        self.updateGeometry()
        self.update()

    def _words_rect(self, width: int) -> QRect:
        """Where the words go, in the middle of `width`, from the top."""
        metrics = QFontMetrics(ui_font(SECONDARY_PX))
        most = int(width * _SHARE)
        rect = metrics.boundingRect(QRect(0, 0, most, 1000), _FLAGS & ~int(Qt.AlignmentFlag.AlignVCenter), self.text)
        return QRect((width - rect.width()) // 2, 0, rect.width(), rect.height())
