"""How a colour is told apart without seeing it: a pattern in bars, a mark and a stroke in lines.

The patterns are those of the page map's cells. Drawn as lines, not as bitmaps, so that they are crisp at any scale.
"""

from __future__ import annotations

from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen, QPolygonF

from ui.tokens import Tokens, contrast

_GAP = 7.0
_DARK, _BRIGHT = "#1F1B16", "#FFFFFF"
_RADIUS = 3.0
_MARK = 3.6


def colour_of(tokens: Tokens, key: str) -> QColor:
    return QColor(tokens.precision[key] if key in tokens.precision else getattr(tokens, key))


def fill(painter: QPainter, place: QRectF, tokens: Tokens, key: str) -> None:
    """A bar, or a legend's swatch."""
    colour = colour_of(tokens, key)
    path = QPainterPath()
    radius = min(_RADIUS, place.height() / 2)
    path.addRoundedRect(place, radius, radius)
    painter.save()
    painter.setClipPath(path, Qt.ClipOperation.IntersectClip)
    if key == "on_disk":
        painter.fillRect(place, QColor(tokens.code))
    else:
        painter.fillRect(place, colour)
    over = max((_DARK, _BRIGHT), key=lambda one: contrast(one, colour.name()))
    ink = QColor(over)
    ink.setAlphaF(0.55)
    painter.setPen(QPen(ink, 1.0))
    match key:
        case "int8":
            painter.drawLines(_diagonals(place, rising=True))
        case "balanced":
            painter.drawLines([*_diagonals(place, rising=True), *_diagonals(place, rising=False)])
        case "compact":
            painter.setBrush(ink)
            painter.setPen(Qt.PenStyle.NoPen)
            for point in _dots(place):
                painter.drawEllipse(point, 1.0, 1.0)
        case "kvzip":
            painter.drawLines(_levels(place))
        case "on_disk":
            painter.setPen(QPen(colour, 1.0))
            painter.drawLines(_diagonals(place, rising=False))
    painter.restore()
    if key == "on_disk":
        painter.save()
        painter.setPen(QPen(colour, 1.2))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(place.adjusted(0.6, 0.6, -0.6, -0.6), radius, radius)
        painter.restore()


def stroke(tokens: Tokens, key: str, *, is_fit: bool) -> QPen:
    colour = colour_of(tokens, key)
    if is_fit:
        colour.setAlphaF(0.75)
        pen = QPen(colour, 1.1)
        pen.setDashPattern([4, 4])
        return pen
    pen = QPen(colour, 2.0)
    pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
    pen.setCapStyle(Qt.PenCapStyle.RoundCap)
    return pen


def mark(painter: QPainter, point: QPointF, tokens: Tokens, key: str) -> None:
    """At a value of a line: a circle, a square, a triangle or a diamond."""
    painter.save()
    painter.setPen(QPen(QColor(tokens.surface), 1.0))
    painter.setBrush(colour_of(tokens, key))
    x, y, r = point.x(), point.y(), _MARK
    match key:
        case "int8":
            painter.drawEllipse(point, r, r)
        case "balanced":
            painter.drawPolygon(
                QPolygonF([QPointF(x, y - r - 1), QPointF(x + r + 1, y + r), QPointF(x - r - 1, y + r)])
            )
        case "compact" | "kvzip":
            painter.drawPolygon(
                QPolygonF([QPointF(x, y - r - 1), QPointF(x + r + 1, y), QPointF(x, y + r + 1), QPointF(x - r - 1, y)])
            )
        case _:
            painter.drawRect(QRectF(x - r, y - r, 2 * r, 2 * r))
    painter.restore()


def _diagonals(place: QRectF, *, rising: bool) -> list[QLineF]:
    lines = []
    start = place.left() - place.height()
    offset = start - start % _GAP
    while offset < place.right():
        if rising:
            lines.append(QLineF(offset, place.bottom(), offset + place.height(), place.top()))
        else:
            lines.append(QLineF(offset, place.top(), offset + place.height(), place.bottom()))
        offset += _GAP
    return lines


def _levels(place: QRectF) -> list[QLineF]:
    lines = []
    y = place.bottom() - _GAP / 2
    while y > place.top():
        lines.append(QLineF(place.left(), y, place.right(), y))
        y -= _GAP
    return lines


def _dots(place: QRectF) -> list[QPointF]:
    points = []
    y = place.bottom() - _GAP / 2
    row = 0
    while y > place.top():
        x = place.left() + (_GAP / 2 if row % 2 else _GAP)
        while x < place.right():
            points.append(QPointF(x, y))
            x += _GAP
        y -= _GAP * 0.75
        row += 1
    return points
