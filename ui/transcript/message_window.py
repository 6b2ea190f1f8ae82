"""Which messages have widgets, and where every message lies: the mechanism of the transcript. GUI thread.

A message is a row. The height of a row is estimated from its text until its widget is measured; `ready` rows are those
that have a widget, measured at the width the column has now. Whoever changes heights holds an `Anchor` meanwhile, so
that what is looked at stays where it is. Positions are pixels from the top of the contents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.conversation import Message
from engine.protocol.commands import Role
from ui.tokens import SPACE_XL
from ui.transcript.height_estimate import estimated_height
from ui.transcript.height_index import HeightIndex
from ui.transcript.message_widget import MessageWidget
from ui.transcript.view_mark import ViewMark

TOP_PX, BOTTOM_PX = SPACE_XL - 2, 4
_REPLY_GAP_PX, _GAP_PX = 20, 2  # below a message; a question has the room of its toolbar, too
_AHEAD_SHARE, _KEEP_SHARE = 0.7, 1.6  # of the viewport's height, built and kept on either side of it
_MARK_PX = 40  # until it is measured
_ASIDE_PX = -40_000  # where a widget waits to be placed


@dataclass(frozen=True, slots=True)
class Anchor:
    """`row` begins `y` pixels below the viewport's top (above it, if negative). `height` is what it was."""

    row: int
    y: int
    height: int


