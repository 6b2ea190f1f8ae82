"""A number over the last minutes. Drawn by hand: two lines need no library, and the panel opens without importing one.

Its right end is the last sample, so that nothing moves unless something happened.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QHelpEvent, QPainter, QPainterPath, QPaintEvent, QPen
from PySide6.QtWidgets import QToolTip, QWidget

from ui import numbers
from ui.memory.history import History, Sample
from ui.theme import Theme, ui_font
from ui.tokens import SMALL_PX

_HEIGHT = 96
_LEAST_SPAN_S = 60.0
_DOT_PX = 4  # of one sample alone
_MARK_SHARE = 0.6  # of the mark: from there on it is in the picture


class TimePlot(QWidget):
    """`words` says a value, `colour` is a role or a precision of the theme."""

    def __init__(self, theme: Theme, history: History, words: Callable[[float], str], colour: str) -> None:
        super().__init__()
        self._theme = theme
        self._history = history
        self._words = words
        self._colour = colour
        self._mark: float | None = None
        self.num_paints = 0
        self.setFixedHeight(_HEIGHT)
        self.setMinimumWidth(160)
        theme.changed.connect(self.update)

    def set_mark(self, value: float | None) -> None:
        """A level that is drawn where the line comes near it."""
        if value != self._mark:
            self._mark = value
            self.update()

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            nearest = self._nearest(event.pos().x())
            if nearest is not None:
                ago = self._ago_words(self._end() - nearest.at_s)
                QToolTip.showText(event.globalPos(), f"{self._words(nearest.value)} · {ago}", self)
            return True
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        self.num_paints += 1
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens, area = self._theme.tokens, self._area()
        painter.setFont(ui_font(SMALL_PX))
        muted = QColor(tokens.muted)
        painter.setPen(QPen(QColor(tokens.line), 1))
        painter.drawLine(area.bottomLeft(), area.bottomRight())
        samples = self._history.samples
        if not samples:
            painter.setPen(muted)
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, self.tr("Nothing measured yet"))
            painter.end()
            return
        top = self._top()
        if self._has_mark(top):
            assert self._mark is not None
            y = area.bottom() - area.height() * self._mark / top
            painter.setPen(QPen(muted, 1, Qt.PenStyle.DashLine))
            painter.drawLine(QPointF(area.left(), y), QPointF(area.right(), y))
        role = tokens.precision[self._colour] if self._colour in tokens.precision else getattr(tokens, self._colour)
        pen = QPen(QColor(role), 1.8)
        pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        painter.setPen(pen)
        for line in self._history.lines():
            painter.drawPath(self._path(line, area, top))
        painter.setPen(muted)
        self._draw_words(painter, area, top)
        painter.end()

    def _draw_words(self, painter: QPainter, area: QRectF, top: float) -> None:
        """The value at the top, and when the line begins."""
        corner = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop
        below = QRectF(0, area.bottom() + 2, self.width(), self.height() - area.bottom() - 2)
        painter.drawText(below, corner, self._ago_words(self._span()))
        if any(one.value for one in self._history.samples):
            painter.drawText(QRectF(0, 0, self.width(), area.top()), corner, self._words(top))

    def _ago_words(self, ago_s: float) -> str:
        """Before the last sample, as "30 s ago" or "2 min ago"."""
        if ago_s < 0.5:
            return self.tr("last")
        if round(ago_s) < 60:
            return self.tr("{seconds} s ago").format(seconds=numbers.count(round(ago_s)))
        return self.tr("{minutes} min ago").format(minutes=numbers.count(round(ago_s / 60)))

    def _path(self, line: list[Sample], area: QRectF, top: float) -> QPainterPath:
        path = QPainterPath()
        for number, one in enumerate(line):
            point = QPointF(self._x(one.at_s, area), area.bottom() - area.height() * one.value / top)
            if number:
                path.lineTo(point)
            else:
                path.moveTo(point)
        if len(line) == 1:
            path.lineTo(path.currentPosition() - QPointF(_DOT_PX, 0))
        return path

    def _area(self) -> QRectF:
        return QRectF(1, 16, self.width() - 2, self.height() - 16 - 17)

    def _top(self) -> float:
        highest = max(one.value for one in self._history.samples)
        if self._mark is not None and highest > self._mark * _MARK_SHARE:
            highest = max(highest, self._mark)
        return highest * 1.05 or 1.0

    def _has_mark(self, top: float) -> bool:
        return self._mark is not None and self._mark <= top

    def _end(self) -> float:
        return self._history.samples[-1].at_s

    def _span(self) -> float:
        samples = self._history.samples
        return max(_LEAST_SPAN_S, samples[-1].at_s - samples[0].at_s)

    def _x(self, at_s: float, area: QRectF) -> float:
        return area.right() - (self._end() - at_s) / self._span() * area.width()

    def _nearest(self, x: float) -> Sample | None:
        area = self._area()
        return min(self._history.samples, key=lambda one: abs(self._x(one.at_s, area) - x), default=None)
