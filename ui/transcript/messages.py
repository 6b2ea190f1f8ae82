"""One message of the transcript each: the user's bubble, the model's reply, and a notice when something failed."""

from __future__ import annotations

from time import perf_counter

from PySide6.QtCore import QEvent, QRectF, QSize, Qt, QTimer, Slot
from PySide6.QtGui import QGuiApplication, QPainter, QPainterPath, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QLabel, QSizePolicy, QVBoxLayout, QWidget

from app.conversation import Message
from engine.protocol.events import FinishReason, TurnStatistics
from ui.theme import Theme
from ui.tokens import RADIUS_CARD
from ui.transcript.flow_text import FlowText
from ui.transcript.prose_document import write_plain
from ui.transcript.reply_body import ReplyBody
from ui.transcript.statistics_line import StatisticsLine

_FLUSH_MS = 34  # at most 30 repaints a second
_LONG_TEXT = 1000
_BUBBLE_SHARE = 0.76
_PAD_X, _PAD_TOP, _PAD_BOTTOM = 14, 8, 12  # a line has its free space above
_TAIL_RADIUS = 3


class UserMessage(QWidget):
    """Text as it was typed, in a bubble at the right."""

    def __init__(self, theme: Theme, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._message_text = message.text
        self._text = FlowText(theme, self)
        self._natural: tuple[int, int] = (0, 0)  # (at most, width): measured once for a width
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self.recolour()
        self._retranslate()

    @property
    def text(self) -> str:
        return self._message_text

    def recolour(self) -> None:
        write_plain(self._text.document(), self._message_text, self._theme.tokens)
        self.update()

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._text.heightForWidth(self._text_width(width)) + _PAD_TOP + _PAD_BOTTOM

    def sizeHint(self) -> QSize:
        return QSize(max(1, self.width()), self.heightForWidth(max(1, self.width())))

    def resizeEvent(self, event: QResizeEvent) -> None:
        width = self._text_width(self.width())
        height = self._text.heightForWidth(width)
        self._text.setGeometry(self.width() - width - _PAD_X, _PAD_TOP, width, height)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left = self._text.x() - _PAD_X
        rect = QRectF(left, 0, self.width() - left, self._text.height() + _PAD_TOP + _PAD_BOTTOM)
        path = QPainterPath()
        path.setFillRule(Qt.FillRule.WindingFill)
        path.addRoundedRect(rect, RADIUS_CARD, RADIUS_CARD)
        corner = QRectF(
            rect.right() - 2 * RADIUS_CARD, rect.bottom() - 2 * RADIUS_CARD, 2 * RADIUS_CARD, 2 * RADIUS_CARD
        )
        path.addRoundedRect(corner, _TAIL_RADIUS, _TAIL_RADIUS)
        painter.fillPath(path, self._theme.color("accent_behind"))
        painter.end()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        self._text.setAccessibleName(self.tr("Your message"))

    def _text_width(self, width: int) -> int:
        at_most = max(40, int(width * _BUBBLE_SHARE) - 2 * _PAD_X)
        if len(self._message_text) > _LONG_TEXT:
            return at_most  # it fills the width in any case; measuring would lay it out twice more
        if self._natural[0] != at_most:
            self._natural = (at_most, self._text.natural_width(at_most))
        return self._natural[1]


class AssistantMessage(QWidget):
    """A reply. While it streams, arriving text is collected and drawn at most 30 times a second."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.body = ReplyBody(theme)
        self.statistics = StatisticsLine()
        self.num_flushes = 0
        self._text = ""
        self._pending = ""
        self._is_live = False
        self._flush_timer = QTimer(self, singleShot=True)
        self._flush_timer.timeout.connect(self._on_flush_due)
        self.statistics.copy_requested.connect(self._on_copy_requested)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.body)
        column.addWidget(self.statistics)

    @property
    def text(self) -> str:
        """The reply as Markdown, with what has not been drawn yet."""
        return self._text

    @property
    def is_drawn(self) -> bool:
        """Whether nothing that has arrived waits to be drawn."""
        return not self._pending

    def show_message(self, message: Message) -> None:
        self._text = message.text
        self.body.show_text(message.text)
        self._show_end(message.statistics, message.finish_reason)

    def begin(self, text: str) -> None:
        """Show a reply that streams and has come to `text`."""
        self._is_live = True
        self.statistics.hide()
        self._text = text
        self.body.feed(text)

    def append(self, text: str) -> None:
        self._text += text
        self._pending += text
        if not self._flush_timer.isActive():
            self._flush_timer.start(_FLUSH_MS)

    def finish(self, text: str | None, statistics: TurnStatistics | None, reason: FinishReason | None) -> None:
        """Nothing follows. `text` is the whole reply, or None when only what has arrived is known."""
        self._flush_timer.stop()
        if text is not None and text.startswith(self._text):
            self.append(text[len(self._text) :])
            self._flush_timer.stop()
        elif text is not None:
            self._text, self._pending, self._is_live = text, "", False
            self.body.replace_text(text)
        if self._pending:
            self._flush()
        if self._is_live:
            self.body.finish()
            self._is_live = False
        self._show_end(statistics, reason)

    def recolour(self) -> None:
        self.body.recolour()

    @Slot()
    def _on_flush_due(self) -> None:
        self._flush()

    @Slot()
    def _on_copy_requested(self) -> None:
        QGuiApplication.clipboard().setText(self._text)

    def _flush(self) -> None:
        started = perf_counter()
        pending, self._pending = self._pending, ""
        self.body.feed(pending)
        self.num_flushes += 1
        self._flush_timer.setInterval(max(_FLUSH_MS, int((perf_counter() - started) * 4000)))

    def _show_end(self, statistics: TurnStatistics | None, reason: FinishReason | None) -> None:
        self.statistics.show_statistics(statistics, reason)
        self.statistics.show()


class Notice(QFrame):
    """A sentence about what failed and what to do, quietly, where the reply would have been."""

    def __init__(self, sentence: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("notice")
        self._label = QLabel(sentence)
        self._label.setProperty("kind", "notice")
        self._label.setWordWrap(True)
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 10, 14, 10)
        column.addWidget(self._label)

    @property
    def text(self) -> str:
        return self._label.text()

    def set_text(self, sentence: str) -> None:
        self._label.setText(sentence)

    def recolour(self) -> None:
        self.update()
