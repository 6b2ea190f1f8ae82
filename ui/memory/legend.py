"""What the colours and patterns of the page map mean."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget

from ui.composer.wrap_layout import WrapLayout
from ui.memory.cells import CELL, CellTiles, Look
from ui.tokens import SPACE_M

LOOKS = (
    Look("16bit"),
    Look("int8"),
    Look("balanced"),
    Look("compact"),
    Look("kvzip"),
    Look("on_disk", is_hollow=True),
    Look("on_disk", is_shared=True, is_hollow=True),
)


class _Swatch(QWidget):
    def __init__(self, tiles: CellTiles, look: Look) -> None:
        super().__init__()
        self._tiles = tiles
        self._look = look
        self.setFixedSize(QSize(CELL + 2, CELL + 2))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._tiles.draw(painter, self._look, QRectF(1, 1, CELL, CELL))
        painter.end()


class Legend(QWidget):
    def __init__(self, tiles: CellTiles, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._labels: list[QLabel] = []
        self._row = layout = WrapLayout(self, spacing=SPACE_M)
        for look in LOOKS:
            label = QLabel()
            label.setProperty("kind", "muted")
            self._labels.append(label)
            item = QWidget()
            row = QHBoxLayout(item)
            row.setContentsMargins(0, 0, 0, 0)
            row.setSpacing(6)
            row.addWidget(_Swatch(tiles, look))
            row.addWidget(label)
            layout.addWidget(item)
        self.retranslate()

    def retranslate(self) -> None:
        words = (
            self.tr("16 bit"),
            self.tr("8 bit (int8)"),
            self.tr("balanced"),
            self.tr("compact"),
            self.tr("compressed (KVzip)"),
            self.tr("on disk"),
            self.tr("shared"),
        )
        for label, word in zip(self._labels, words, strict=True):
            label.setText(word)
            label.adjustSize()
        self.setMaximumWidth(self._row.sizeHint().width())  # it stands at the right end
