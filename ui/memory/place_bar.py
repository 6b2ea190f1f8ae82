"""A chat's bytes as a bar: what is in memory in the look of its precision, what is on disk after it."""

from __future__ import annotations

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.memory.cells import CellTiles
from ui.theme import Theme

_HEIGHT = 6  # px
_LEAST = 3.0  # px: something there is always seen


class PlaceBar(QWidget):
    def __init__(self, theme: Theme, tiles: CellTiles, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._tiles = tiles
        self._segments: list[tuple[float, str]] = []
        self.setFixedHeight(_HEIGHT)
        theme.changed.connect(self.update)

    def set_segments(self, segments: list[tuple[float, str]]) -> None:
        """(share 0..1, kind of precision) each, from the left."""
        if segments != self._segments:
            self._segments = segments
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), self._theme.color("line"))
        left = 0.0
        for share, kind in self._segments:
            width = min(max(_LEAST, share * self.width()), self.width() - left)
            self._tiles.draw_band(painter, kind, QRectF(left, 0, width, self.height()))
            left += width
        painter.end()
