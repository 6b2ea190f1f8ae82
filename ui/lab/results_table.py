"""A table as high as its rows: the page scrolls, not the table, but for one that is wider than the page."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QKeyEvent, QKeySequence, QWheelEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QApplication,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QTableWidgetSelectionRange,
    QWidget,
)

from ui.lab.view import Table
from ui.theme import ui_font
from ui.tokens import SECONDARY_PX, TEXT_PX

_ROW_HEIGHT, _HEAD_HEIGHT = 32, 34
_FOOT, _SCROLL_BAR = 4, 12
_MOST_WORDS = 320  # px of a first column, where there is little room
_PADDING, _LEAST_PADDING = 28, 23


class ResultsTable(QTableWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("labTable")
        self.table: Table | None = None
        self._is_wider = False  # than the page
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(_ROW_HEIGHT)
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setFixedHeight(_HEAD_HEIGHT)
        self.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        self.horizontalHeader().setStretchLastSection(True)
        self.setShowGrid(False)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ContiguousSelection)
        self.setTabKeyNavigation(False)  # Tab goes on to the next part of the page
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setWordWrap(False)

    def show_table(self, table: Table, name: str) -> None:
        """`name`: for screen readers."""
        self.setAccessibleName(table.title or name)
        if table == self.table:
            return
        self.table = table
        self.setColumnCount(len(table.heads))
        self.setRowCount(len(table.rows))
        self.setHorizontalHeaderLabels(list(table.heads))
        self.horizontalHeader().setFont(ui_font(SECONDARY_PX, QFont.Weight.DemiBold))
        strong = ui_font(TEXT_PX, QFont.Weight.DemiBold)
        for number, cells in enumerate(table.rows):
            for place, words in enumerate(cells):
                item = QTableWidgetItem(words)
                item.setToolTip(words if place == 0 else "")
                if place in table.strong:
                    item.setFont(strong)
                self.setItem(number, place, item)
        self._spread()
        self.updateGeometry()

    # Qt overrides

    def sizeHint(self) -> QSize:
        rows = self.rowCount() * _ROW_HEIGHT
        return QSize(300, _HEAD_HEIGHT + rows + (_SCROLL_BAR if self._is_wider else _FOOT))

    def minimumSizeHint(self) -> QSize:
        return QSize(120, self.sizeHint().height())

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Up and down belong to the page."""
        if event.angleDelta().x():
            super().wheelEvent(event)
        else:
            event.ignore()

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._spread()
        return super().viewportEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            self._copy()
            return
        super().keyPressEvent(event)

    def _copy(self) -> None:
        """What is selected, as spreadsheets take it."""
        ranges = self.selectedRanges()
        if not ranges:
            return
        one = ranges[0]
        places = range(one.leftColumn(), one.rightColumn() + 1)
        lines = ("\t".join(self._text(row, place) for place in places) for row in _rows_of(one))
        QApplication.clipboard().setText("\n".join(lines))

    def _spread(self) -> None:
        """As wide as its words, and what is left over shared among all columns."""
        columns = self.columnCount()
        if not columns:
            return
        plain, bold = self.fontMetrics(), QFontMetrics(ui_font(TEXT_PX, QFont.Weight.DemiBold))
        strong = self.table.strong if self.table is not None else frozenset()
        head_metrics = QFontMetrics(ui_font(SECONDARY_PX, QFont.Weight.DemiBold))
        wanted = []
        for place in range(columns):
            head = self.horizontalHeaderItem(place)
            metrics = bold if place in strong else plain
            widths = [metrics.horizontalAdvance(self._text(row, place)) for row in range(self.rowCount())]
            wanted.append(max([head_metrics.horizontalAdvance(head.text() if head else ""), *widths]))
        room = self.viewport().width()
        padding = max(_LEAST_PADDING, min(_PADDING, (room - sum(wanted)) // columns))
        if sum(wanted) + columns * padding > room:
            wanted[0] = min(wanted[0], _MOST_WORDS - padding)
        wide = [one + padding for one in wanted]
        left = max(0, room - sum(wide)) // columns
        for place, one in enumerate(wide):
            self.setColumnWidth(place, one + left)
        if (is_wider := sum(wide) > room) != self._is_wider:
            self._is_wider = is_wider
            self.updateGeometry()

    def _text(self, row: int, place: int) -> str:
        item = self.item(row, place)
        return item.text() if item is not None else ""


def _rows_of(selected: QTableWidgetSelectionRange) -> range:
    return range(selected.topRow(), selected.bottomRow() + 1)
