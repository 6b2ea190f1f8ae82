"""A column of messages that is scrolled: which are built when, where one is, and following the end. GUI thread.

It follows the end only while the reader is there; else what the reader looks at does not move, whatever is built,
measured or changed above it. Messages are built in slices that hold nothing up. Invariant: the scroll range is the
true height of the contents, as far as it was measured, and what is seen always was.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from PySide6.QtCore import QEvent, QPoint, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QKeyEvent, QKeySequence, QResizeEvent, QShortcut, QShowEvent
from PySide6.QtWidgets import QAbstractScrollArea, QAbstractSlider, QApplication, QFrame, QPushButton, QWidget

from app.conversation import Message
from ui.icons import icon
from ui.theme import Theme
from ui.tokens import LINE_HEIGHT_PX, READING_WIDTH, SPACE_XL
from ui.transcript.message_widget import MessageWidget
from ui.transcript.message_window import BOTTOM_PX, Anchor, MessageWindow
from ui.transcript.view_mark import ViewMark

_SLICE_MS, _SLICE_S = 3, 0.006
_LEAST_PAUSE_S, _PAUSE_S = 0.002, 0.012  # between two slices, for all else that waits
_TAKEN_PER_SLICE = 3
_MANY_WIDGETS = 40  # more are taken down even while there is something to build
_AT_END_PX = 12
_PAGE_OVERLAP_PX = 40
_TAIL_GAP_PX = 20
_EDGE_PX = 12  # kept free beside what is scrolled to
_SLIDER_ACTIONS = {
    "PgUp": QAbstractSlider.SliderAction.SliderPageStepSub,
    "PgDown": QAbstractSlider.SliderAction.SliderPageStepAdd,
    "Home": QAbstractSlider.SliderAction.SliderToMinimum,
    "Ctrl+Home": QAbstractSlider.SliderAction.SliderToMinimum,
    "End": QAbstractSlider.SliderAction.SliderToMaximum,
    "Ctrl+End": QAbstractSlider.SliderAction.SliderToMaximum,
}


class MessageScroll(QAbstractScrollArea):
    """A subclass makes the widgets and knows which can be discarded. `tail` stands below the last message."""

    placed = Signal()  # things have moved, or may have

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.window_rows = MessageWindow(self._make, lambda: ViewMark(theme, self.viewport()))
        self._tail: QWidget | None = None
        self._is_following = True
        self._is_at_top = False  # likewise kept, when messages turn out taller than was thought
        self._is_placing = False
        self._built_at = 0.0
        self._slices = QTimer(self, interval=_SLICE_MS)
        self._slices.timeout.connect(self._on_slice_due)
        self._jump = QPushButton(self)
        self._jump.setProperty("kind", "jump")
        self._jump.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the End key does the same
        self._jump.hide()
        self._jump.clicked.connect(self.jump_to_end)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.verticalScrollBar().setSingleStep(2 * LINE_HEIGHT_PX)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        for keys, action in _SLIDER_ACTIONS.items():
            shortcut = QShortcut(QKeySequence(keys), self)
            shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
            shortcut.activated.connect(lambda wanted=action: self.verticalScrollBar().triggerAction(wanted))
        self._colour_jump()

    @property
    def is_following(self) -> bool:
        return self._is_following

    @property
    def is_building(self) -> bool:
        """Whether something near what is seen is still to be built, or something far to be taken down."""
        return self._slices.isActive()

    @Slot()
    def jump_to_end(self) -> None:
        self._is_following, self._is_at_top = True, False
        self.build()

    def anchor(self, stays: Callable[[Message], bool] = lambda _: True) -> Anchor | None:
        """What the reader looks at now, and `stays`; to be handed back after a change."""
        return self.window_rows.anchor(self._value(), stays)

    def changed(self, anchor: Anchor | None) -> None:
        """Heights have changed, of rows or of the tail: everything in its place, and `anchor` where it was."""
        self._settle(self._value_after(anchor))

    def stay(self, anchor: Anchor | None) -> None:
        """Rows have been replaced: build what is seen, at `anchor` or at the end, as before."""
        value = self._value_after(anchor)
        if not self._is_following:
            self._is_following = value >= self._end() - _AT_END_PX
        self._fill(None, value, anchor)

    def build(self, value: int | None = None) -> None:
        """Build all that is seen, with `value` at the top of the viewport (None: where the reader is)."""
        self._fill(None, value)

    def go_to_row(self, row: int, above_share: float) -> MessageWidget:
        """Build `row` and scroll to it, with a share of the viewport above it."""
        self._is_following = self._is_at_top = False
        self.window_rows.make_ready(row)
        for _ in range(2):  # what is built above may have another height than was thought
            self._fill(None, self.window_rows.top(row) - int(self.viewport().height() * above_share))
        self._after_scroll()
        return self.window_rows.widgets[row]

    def reveal_row(self, row: int) -> MessageWidget:
        """Build `row` and scroll as little as shows it; its beginning, where it is taller than the viewport."""
        self.window_rows.make_ready(row)
        for _ in range(2):
            top = self.window_rows.top(row) - self._value()
            self.reveal(top, top + self.window_rows.height(row))
        return self.window_rows.widgets[row]

    def reveal(self, top: int, bottom: int) -> None:
        """Scroll as little as brings these lines of the viewport into it."""
        over, under = top - _EDGE_PX, bottom + _EDGE_PX - self.viewport().height()
        if over >= 0 and under <= 0:
            return
        step = over if over < 0 else min(under, over)
        self._is_following = self._is_at_top = False
        self._fill(None, self._value() + step)
        self._after_scroll()

    # for the subclass

    def _make(self, row: int) -> MessageWidget:
        raise NotImplementedError

    def _discard(self, widgets: list[MessageWidget]) -> None:
        raise NotImplementedError

    def _set_tail(self, tail: QWidget | None) -> None:
        if self._tail is not None:
            self._tail.hide()
            self._tail.deleteLater()
        self._tail = tail
        if tail is not None:
            tail.show()

    def _colour_jump(self) -> None:
        self._jump.setIcon(icon("arrow_down", self._theme.tokens.text))

    # slots

    @Slot(int)
    def _on_scrolled(self, value: int) -> None:
        if self._is_placing:
            return
        self._after_scroll()
        if perf_counter() - self._built_at > _PAUSE_S:
            self._fill(_SLICE_S, value)
        else:  # the bar is dragged fast: what is seen is built between two of its steps
            self._settle(value)
            self._slices.start()

    @Slot()
    def _on_slice_due(self) -> None:
        if perf_counter() - self._built_at > _LEAST_PAUSE_S:
            self._fill(_SLICE_S)

    @Slot()
    def _on_height_changed(self) -> None:
        widget = self.sender()
        anchor = self.anchor()
        if isinstance(widget, MessageWidget) and self.window_rows.remeasure(widget):
            self.changed(anchor)

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        anchor = self.anchor()
        side = max(SPACE_XL, (self.width() - READING_WIDTH) // 2)
        bar = self.width() - self.viewport().width()  # the column stays over the composer, scroll bar or not
        right = max(SPACE_XL - 10, side - bar)
        page = self.viewport().height()
        self.window_rows.set_column(side, self.viewport().width() - side - right, page)
        self.verticalScrollBar().setPageStep(max(1, page - _PAGE_OVERLAP_PX))
        self._fill(None, self._value_after(anchor), anchor)
        self._place_jump()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.window_rows.forget_measures()
        self.build()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        """The messages are moved one by one, in `_settle`."""

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:  # of the tail; a message hears of its own
            self.changed(self.anchor())
        return super().viewportEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        steps = {
            Qt.Key.Key_Up: QAbstractSlider.SliderAction.SliderSingleStepSub,
            Qt.Key.Key_Down: QAbstractSlider.SliderAction.SliderSingleStepAdd,
        }
        if event.key() in steps and event.modifiers() == Qt.KeyboardModifier.NoModifier:
            self.verticalScrollBar().triggerAction(steps[Qt.Key(event.key())])
        else:
            event.ignore()

    def focusNextPrevChild(self, next: bool) -> bool:  # noqa: A002  # Qt's name
        """What Tab goes to is scrolled to."""
        if not super().focusNextPrevChild(next):
            return False
        focused = QApplication.focusWidget()
        if focused is not None and self.viewport().isAncestorOf(focused):
            top = focused.mapTo(self.viewport(), QPoint(0, 0)).y()
            self.reveal(top, top + focused.height())
        return True

    # building and placing

    def _fill(self, budget_s: float | None, value: int | None = None, anchor: Anchor | None = None) -> None:
        """Build what is near `value` for as long as allowed (None: all that is seen), and what is left in slices."""
        if not self.isVisible():
            self._slices.stop()
            return  # nothing can be measured; `showEvent` comes back to it
        rows = self.window_rows
        ends = None if budget_s is None else perf_counter() + budget_s
        value = self._end() if self._is_following else self._bounded(self._value() if value is None else value)
        while True:
            row = rows.next_unready(value, is_ahead=ends is not None, is_upward=self._is_following)
            if row is None:
                break
            kept = anchor if anchor is not None and anchor.row == row else rows.anchor(value)
            rows.make_ready(row)
            value = self._value_after(kept)
            if ends is not None and perf_counter() > ends:
                break
        taken = rows.take_far(value, _TAKEN_PER_SLICE) if row is None or len(rows.widgets) > _MANY_WIDGETS else []
        self._discard(taken)
        self._settle(value)
        self._built_at = perf_counter()
        is_more = row is not None or bool(taken) or ends is None
        if is_more and not self._slices.isActive():
            self._slices.start()
        elif not is_more:
            self._slices.stop()

    def _settle(self, value: int) -> None:
        """Make the scroll range true and put everything in its place."""
        self._is_placing = True
        bar = self.verticalScrollBar()
        bar.setRange(0, self._end())
        bar.setValue(value)
        self._is_placing = False
        self.window_rows.place(bar.value())
        if self._tail is not None:
            left, width = self.window_rows.column
            y = self.window_rows.rows_height - bar.value()
            self._tail.setGeometry(left, y, width, self._tail.heightForWidth(width))
        self._update_jump()
        self.placed.emit()

    def _value(self) -> int:
        return self.verticalScrollBar().value()

    def _end(self) -> int:
        """The largest value: with it the last line is at the bottom."""
        height = self.window_rows.rows_height
        if self._tail is not None:
            height += self._tail.heightForWidth(self.window_rows.column[1]) + _TAIL_GAP_PX
        return max(0, height + BOTTOM_PX - self.viewport().height())

    def _bounded(self, value: int) -> int:
        return max(0, min(value, self._end()))

    def _value_after(self, anchor: Anchor | None) -> int:
        if self._is_following:
            return self._end()
        return 0 if self._is_at_top else self._bounded(self.window_rows.value_for(anchor))

    def _after_scroll(self) -> None:
        self._is_following = self._value() >= self._end() - _AT_END_PX
        self._is_at_top = self._value() == 0
        self._update_jump()

    def _update_jump(self) -> None:
        self._jump.setVisible(self._value() < self._end() - _AT_END_PX)
        self._place_jump()

    def _place_jump(self) -> None:
        self._jump.adjustSize()
        x = (self.viewport().width() - self._jump.width()) // 2
        self._jump.move(QPoint(x, self.height() - self._jump.height() - 12))
        self._jump.raise_()
