"""The small drawings of the meter: a bar in segments, a sparkline and the state's dot."""

from __future__ import annotations

from collections import deque

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from ui.theme import Theme

BAR_SIZE = QSize(120, 7)
_MOST_POINTS = 46


class Bar(QWidget):
    """Segments in colours from the left, on a track."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._segments: list[tuple[float, str]] = []
        self.setFixedSize(BAR_SIZE)

    def set_segments(self, segments: list[tuple[float, str]]) -> None:
        """(share 0..1, colour) each."""
        if segments != self._segments:
            self._segments = segments
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        path = QPainterPath()
        path.addRoundedRect(QRectF(self.rect()), self.height() / 2, self.height() / 2)
        painter.setClipPath(path)
        painter.fillRect(self.rect(), self._theme.color("line"))
        left = 0.0
        for share, colour in self._segments:
            width = share * self.width()
            if share > 0:
                width = max(2.0, width)  # something there is always seen
            painter.fillRect(QRectF(left, 0, min(width, self.width() - left), self.height()), QColor(colour))
            left += width
        painter.end()


class Sparkline(QWidget):
    """The last speeds, newest at the right; scaled so that small changes are seen, not magnified."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._points: deque[float] = deque(maxlen=_MOST_POINTS)
        self.setFixedSize(92, 16)

    @property
    def points(self) -> list[float]:
        return list(self._points)

    def add(self, value: float) -> None:
        self._points.append(value)
        self.update()

    def clear(self) -> None:
        self._points.clear()
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if len(self._points) < 2:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        highest = max(self._points)
        lowest = max(0.0, min(self._points) - highest / 4)
        spread = highest - lowest or 1.0
        step = (self.width() - 2) / (_MOST_POINTS - 1)
        left = self.width() - 1 - step * (len(self._points) - 1)
        path = QPainterPath()
        for index, value in enumerate(self._points):
            point = QPointF(left + index * step, self.height() - 2 - (self.height() - 4) * (value - lowest) / spread)
            if index:
                path.lineTo(point)
            else:
                path.moveTo(point)
        pen = QPen(self._theme.color("accent"), 1.6)
        pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        painter.setPen(pen)
        painter.drawPath(path)
        painter.end()


class Dot(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._role = "muted"
        self.setFixedSize(10, 10)

    def set_role(self, role: str) -> None:
        if role != self._role:
            self._role = role
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._theme.color(self._role))
        painter.drawEllipse(QRectF(1, 1, 8, 8))
        painter.end()
