"""The quiet line under a reply: what it cost, in words. Unknown numbers are left out."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QEvent, QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QWidget

from engine.protocol.events import FinishReason, TurnStatistics
from ui import numbers
from ui.memory.precision_words import precision_words
from ui.numbers import DASH
from ui.reason_words import miss_words

_GAP = "\u2003"  # an em space, where the line may wrap


def _tr(source: str) -> str:
    return QCoreApplication.translate("StatisticsLine", source)


def statistics_items(statistics: TurnStatistics | None, reason: FinishReason | None) -> list[str]:
    """The items of the line, each a few words."""
    items: list[str] = []
    if reason is FinishReason.CANCELLED:
        items.append(_tr("Stopped"))
    elif reason is FinishReason.LENGTH:
        items.append(_tr("Stopped at the length limit"))
    if statistics is None:
        return items
    if (speed := numbers.speed(statistics.decode_tps)) != DASH:
        items.append(speed)
    if (first_token := numbers.seconds(statistics.ttft_s)) != DASH:
        items.append(_tr("first token {time}").format(time=first_token))
    total = numbers.count(statistics.prompt_tokens)
    if statistics.reused_tokens > 0:
        reused = numbers.count(statistics.reused_tokens)
        items.append(_tr("{reused} of {total} tokens reused").format(reused=reused, total=total))
    elif statistics.prompt_tokens > 0:
        items.append(_tr("{total} tokens read").format(total=total))
    return items


def statistics_tooltip(statistics: TurnStatistics | None) -> str:
    if statistics is None:
        return ""
    lines = [
        _tr("Read before the first token: {count} tokens").format(count=numbers.count(statistics.prefilled_tokens)),
        _tr("Written: {count} tokens").format(count=numbers.count(statistics.new_tokens)),
        _tr("KV cache: {size}, {precision}").format(
            size=numbers.size(statistics.cache.bytes),
            precision=precision_words(statistics.cache.precision, statistics.cache.kept),
        ),
    ]
    if (speed := numbers.speed(statistics.prefill_tps)) != DASH:
        lines.insert(1, _tr("Reading speed: {speed}").format(speed=speed))
    if statistics.restore_s > 0:
        lines.append(_tr("Restored from disk in {time}").format(time=numbers.seconds(statistics.restore_s)))
    if reason := miss_words(statistics):
        lines.append(_tr("Read again because: {reason}").format(reason=reason))
    return "\n".join(lines)


class StatisticsLine(QWidget):
    """Words only; what can be done with the reply stands in the same row, in `MessageToolbar`."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._statistics: TurnStatistics | None = None
        self._reason: FinishReason | None = None
        self._words = QLabel(self)
        self._words.setProperty("kind", "muted")
        self._words.setWordWrap(True)
        self._words.setTextFormat(Qt.TextFormat.PlainText)
        self._retranslate()

    @property
    def text(self) -> str:
        return self._words.text()

    def show_statistics(self, statistics: TurnStatistics | None, reason: FinishReason | None) -> None:
        self._statistics = statistics
        self._reason = reason
        self._retranslate()

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        self._words.ensurePolished()  # the style sheet says how large the words are
        return max(0, self._words.heightForWidth(width)) if self.text else 0

    def sizeHint(self) -> QSize:
        return QSize(self.width(), self.heightForWidth(self.width()))

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._words.setGeometry(self.rect())

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        items = statistics_items(self._statistics, self._reason)
        self._words.setText(_GAP.join(item.replace(" ", "\u00a0") for item in items))
        self._words.setToolTip(statistics_tooltip(self._statistics))
        self.updateGeometry()
