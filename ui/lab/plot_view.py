"""A plot in the window. Grows as rows arrive; the mouse over it tells values, a screen reader hears all of them."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRectF
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from ui.lab.plot_data import Plot
from ui.lab.plot_painter import PlotPicture
from ui.theme import Theme

_HEIGHT = 260


class PlotView(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.plot: Plot | None = None
        self._hovered: int | None = None
        self.num_paints = 0
        self.setMinimumSize(220, _HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMouseTracking(True)
        theme.changed.connect(self.update)

    def show_plot(self, plot: Plot) -> None:
        if plot == self.plot:
            return
        self.plot = plot
        self._hovered = None
        self.setAccessibleName(plot.heading)
        self.setAccessibleDescription(plot.words())
        self.update()

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        self.num_paints += 1
        if self.plot is None:
            return
        painter = QPainter(self)
        self._picture(self.plot).draw(painter, self._hovered)
        painter.end()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self.plot is None:
            return
        place = self._picture(self.plot).place_at(event.position().x())
        if place == self._hovered:
            return
        self._hovered = place
        self.update()
        if place is None:
            QToolTip.hideText()
        else:
            QToolTip.showText(event.globalPosition().toPoint(), self.plot.place_words(place), self)

    def leaveEvent(self, event: QEvent) -> None:
        self._hovered = None
        self.update()
        super().leaveEvent(event)

    def _picture(self, plot: Plot) -> PlotPicture:
        return PlotPicture(plot, self._theme.tokens, QRectF(self.rect()), self.tr("Nothing measured yet"))
