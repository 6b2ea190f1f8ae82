"""A layout that sets its items side by side, and in further rows where the width ends."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtWidgets import QLayout, QLayoutItem, QWidget


class WrapLayout(QLayout):
    """No item gets wider than the layout; one that wraps its words may get higher for that."""

    def __init__(self, parent: QWidget | None = None, *, spacing: int) -> None:
        super().__init__(parent)
        self._items: list[QLayoutItem] = []
        self._space = spacing
        self.setContentsMargins(0, 0, 0, 0)

    def move_last_to(self, place: int) -> None:
        self._items.insert(place, self._items.pop())
        self.invalidate()

    # Qt overrides

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._place(QRect(0, 0, width, 0), is_trial=True)

    def minimumSize(self) -> QSize:
        return QSize(0, 0)

    def sizeHint(self) -> QSize:
        return QSize(sum(item.sizeHint().width() + self._space for item in self._items), self.heightForWidth(400))

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        self._place(rect, is_trial=False)

    def _place(self, rect: QRect, *, is_trial: bool) -> int:
        """Returns the height that all rows take."""
        x, y, row_height = rect.x(), rect.y(), 0
        for item in self._items:
            width = min(item.sizeHint().width(), rect.width())
            height = item.heightForWidth(width) if item.hasHeightForWidth() else item.sizeHint().height()
            if x > rect.x() and x + width > rect.x() + rect.width():
                x, y, row_height = rect.x(), y + row_height + self._space, 0
            if not is_trial:
                item.setGeometry(QRect(QPoint(x, y), QSize(width, height)))
            x += width + self._space
            row_height = max(row_height, height)
        return y + row_height - rect.y()
