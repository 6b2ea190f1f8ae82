"""The two kinds of messages of the transcript: the user's bubble and the model's reply."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from PySide6.QtCore import QEvent, QRect, QRectF, Qt, QTimer, Slot
from PySide6.QtGui import QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.conversation import Message, MessageState
from engine.protocol.events import FinishReason, TurnStatistics
from ui.theme import Theme
from ui.tokens import RADIUS_CARD
from ui.transcript.attachment_chips import AttachmentChips
from ui.transcript.flow_text import FlowText
from ui.transcript.message_actions import MessageActions
from ui.transcript.message_toolbar import TOOLBAR_PX, reserved_width
from ui.transcript.message_widget import MessageWidget
from ui.transcript.prose_document import write_plain
from ui.transcript.reply_body import ReplyBody
from ui.transcript.statistics_line import StatisticsLine

_FLUSH_MS = 36  # at most 28 repaints a second
_GROWING_PARTS = 2  # of a body, at its end: what has just been finished, and what is open
_LONG_TEXT = 1000
_BUBBLE_SHARE = 0.76
_PAD_X, _PAD_TOP, _PAD_BOTTOM = 14, 8, 12  # a line has its free space above
_CHIPS_GAP = 8
_TAIL_RADIUS = 3
_ABOVE_TOOLBAR = 2
_ABOVE_STATISTICS = 7
_LEAST_WORDS_PX = 250


class UserMessage(MessageWidget):
    """Text as it was typed, in a bubble at the right, under the files that went with it."""

    def __init__(self, theme: Theme, message: Message, actions: MessageActions, parent: QWidget | None = None) -> None:
        super().__init__(theme, message, actions, parent)
        self._text = FlowText(theme, self)
        self.chips = AttachmentChips(theme, message.attachments, self) if message.attachments else None
        self._bubble = QRect()
        self._natural: tuple[int, int] = (0, 0)  # (at most, width): measured once for a width
        self._text.setVisible(bool(message.text) or self.chips is None)
        self.recolour()
        self._retranslate()

    def set_message(self, message: Message, *, is_last: bool) -> None:
        is_same = message.text == self._message.text
        super().set_message(message, is_last=is_last)
        if not is_same:
            self._natural = (0, 0)
            self.recolour()

    def recolour(self) -> None:
        write_plain(self._text.document(), self._message.text, self._theme.tokens)
        if self.chips is not None:
            self.chips.recolour()
        super().recolour()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._editor is not None:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = QRectF(self._bubble)
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

    def _lower_height(self, width: int) -> int:
        return _ABOVE_TOOLBAR + TOOLBAR_PX

    def _content_height(self, width: int) -> int:
        inside = self._inside_width(width)
        return self._chips_height(inside) + self._text_height(inside) + _PAD_TOP + _PAD_BOTTOM

    def _place_content(self, width: int, height: int) -> None:
        inside = self._inside_width(width)
        left = width - inside - _PAD_X
        top = _PAD_TOP
        if self.chips is not None:
            chips = self.chips.heightForWidth(inside)
            self.chips.setGeometry(left, top + 3, inside, chips)
            top += self._chips_height(inside)
        self._text.setGeometry(left, top, inside, self._text_height(inside))
        self._bubble = QRect(left - _PAD_X, 0, inside + 2 * _PAD_X, height)
        self.update()

    def _show_content(self, is_shown: bool) -> None:
        self._text.setVisible(is_shown and (bool(self._message.text) or self.chips is None))
        if self.chips is not None:
            self.chips.setVisible(is_shown)

    def _inside_width(self, width: int) -> int:
        at_most = max(40, int(width * _BUBBLE_SHARE) - 2 * _PAD_X)
        if len(self._message.text) > _LONG_TEXT:
            return at_most  # it fills the width in any case; measuring would lay it out twice more
        if self._natural[0] != at_most:
            natural = self._text.natural_width(at_most)
            if self.chips is not None:
                natural = max(natural, self.chips.natural_width(at_most))
            self._natural = (at_most, natural)
        return self._natural[1]

    def _chips_height(self, inside: int) -> int:
        """With the space below, and what a line of text would have above."""
        if self.chips is None:
            return 0
        below = _CHIPS_GAP - 4 if self._message.text else 0
        return 3 + self.chips.heightForWidth(inside) + below

    def _text_height(self, inside: int) -> int:
        return self._text.heightForWidth(inside) if self._message.text or self.chips is None else 0


class AssistantMessage(MessageWidget):
    """A reply. While it streams, arriving text is collected and drawn at most 30 times a second."""

    def __init__(self, theme: Theme, message: Message, actions: MessageActions, parent: QWidget | None = None) -> None:
        super().__init__(theme, message, actions, parent)
        self.body = ReplyBody(theme, self)
        self.statistics = StatisticsLine(self)
        self.statistics.hide()
        self.num_flushes = 0
        self._pending = ""
        self._is_live = False
        self._is_begun = False
        self._flushed_at = 0.0
        self._flush_interval_ms = _FLUSH_MS
        self._flush_timer = QTimer(self, singleShot=True)
        self._flush_timer.timeout.connect(self._on_flush_due)

    @property
    def is_live(self) -> bool:
        return self._is_live

    @property
    def is_drawn(self) -> bool:
        """Whether nothing that has arrived waits to be drawn."""
        return not self._pending

    def markdown(self) -> str:
        """Of what the model thought only what is open."""
        if self._pending:
            self._flush()
        return self.body.markdown()

    def plain_text(self) -> str:
        return self.body.plain_text().removesuffix("▍")

    def show_message(self, message: Message, *, is_last: bool = False) -> None:
        """Show a whole reply for the first time."""
        self.body.show_text(message.text)
        self._is_begun = True
        super().set_message(message, is_last=is_last)
        self._show_end()

    def set_message(self, message: Message, *, is_last: bool) -> None:
        if self._is_live:
            super().set_message(replace(message, text=self.text, state=MessageState.STREAMING), is_last=is_last)
            return
        is_same = message.text == self._message.text
        super().set_message(message, is_last=is_last)
        if not is_same:
            self._replace(message.text)
        self._show_end()

    def begin(self, text: str) -> None:
        """Show a reply that streams and has come to `text`: from nothing, or from the end of what is shown."""
        if self._is_begun:
            self._new_body()
        self.end_edit()
        self._is_live = self._is_begun = True
        self._pending = ""
        self.statistics.hide()
        self._message = replace(self._message, text=text, state=MessageState.STREAMING)
        self.body.feed(text)
        self.refresh_actions()

    def append(self, text: str) -> None:
        self._message = replace(self._message, text=self._message.text + text)
        self._pending += text
        if not self._flush_timer.isActive():
            since_ms = int((perf_counter() - self._flushed_at) * 1000)
            self._flush_timer.start(max(0, self._flush_interval_ms - since_ms))

    def finish(self, text: str | None, statistics: TurnStatistics | None, reason: FinishReason | None) -> None:
        """Nothing follows. `text` is the whole reply, or None when only what has arrived is known."""
        self._flush_timer.stop()
        if text is not None and text.startswith(self.text):
            self.append(text[len(self.text) :])
            self._flush_timer.stop()
        elif text is not None:
            self._pending, self._is_live = "", False
            self._replace(text)
        if self._pending:
            self._flush()
        if self._is_live:
            self.body.finish()
            self._is_live = False
        self._message = replace(
            self._message,
            text=self.text if text is None else text,
            state=MessageState.COMPLETE,
            statistics=statistics,
            finish_reason=reason,
        )
        self._show_end()
        self.refresh_actions()
        self._settle()

    def recolour(self) -> None:
        self.body.recolour()
        super().recolour()

    @Slot()
    def _on_flush_due(self) -> None:
        self._flush()

    def _flush(self) -> None:
        started = perf_counter()
        pending, self._pending = self._pending, ""
        self.body.feed(pending)
        self.num_flushes += 1
        self._settle()
        self._flushed_at = perf_counter()
        self._flush_interval_ms = max(_FLUSH_MS, int((self._flushed_at - started) * 4000))

    def _settle(self) -> None:
        """Make the height true now, not at the next events: what is drawn next is drawn once."""
        for part in self.body.parts[-_GROWING_PARTS:]:
            _lay_out_now(part)
        layout = self.body.layout()
        if layout is not None:
            layout.activate()
        self.height_changed.emit()

    def _replace(self, text: str) -> None:
        self.body.replace_text(text)
        self._message = replace(self._message, text=text)

    def _new_body(self) -> None:
        """A stream reads from its first character, so a reply that goes on is drawn anew."""
        old, self.body = self.body, ReplyBody(self._theme, self)
        self.body.setGeometry(old.geometry())
        self.body.show()
        old.hide()
        old.deleteLater()

    def _show_end(self) -> None:
        self.statistics.show_statistics(self._message.statistics, self._message.finish_reason)
        self.statistics.setVisible(self._editor is None)

    def _lower_height(self, width: int) -> int:
        words = self._words_height(width)
        return _ABOVE_STATISTICS + (words + TOOLBAR_PX if self._is_narrow(width) else max(words, TOOLBAR_PX))

    def _toolbar_rise(self, width: int) -> int:
        """It stands beside the first line of the words, or below them where the column is narrow."""
        return TOOLBAR_PX if self._is_narrow(width) else self._lower_height(width) - _ABOVE_STATISTICS

    def _content_height(self, width: int) -> int:
        height = self.body.heightForWidth(width)
        return height if height >= 0 else self.body.sizeHint().height()

    def _place_content(self, width: int, height: int) -> None:
        self.body.setGeometry(0, 0, width, height)
        top = height + _ABOVE_STATISTICS
        self.statistics.setGeometry(0, top, self._words_width(width), self._words_height(width))

    def _show_content(self, is_shown: bool) -> None:
        self.body.setVisible(is_shown)
        self.statistics.setVisible(is_shown and not self._is_live)

    def _is_narrow(self, width: int) -> bool:
        return width - reserved_width(self._message) < _LEAST_WORDS_PX

    def _words_width(self, width: int) -> int:
        return width if self._is_narrow(width) else width - reserved_width(self._message)

    def _words_height(self, width: int) -> int:
        """At least a line, as tall as the buttons beside it."""
        if self._is_live:
            return 0 if self._is_narrow(width) else TOOLBAR_PX
        words = self.statistics.heightForWidth(self._words_width(width))
        return words if self._is_narrow(width) else max(words, TOOLBAR_PX)


def _lay_out_now(widget: QWidget) -> None:
    """Else each level of layouts takes a turn of the event loop, and is drawn in between."""
    for child in widget.children():
        if isinstance(child, QWidget):
            _lay_out_now(child)
    layout = widget.layout()
    if layout is not None:
        layout.activate()
