"""What all chats take of the memory budget, by precision, with the water marks; the budget's end can be dragged.

A slider underneath, so that the keyboard and screen readers have what they know: its value is the budget in the
settings' MB. It counts when the mouse or the key is let go.
"""

from __future__ import annotations

from dataclasses import fields

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal, Slot
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPainterPath, QPaintEvent, QPen, QWheelEvent
from PySide6.QtWidgets import QSlider, QWidget

from app.settings import MB, Settings
from engine.protocol.events import BlocksReported
from ui.memory.cells import CellTiles
from ui.memory.precision_words import FULL, bytes_of_kinds
from ui.theme import Theme

_BAR, _HEIGHT = 14, 28  # px
_ROOM = 1.25  # of the budget, so that it can be dragged further
_GRIP_PX = 12
_LEAST_PX = 3.0  # of what is there
_PAGE_STEPS = 4


class BudgetBar(QSlider):
    budget_chosen = Signal(int)  # MB
    shown_changed = Signal()  # the marks that are drawn moved

    def __init__(self, theme: Theme, tiles: CellTiles, parent: QWidget | None = None) -> None:
        super().__init__(Qt.Orientation.Horizontal, parent)
        self._theme = theme
        self._tiles = tiles
        self._report: BlocksReported | None = None
        self._chosen = 0  # MB, as the settings have it
        self._dragged_scale: float | None = None
        bounds = next(one for one in fields(Settings) if one.name == "memory_budget_mb").metadata
        self.setRange(bounds["minimum"], bounds["maximum"])
        self.setSingleStep(bounds["step"])
        self.setPageStep(bounds["step"] * _PAGE_STEPS)
        self.setFixedHeight(_HEIGHT)
        self.setMouseTracking(True)
        self.valueChanged.connect(self._on_value_changed)
        theme.changed.connect(self.update)

    def show_budget(self, budget_mb: int) -> None:
        """What the settings say; while it is being changed, that goes on."""
        self._chosen = budget_mb
        if self._dragged_scale is None:
            self.blockSignals(True)
            self.setValue(budget_mb)
            self.blockSignals(False)
            self.update()

    def show_report(self, report: BlocksReported) -> None:
        if report != self._report:
            self._report = report
            self.update()

    @property
    def is_changing(self) -> bool:
        return self.value() != self._chosen

    @property
    def marks_bytes(self) -> tuple[int, int] | None:
        """Above the first one room is made, down to the second: the engine's, or those of a budget being chosen."""
        report = self._report
        if report is None or not report.budget_bytes:
            return None
        part = self.value() * MB / report.budget_bytes
        return round(report.high_water_bytes * part), round(report.low_water_bytes * part)

    def bytes_of_kinds(self) -> dict[str, int]:
        """What all chats take in memory, by precision; they add up to the report's `memory_bytes` less the spare."""
        report = self._report
        if report is None:
            return {}
        found = bytes_of_kinds(run for row in report.conversations for run in row.runs)
        # Shared blocks are whole ones: they are in several chats' runs, and the slack of the buffers is in none.
        others = sum(nbytes for kind, nbytes in found.items() if kind != FULL)
        found[FULL] = max(0, report.memory_bytes - report.spare_bytes - others)
        return found

    # Qt overrides

    def event(self, event: QEvent) -> bool:
        is_key = isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape
        if is_key and event.type() == QEvent.Type.ShortcutOverride and self.is_changing:
            event.accept()  # it takes the change back, and the window stays
            return True
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        tokens, scale = self._theme.tokens, self._scale()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        bar = self._bar()
        path = QPainterPath()
        path.addRoundedRect(bar, _BAR / 2, _BAR / 2)
        painter.setClipPath(path)
        painter.setOpacity(0.45)
        painter.fillRect(bar, QColor(tokens.line))
        painter.setOpacity(1.0)
        budget_x = self._x(self.value() * MB)
        painter.fillRect(QRectF(bar.left(), bar.top(), budget_x - bar.left(), bar.height()), QColor(tokens.line))
        left = bar.left()
        segments = [*self.bytes_of_kinds().items(), ("on_disk", self._report.spare_bytes if self._report else 0)]
        for kind, nbytes in segments:
            if nbytes:
                width = max(_LEAST_PX, nbytes / scale * bar.width())
                self._tiles.draw_band(painter, kind, QRectF(left, bar.top(), width, bar.height()))
                left += width
        painter.setClipping(False)
        for nbytes in self.marks_bytes or ():
            x = self._x(nbytes)
            painter.setPen(QPen(QColor(tokens.text), 1.5))
            painter.drawLine(QPointF(x, bar.top() - 3), QPointF(x, bar.bottom() + 3))
        grip = QRectF(budget_x - 4, bar.top() - 5, 8, bar.height() + 10)
        painter.setPen(QPen(QColor(tokens.accent if self.hasFocus() else tokens.muted), 2.5 if self.hasFocus() else 1))
        painter.setBrush(QColor(tokens.accent if self.hasFocus() or self._dragged_scale else tokens.surface))
        painter.drawRoundedRect(grip, 4, 4)
        painter.end()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton and self._is_on_grip(event.position().x()):
            self._dragged_scale = self._scale()
            self.update()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        x = event.position().x()
        if self._dragged_scale is not None:
            bar = self._bar()
            self.setValue(round((x - bar.left()) / bar.width() * self._dragged_scale / MB))
            return
        is_on_grip = self._is_on_grip(x)
        self.setCursor(Qt.CursorShape.SizeHorCursor if is_on_grip else Qt.CursorShape.ArrowCursor)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._dragged_scale is not None:
            self._dragged_scale = None
            self._choose()
            self.update()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the page scrolls

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.is_changing:
            self._dragged_scale = None
            self.setValue(self._chosen)
            return
        super().keyPressEvent(event)

    def keyReleaseEvent(self, event: QKeyEvent) -> None:
        super().keyReleaseEvent(event)
        if not event.isAutoRepeat() and self._dragged_scale is None:
            self._choose()

    @Slot()
    def _on_value_changed(self) -> None:
        self.update()
        self.shown_changed.emit()

    def _choose(self) -> None:
        if self.is_changing:
            self._chosen = self.value()
            self.budget_chosen.emit(self._chosen)
            self.shown_changed.emit()

    def _bar(self) -> QRectF:
        return QRectF(5, (self.height() - _BAR) / 2, self.width() - 10, _BAR)

    def _scale(self) -> float:
        """Bytes that the whole bar stands for; more than the caches take, and than the budget."""
        most = max(self.value() * MB, self._report.memory_bytes if self._report else 0)
        if self._dragged_scale is not None:
            return max(self._dragged_scale, most)
        return max(1.0, most * _ROOM)

    def _x(self, nbytes: int) -> float:
        bar = self._bar()
        return bar.left() + min(1.0, nbytes / self._scale()) * bar.width()

    def _is_on_grip(self, x: float) -> bool:
        return abs(x - self._x(self.value() * MB)) <= _GRIP_PX
