"""The small marks of a row, drawn: where a chat's cache is, a pin, an incognito mask, a folder's triangle."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen, QPolygonF

from engine.protocol.events import CacheState
from ui.memory.precision_words import FULL, kind_of
from ui.sidebar.warmth import Warmth

MARK_PX = 9
_DARK_CENTRE = "#1F1B16"
_PIN_WIDTH, _PIN_HEIGHT = 8, 12
_MASK_WIDTH = 14


def paint_warmth(painter: QPainter, centre: QPointF, warmth: Warmth, colours: dict[str, str]) -> None:
    """Filled: in memory. Half: on disk. Hollow: cold. Told apart without colour."""
    hollow = QColor(colours["on_disk"])
    circle = QRectF(0, 0, MARK_PX, MARK_PX)
    circle.moveCenter(centre)
    if warmth.state is CacheState.WARM:
        kind = kind_of(warmth.precision)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(colours.get(kind, colours[FULL])))
        painter.drawEllipse(circle)
        if kind == "kvzip":
            painter.setBrush(QColor(_DARK_CENTRE))
            painter.drawEllipse(circle.center(), MARK_PX / 6, MARK_PX / 6)
        return
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(hollow, 1.2))
    ring = circle.adjusted(0.6, 0.6, -0.6, -0.6)
    painter.drawEllipse(ring)
    if warmth.state is CacheState.ON_DISK:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(hollow)
        painter.drawPie(ring, 90 * 16, 180 * 16)


def paint_pin(painter: QPainter, rect: QRect, right: int, colour: QColor) -> int:
    """A drawing pin, seen from the side; gives where what stands before it has to end."""
    top = rect.center().y() - _PIN_HEIGHT / 2 + 0.5
    middle = right - _PIN_WIDTH / 2
    pin = QPainterPath(QPointF(middle - 3, top))
    for x, y in ((3, 0), (3, 1.5), (2, 1.5), (2, 5), (4, 7.5), (-4, 7.5), (-2, 5), (-2, 1.5), (-3, 1.5)):
        pin.lineTo(middle + x, top + y)
    pin.closeSubpath()
    painter.fillPath(pin, colour)
    painter.setPen(QPen(colour, 1.2))
    painter.drawLine(QPointF(middle, top + 7.5), QPointF(middle, top + _PIN_HEIGHT))
    return right - _PIN_WIDTH - 7


def paint_mask(painter: QPainter, rect: QRect, right: int, colour: QColor) -> int:
    """A hat over a pair of glasses; gives where what stands before it has to end."""
    left, middle = right - _MASK_WIDTH, rect.center().y() + 0.5
    painter.setPen(QPen(colour, 1.2))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawEllipse(QPointF(left + 3.5, middle + 3.5), 2.6, 2.6)
    painter.drawEllipse(QPointF(right - 3.5, middle + 3.5), 2.6, 2.6)
    painter.drawLine(QPointF(left + 6, middle + 3), QPointF(right - 6, middle + 3))
    painter.drawLine(QPointF(left, middle - 1.5), QPointF(right, middle - 1.5))
    hat = QPainterPath(QPointF(left + 3, middle - 1.5))
    hat.lineTo(left + 4.2, middle - 6)
    hat.lineTo(right - 4.2, middle - 6)
    hat.lineTo(right - 3, middle - 1.5)
    hat.closeSubpath()
    painter.fillPath(hat, colour)
    return left - 7


def paint_triangle(painter: QPainter, centre: QPointF, is_collapsed: bool, colour: QColor) -> None:
    """Points right while the folder is collapsed, down while it is open."""
    corners = ((-2.5, -4.0), (3.5, 0.0), (-2.5, 4.0)) if is_collapsed else ((-4.0, -2.5), (4.0, -2.5), (0.0, 3.5))
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colour)
    painter.drawPolygon(QPolygonF([QPointF(centre.x() + x, centre.y() + y) for x, y in corners]))
