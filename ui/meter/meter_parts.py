"""The small drawings of the meter: a bar in segments, a sparkline and the state's dot."""

from __future__ import annotations

from collections import deque
from math import isfinite

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent, QPolygonF
from PySide6.QtWidgets import QWidget

from ui.theme import Theme

BAR_SIZE = QSize(120, 7)
_MOST_POINTS, _HALF_LINE_PX = 46, 0.9
_STEPS_A_PX = 4  # a bar that would move by less stays


class Bar(QWidget):
    """Segments in colours from the left, on a track."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._segments: list[tuple[float, str]] = []
        self.setFixedSize(BAR_SIZE)

    def set_segments(self, segments: list[tuple[float, str]]) -> None:
        """(share 0..1, colour) each."""
        steps = self.width() * _STEPS_A_PX
        shown = [(round(share * steps) / steps if share * steps > 1 else share, colour) for share, colour in segments]
        if shown != self._segments:
            self._segments = shown
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
    """The last speeds, newest at the right, about the middle; scaled so that small changes are seen, not magnified.

    Draws nothing by itself: its strip says when.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._points: deque[QPointF] = deque(maxlen=_MOST_POINTS)  # (number, speed)
        self._is_outdated = False
        self.setFixedSize(92, 16)

    @property
    def points(self) -> list[float]:
        return [point.y() for point in self._points]

    def add(self, value: float) -> None:
        """What is no speed is left out."""
        if not (isfinite(value) and value > 0):
            return
        number = self._points[-1].x() + 1 if self._points else 0.0
        self._points.append(QPointF(number, value))
        self._is_outdated = True

    def clear(self) -> None:
        self._points.clear()
        self._is_outdated = True

    def show_points(self) -> None:
        """Draw what was added since."""
        if self._is_outdated:
            self._is_outdated = False
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """The line is filled between its edges, which takes a third of the time that a pen's stroke does."""
        if len(self._points) < 2:
            return
        upper, lower = QPolygonF(list(self._points)), QPolygonF(list(reversed(self._points)))
        bounds = upper.boundingRect()
        scale = (self.height() - 4) / (bounds.height() + bounds.bottom() / 4)
        edge = QPointF(0, _HALF_LINE_PX / scale)
        upper.translate(edge)
        lower.translate(-edge)
        line, back = QPainterPath(), QPainterPath()
        line.addPolygon(upper)
        back.addPolygon(lower)
        line.connectPath(back)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.translate(QPointF(self.width() - 1, self.height() / 2))
        painter.scale((self.width() - 2) / (_MOST_POINTS - 1), -scale)
        painter.translate(QPointF(-bounds.right(), -bounds.center().y()))
        painter.fillPath(line, self._theme.color("accent"))
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
