"""How a block looks: precision by colour and by pattern, shared outlined, on disk hollow. Drawn once for each look.

The edge stands out from the ground where the fill alone would not: yellow on white, say.

A tile is a cell and the gap after it, a whole number of the screen's pixels, so that a run of cells is one call to Qt
and no seam shows at any scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen, QPixmap

from engine.protocol.events import BlockPlace, BlockRun
from ui.memory.precision_words import kind_of
from ui.theme import Theme
from ui.tokens import PRECISION_FILLS

CELL, GAP = 9, 2  # logical pixels
_INK = "#1F1B16"  # of the patterns
_RADIUS = 2.0


@dataclass(frozen=True, slots=True)
class Look:
    """`kind` is a key of the theme's `precision` colours."""

    kind: str
    is_shared: bool = False
    is_hollow: bool = False


def look_of(run: BlockRun) -> Look:
    return Look(kind_of(run.precision), run.is_shared, run.place is BlockPlace.DISK)


def pitch(ratio: float) -> float:
    """From one cell to the next, in logical pixels, on a screen of `ratio` pixels each."""
    return round((CELL + GAP) * ratio) / ratio


class CellTiles:
    """The tiles of one theme at the scales that were asked for."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._tiles: dict[tuple[Look, float], QPixmap] = {}
        self._squares: dict[tuple[str, int, float], QPixmap] = {}  # the same in both themes
        theme.changed.connect(self._tiles.clear)

    def tile(self, look: Look, ratio: float) -> QPixmap:
        found = self._tiles.get((look, ratio))
        if found is None:
            found = self._tiles[look, ratio] = self._drawn(look, ratio)
        return found

    def _drawn(self, look: Look, ratio: float) -> QPixmap:
        pixmap = _blank(round((CELL + GAP) * ratio), ratio)
        painter = QPainter(pixmap)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.draw(painter, look, QRectF(0, 0, CELL, CELL))
        painter.end()
        return pixmap

    def draw(self, painter: QPainter, look: Look, place: QRectF) -> None:
        """One cell, `place` wide and high."""
        tokens = self._theme.tokens
        edge, width = QColor(tokens.precision["on_disk" if look.is_hollow else look.kind]), 1.0
        if look.is_shared:
            edge, width = QColor(tokens.text), 1.0 if look.is_hollow else 1.5
        path = QPainterPath()
        path.addRoundedRect(place, _RADIUS, _RADIUS)
        painter.save()
        painter.setClipPath(path)
        if not look.is_hollow:
            painter.fillPath(path, QColor(PRECISION_FILLS[look.kind]))
            _draw_pattern(painter, look.kind, place)
        painter.restore()
        painter.setPen(QPen(edge, width))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        half = width / 2
        painter.drawRoundedRect(place.adjusted(half, half, -half, -half), _RADIUS - half, _RADIUS - half)

    def draw_band(self, painter: QPainter, kind: str, place: QRectF) -> None:
        """A part of a bar: the same colour, pattern and edge, the pattern in squares as high as the bar."""
        painter.drawTiledPixmap(place, self._square(kind, round(place.height()), painter.device().devicePixelRatioF()))
        painter.setPen(QPen(QColor(self._theme.tokens.precision[kind]), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(place.adjusted(0.5, 0.5, -0.5, -0.5))

    def _square(self, kind: str, side: int, ratio: float) -> QPixmap:
        found = self._squares.get((kind, side, ratio))
        if found is None:
            found = self._squares[kind, side, ratio] = _blank(round(side * ratio), ratio)
            found.fill(QColor(PRECISION_FILLS[kind]))
            painter = QPainter(found)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            _draw_pattern(painter, kind, QRectF(0, 0, side, side))
            painter.end()
        return found


def _blank(pixels: int, ratio: float) -> QPixmap:
    pixmap = QPixmap(max(1, pixels), max(1, pixels))
    pixmap.setDevicePixelRatio(ratio)
    pixmap.fill(Qt.GlobalColor.transparent)
    return pixmap


def _draw_pattern(painter: QPainter, kind: str, place: QRectF) -> None:
    """int8 diagonal, balanced cross-hatched, compact dotted, KVzip with a centre; 16 bit plain."""
    side, corner = place.width(), place.topLeft()
    ink = QColor(_INK)
    ink.setAlphaF(0.6)
    if kind in ("int8", "balanced"):
        painter.setPen(QPen(ink, side / 8))
        for step in (0.0, 0.5, 1.0, 1.5, 2.0):
            at = step * side
            painter.drawLine(corner + QPointF(0, at), corner + QPointF(at, 0))
            if kind == "balanced":
                painter.drawLine(corner + QPointF(side, at), corner + QPointF(side - at, 0))
    elif kind == "compact":
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(ink)
        radius = side / 9
        for x in (0.34, 0.66):
            for y in (0.34, 0.66):
                painter.drawEllipse(corner + QPointF(x * side, y * side), radius, radius)
    elif kind == "kvzip":
        ink.setAlphaF(0.9)
        third = side / 3
        painter.fillRect(QRectF(corner.x() + third, corner.y() + third, third, third), ink)
