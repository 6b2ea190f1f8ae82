"""The blocks of one chat, a cell each. No widget a cell: only what is seen is painted, a run of like cells at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QFocusEvent, QHelpEvent, QKeyEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QToolTip, QWidget

from engine.protocol.events import BlockRun
from ui.memory.cells import CELL, GAP, CellTiles, Look, look_of, pitch
from ui.memory.page_words import cell_words, map_words
from ui.theme import Theme
from ui.tooltips import plain

_MARGIN = 3  # around the cells, for the mark of the one the keyboard is on


class PageMap(QWidget):
    """As wide as it gets, as high as its cells need. The arrow keys go from cell to cell and say what it is."""

    def __init__(self, theme: Theme, tiles: CellTiles, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._tiles = tiles
        self._runs: tuple[BlockRun, ...] = ()
        self._ends: list[int] = []  # of each run, in cells
        self._kinds: list[int] = []  # of each run, its look
        self._looks: list[Look] = []
        self._token_starts: list[int] = []
        self._at = 0  # the keyboard's cell
        self._title = self._shares_with = ""
        self.num_painted = 0  # cells, at the last paint
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMinimumWidth(CELL * 8)
        theme.changed.connect(self.update)

    @property
    def num_cells(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def runs(self) -> tuple[BlockRun, ...]:
        return self._runs

    @property
    def columns(self) -> int:
        return max(1, int((self.width() - 2 * _MARGIN + GAP) / pitch(self.devicePixelRatioF())))

    def show_runs(self, runs: Sequence[BlockRun], title: str, shares_with: str = "") -> None:
        """`title` of the chat, for screen readers; `shares_with`: of the one that shares with it, if there is one."""
        is_same = tuple(runs) == self._runs
        if is_same and (title, shares_with) == (self._title, self._shares_with):
            return
        self._runs, self._title, self._shares_with = tuple(runs), title, shares_with
        self._ends = list(accumulate(run.count for run in runs))
        looks = list(map(look_of, runs))
        self._looks = list(dict.fromkeys(looks))
        numbers_of = {look: number for number, look in enumerate(self._looks)}
        self._kinds = [numbers_of[look] for look in looks]
        self._token_starts = [0, *accumulate(run.tokens for run in runs)]
        self._at = min(self._at, max(0, self.num_cells - 1))
        self._speak()
        if not is_same:
            self._fit()
            self.update()

    def cell_at(self, point: QPoint) -> int | None:
        """The cell's number from 0; None where there is none."""
        step = pitch(self.devicePixelRatioF())
        column, row = int((point.x() - _MARGIN) // step), int((point.y() - _MARGIN) // step)
        index = row * self.columns + column
        is_there = 0 <= column < self.columns and row >= 0 and 0 <= index < self.num_cells
        return index if is_there else None

    def words_of(self, index: int) -> str:
        number = bisect_right(self._ends, index)
        run = self._runs[number]
        first = index - (self._ends[number] - run.count)
        return cell_words(index, self.num_cells, run, first, self._token_starts[number], self._shares_with)

    def retranslate(self) -> None:
        self._speak()

    # Qt overrides

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            index = self.cell_at(event.pos())
            if index is None:
                QToolTip.hideText()
            else:
                QToolTip.showText(event.globalPos(), plain(self.words_of(index)), self, self._place_of(index))
            return True
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.paint_cells(painter, event.rect())
        if self.hasFocus() and self._runs:
            painter.setPen(QPen(self._theme.color("accent"), 2))
            painter.drawRoundedRect(QRectF(self._place_of(self._at)).adjusted(-2, -2, 2, 2), 3, 3)
        painter.end()

    def paint_cells(self, painter: QPainter, seen: QRect) -> None:
        """The rows of cells that `seen` touches."""
        ratio = self.devicePixelRatioF()
        step, columns = pitch(ratio), self.columns
        first_row = max(0, int((seen.top() - _MARGIN) // step))
        last_row = int((seen.bottom() - _MARGIN) // step)
        start, stop = first_row * columns, min(self.num_cells, (last_row + 1) * columns)
        self.num_painted = max(0, stop - start)
        whole = int(step) if step == int(step) else 0
        tiles = [self._tiles.tile(look, ratio) for look in self._looks]
        ends, kinds, number = self._ends, self._kinds, bisect_right(self._ends, start)
        while start < stop:
            end, tile = min(ends[number], stop), tiles[kinds[number]]
            if end == start + 1:
                row, column = divmod(start, columns)
                if whole:  # much quicker, as no point is made
                    painter.drawPixmap(_MARGIN + column * whole, _MARGIN + row * whole, tile)
                    start, number = end, number + 1
                    continue
                painter.drawPixmap(QPointF(_MARGIN + column * step, _MARGIN + row * step), tile)
            else:
                for row, column, width, height in _rectangles(start, end, columns):
                    place = QRectF(_MARGIN + column * step, _MARGIN + row * step, width * step, height * step)
                    painter.drawTiledPixmap(place, tile, QPointF())
            start, number = end, number + 1

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        steps = {
            Qt.Key.Key_Left: -1,
            Qt.Key.Key_Right: 1,
            Qt.Key.Key_Up: -self.columns,
            Qt.Key.Key_Down: self.columns,
            Qt.Key.Key_Home: -self.num_cells,
            Qt.Key.Key_End: self.num_cells,
        }
        step = steps.get(Qt.Key(event.key()))
        if step is None or not self._runs:
            super().keyPressEvent(event)
            return
        target = self._at + step
        if abs(step) == self.columns and not 0 <= target < self.num_cells:
            target = self._at  # there is no row above or below
        self._at = min(max(target, 0), self.num_cells - 1)
        self._speak()
        self.update()
        place = self._place_of(self._at)
        QToolTip.showText(self.mapToGlobal(place.bottomRight()), plain(self.words_of(self._at)), self)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    # private

    def _fit(self) -> None:
        rows = -(-self.num_cells // self.columns)
        height = round(rows * pitch(self.devicePixelRatioF())) + 2 * _MARGIN
        if self.minimumHeight() != height:
            self.setFixedHeight(height)

    def _place_of(self, index: int) -> QRect:
        row, column = divmod(index, self.columns)
        step = pitch(self.devicePixelRatioF())
        return QRect(round(_MARGIN + column * step), round(_MARGIN + row * step), CELL, CELL)

    def _speak(self) -> None:
        self.setAccessibleName(map_words(self._title, self._runs))
        self.setAccessibleDescription(self.words_of(self._at) if self._runs else "")


def _rectangles(start: int, end: int, columns: int) -> list[tuple[int, int, int, int]]:
    """The cells from `start` to `end` as at most three rectangles: (row, column, width, height) each."""
    row, column = divmod(start, columns)
    last_row, last_column = divmod(end, columns)
    if row == last_row:
        return [(row, column, end - start, 1)]
    found = []
    if column:
        found.append((row, column, columns - column, 1))
        row += 1
    if last_row > row:
        found.append((row, 0, columns, last_row - row))
    if last_column:
        found.append((last_row, 0, last_column, 1))
    return found