class MessageWindow:
    """`make(row)` returns the widget of `self.messages[row]`, a child of the viewport, not shown."""

    def __init__(self, make: Callable[[int], MessageWidget], make_mark: Callable[[], ViewMark]) -> None:
        self.messages: list[Message] = []
        self.widgets: dict[int, MessageWidget] = {}
        self.view_row = 0  # the model reads from here
        self._make = make
        self._make_mark = make_mark
        self._mark: ViewMark | None = None
        self._heights = HeightIndex()
        self._fresh: set[int] = set()
        self._left, self._width, self._page = 0, 0, 0  # no width: not laid out yet

    @property
    def mark(self) -> ViewMark | None:
        return self._mark

    @property
    def rows_height(self) -> int:
        return TOP_PX + self._heights.top(len(self.messages)) if self.messages else 0

    @property
    def column(self) -> tuple[int, int]:
        """Its left edge in the viewport, and its width."""
        return self._left, max(1, self._width)

    def top(self, row: int) -> int:
        return TOP_PX + self._heights.top(row)

    def height(self, row: int) -> int:
        """Without the space below it."""
        return self._heights[row] - self._gap(row)

    def row_at(self, y: int) -> int:
        return self._heights.row_at(y - TOP_PX)

    def row_of(self, message_id: int) -> int | None:
        return next((row for row, message in enumerate(self.messages) if message.id == message_id), None)

    def built(self) -> list[MessageWidget]:
        return [self.widgets[row] for row in sorted(self.widgets)]

    # the messages

    def show(self, messages: list[Message], view_from: int | None) -> list[MessageWidget]:
        """Other messages, or the same ones changed. What stays keeps its widget; those left over are returned."""
        old_rows = {message.id: row for row, message in enumerate(self.messages) if message.id}
        old_widgets, old_view_row, old_heights = self.widgets, self.view_row, self._heights
        self.messages, self.widgets, self._fresh = list(messages), {}, set()
        self.view_row = (self.row_of(view_from) or 0) if view_from is not None else 0
        self._drop_mark()
        heights: list[int] = []
        for row, message in enumerate(messages):
            before = old_rows.get(message.id)
            heights.append(self._estimated(row) if before is None else old_heights[before])
            if before in old_widgets and (before < old_view_row) == (row < self.view_row):
                self.widgets[row] = old_widgets.pop(before)
        self._heights = HeightIndex(heights)
        for row, widget in self.widgets.items():
            widget.set_message(messages[row], is_last=row == len(messages) - 1)
        return list(old_widgets.values())

    def append(self, messages: list[Message]) -> None:
        last = len(self.messages) - 1
        self.messages += messages
        heights = [self._heights[row] for row in range(last + 1)]
        self._heights = HeightIndex([*heights, *(self._estimated(row) for row in range(last + 1, len(self.messages)))])
        if last in self.widgets:
            self.widgets[last].set_message(self.messages[last], is_last=False)

    def set_message(self, row: int, message: Message) -> None:
        self.messages[row] = message
        if row in self.widgets:
            self.widgets[row].set_message(message, is_last=row == len(self.messages) - 1)

    # where they lie

    def set_column(self, left: int, width: int, page: int) -> None:
        """Where the column is in the viewport, and the viewport's height."""
        before, self._left, self._width, self._page = self._width, left, max(1, width), page
        if self._width == before:
            return
        self._fresh.clear()
        rows = range(len(self.messages))
        if before:
            scale = before / self._width
            self._heights = HeightIndex(round(self._heights[row] * scale) for row in rows)
        else:
            self._heights = HeightIndex(self._estimated(row) for row in rows)

    def anchor(self, value: int, stays: Callable[[Message], bool] = lambda _: True) -> Anchor | None:
        """The first message seen, if possible one that is built, and `stays` through what is about to change."""
        if not self.messages:
            return None
        first = self.row_at(value)
        for row in range(first, len(self.messages)):
            if self.top(row) >= value + self._page:
                break
            is_seen = self.top(row) + self.height(row) > value
            if row in self._fresh and is_seen and stays(self.messages[row]):
                return Anchor(row, self.top(row) - value, self._heights[row])
        return Anchor(first, self.top(first) - value, self._heights[first])

    def value_for(self, anchor: Anchor | None) -> int:
        """Where to scroll to, so that `anchor` is where it was. Of a row that begins above, the same part is kept."""
        if anchor is None or not self.messages:
            return 0
        row = min(anchor.row, len(self.messages) - 1)
        y = anchor.y
        if y < 0 and row not in self._fresh and anchor.height:
            y = round(y * self._heights[row] / anchor.height)
        return max(0, self.top(row) - y)

    def place(self, value: int) -> None:
        for row, widget in self.widgets.items():
            height = self.height(row)
            y = self.top(row) - value
            if row == self.view_row and self._mark is not None:
                mark = self._mark.heightForWidth(self._width)
                self._mark.setGeometry(self._left, y, self._width, mark)
                y, height = y + mark, height - mark
            widget.setGeometry(self._left, y, self._width, height)

    # building and taking down

    def next_unready(self, value: int, *, is_ahead: bool, is_upward: bool) -> int | None:
        """The row to make ready next: what is seen first; then (`is_ahead`) what is near, the nearest first."""
        if not self.messages:
            return None
        seen = self._rows_between(value, value + self._page)
        ready = next((row for row in seen if row in self._fresh), seen[-1] + 1 if is_upward else seen[0])
        # outward from what is ready, so that nothing ready is pushed away
        outward: list[int] = [*reversed(range(seen[0], ready)), *range(ready, seen[-1] + 1)]
        for row in outward:
            if row not in self._fresh:
                return row
        if not is_ahead:
            return None
        ahead = int(self._page * _AHEAD_SHARE)
        near = self._rows_between(value - ahead, value + self._page + ahead)
        unready = [row for row in near if row not in self._fresh]
        middle = value + self._page // 2
        return min(unready, key=lambda row: abs(self.top(row) - middle), default=None)

    def build(self, row: int) -> MessageWidget:
        if row not in self.widgets:
            widget = self.widgets[row] = self._make(row)
            widget.setGeometry(self._left, _ASIDE_PX, max(1, self._width), self.height(row))
            widget.show()  # now: what is hidden is neither polished nor laid out
        return self.widgets[row]

    def make_ready(self, row: int) -> None:
        """Build and measure `row`. It is not placed."""
        widget = self.build(row)
        if widget.width() != self._width:
            widget.setGeometry(self._left, widget.y(), self._width, widget.height())
        self.measure(row)

    def forget_measures(self) -> None:
        """What was measured while nothing was visible may be wrong."""
        self._fresh.clear()

    def measure(self, row: int) -> None:
        height = self.widgets[row].heightForWidth(self._width)
        if row == self.view_row and row > 0:
            if self._mark is None:
                self._mark = self._make_mark()
                self._mark.show()
            height += self._mark.heightForWidth(self._width)
        self._heights[row] = height + self._gap(row)
        self._fresh.add(row)

    def remeasure(self, widget: MessageWidget) -> bool:
        """Its contents have changed. Whether its height has."""
        row = next((row for row, one in self.widgets.items() if one is widget), None)
        if row is None or row not in self._fresh:
            return False
        before = self._heights[row]
        self.measure(row)
        return self._heights[row] != before

    def take_far(self, value: int, at_most: int) -> list[MessageWidget]:
        """Some of the widgets far from what is seen, no longer its own: the caller discards them."""
        keep = int(self._page * _KEEP_SHARE)
        top, bottom = value - keep, value + self._page + keep
        far = [
            row
            for row, widget in self.widgets.items()
            if (self.top(row) > bottom or self.top(row) + self._heights[row] < top) and not widget.is_needed
        ][:at_most]
        if self.view_row in far:
            self._drop_mark()
        self._fresh.difference_update(far)
        return [self.widgets.pop(row) for row in far]

    def _rows_between(self, top: int, bottom: int) -> range:
        return range(self.row_at(top), self.row_at(bottom) + 1)

    def _estimated(self, row: int) -> int:
        mark = _MARK_PX if row == self.view_row and row > 0 else 0
        message = self.messages[row]
        return estimated_height(message, self._width or 1) + self._gap(row) + mark

    def _gap(self, row: int) -> int:
        return _REPLY_GAP_PX if self.messages[row].role is Role.ASSISTANT else _GAP_PX

    def _drop_mark(self) -> None:
        if self._mark is not None:
            self._mark.hide()
            self._mark.deleteLater()
            self._mark = None
