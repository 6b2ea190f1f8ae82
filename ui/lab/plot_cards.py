"""The plots of a page, each on a card: side by side where there is room, else below one another."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QVBoxLayout, QWidget

from ui.lab.plot_data import Plot
from ui.lab.plot_view import PlotView
from ui.theme import Theme
from ui.tokens import SPACE_L, SPACE_M

_LEAST_WIDTH = 300  # of a card that stands beside another


class PlotCards(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.views: list[PlotView] = []
        self._cards: list[QFrame] = []
        self._columns = 0
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(SPACE_M)

    def show_plots(self, plots: Sequence[Plot]) -> None:
        """A page always has as many."""
        while len(self.views) < len(plots):
            card = QFrame()
            card.setProperty("kind", "card")
            view = PlotView(self._theme)
            column = QVBoxLayout(card)
            column.setContentsMargins(SPACE_L, SPACE_M, SPACE_L, SPACE_M)
            column.addWidget(view)
            self.views.append(view)
            self._cards.append(card)
            self._columns = 0
        for view, plot in zip(self.views, plots, strict=True):
            view.show_plot(plot)
        self._arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        columns = max(1, min(len(self._cards), self.width() // _LEAST_WIDTH))
        if columns == self._columns:
            return
        for place in range(max(self._columns, columns)):
            self._grid.setColumnStretch(place, 1 if place < columns else 0)
        self._columns = columns
        for number, card in enumerate(self._cards):
            is_alone = number == len(self._cards) - 1 and number % columns == 0  # it takes the whole line
            self._grid.addWidget(card, number // columns, number % columns, 1, columns if is_alone else 1)
