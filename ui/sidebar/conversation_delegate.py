"""Paints the rows of the conversation list: headings, folders, and chats with their warmth, precision or cost, pin."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import QLineEdit, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from engine.protocol.events import CacheState
from ui import numbers
from ui.estimate_words import about
from ui.memory.precision_words import is_full, precision_mark
from ui.sidebar.conversation_model import ListRole
from ui.sidebar.list_rows import ChatRow, FolderRow, Group, HeadingRow
from ui.sidebar.row_marks import MARK_PX, paint_mask, paint_pin, paint_triangle, paint_warmth
from ui.sidebar.warmth import Cost, Warmth
from ui.theme import Theme, ui_font
from ui.tokens import RADIUS_CONTROL, SMALL_PX

INDENT = 16
_TEXT_X = 26
_FILLED = "filled"
_Index = QModelIndex | QPersistentModelIndex


class ConversationDelegate(QStyledItemDelegate):
    """`drop_target` is the row that a dragged chat hangs over. Sizes come from the model, which is quicker."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self.drop_target = QPersistentModelIndex()

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect: QRect = option.rect
        row = index.data(ListRole.ROW)
        is_dropped_on = self.drop_target.isValid() and self.drop_target.row() == index.row()
        match row:
            case ChatRow():
                self._paint_chat(painter, rect, option.state, row, index, is_dropped_on)
            case FolderRow():
                self._paint_folder(painter, rect, option.state, row, str(index.data()), is_dropped_on)
            case HeadingRow():
                self._paint_heading(painter, rect, row, str(index.data()), is_dropped_on)
        painter.restore()

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: _Index) -> QWidget:
        editor = QLineEdit(parent)
        editor.setMaxLength(200)
        is_folder = index.data(ListRole.FOLDER_ID) is not None
        editor.setAccessibleName(self.tr("Folder name") if is_folder else self.tr("Title"))
        return editor

    def setEditorData(self, editor: QWidget, index: _Index) -> None:
        """Once: a refresh of the row must not take away what is being typed."""
        if not editor.property(_FILLED):
            editor.setProperty(_FILLED, True)
            super().setEditorData(editor, index)

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, index: _Index) -> None:
        rect: QRect = option.rect
        editor.setGeometry(rect.adjusted(_indent(index.data(ListRole.ROW)) + _TEXT_X - 8, 1, 0, -1))

    def _paint_heading(self, painter: QPainter, rect: QRect, row: HeadingRow, text: str, is_dropped_on: bool) -> None:
        colour = self._theme.color("text" if is_dropped_on else "muted")
        painter.setPen(colour)
        if row.group is Group.INCOGNITO:
            paint_mask(painter, QRect(rect.left(), rect.bottom() - 30, rect.width(), 22), rect.left() + 22, colour)
            painter.setPen(colour)
            painter.setFont(ui_font(SMALL_PX))
            painter.drawText(rect.adjusted(30, 0, -8, -5), int(_BOTTOM_LEFT | Qt.TextFlag.TextWordWrap), text)
            return
        font = ui_font(SMALL_PX, QFont.Weight.DemiBold)
        font.setLetterSpacing(QFont.SpacingType.AbsoluteSpacing, 0.4)
        painter.setFont(font)
        painter.drawText(rect.adjusted(8, 0, -8, -5), int(_BOTTOM_LEFT), text.upper())

    def _paint_folder(
        self, painter: QPainter, rect: QRect, state: QStyle.StateFlag, row: FolderRow, name: str, is_dropped_on: bool
    ) -> None:
        self._paint_ground(painter, rect, state, is_dropped_on=is_dropped_on)
        muted = self._theme.color("text" if is_dropped_on or _is_hovered(state) else "muted")
        paint_triangle(painter, QPointF(rect.left() + 12, rect.center().y() + 0.5), row.is_collapsed, muted)
        right = _paint_right(painter, rect, rect.right() - 8, numbers.count(row.num_chats), muted)
        self._paint_title(painter, rect.adjusted(_TEXT_X, 0, right - rect.right(), 0), name)

    def _paint_chat(
        self,
        painter: QPainter,
        rect: QRect,
        state: QStyle.StateFlag,
        row: ChatRow,
        index: _Index,
        is_dropped_on: bool,
    ) -> None:
        is_marked = bool(state & QStyle.StateFlag.State_Selected) or bool(index.data(ListRole.IS_OPEN))
        self._paint_ground(painter, rect, state, is_marked=is_marked, is_dropped_on=is_dropped_on)
        indent = _indent(row)
        warmth: Warmth | None = index.data(ListRole.WARMTH)
        if warmth is not None:
            centre = QPointF(rect.left() + indent + 8 + MARK_PX / 2, rect.center().y() + 0.5)
            paint_warmth(painter, centre, warmth, self._theme.tokens.precision)
        quiet = self._theme.color("text" if is_marked or _is_hovered(state) else "muted")
        right = rect.right() - 8
        if row.conversation.is_incognito:
            right = paint_mask(painter, rect, right, quiet)
        if row.conversation.is_pinned:
            right = paint_pin(painter, rect, right, quiet)
        if mark := _mark_words(warmth, index.data(ListRole.COST)):
            right = _paint_right(painter, rect, right, mark, quiet)
        self._paint_title(painter, rect.adjusted(indent + _TEXT_X, 0, right - rect.right(), 0), str(index.data()))

    def _paint_ground(
        self,
        painter: QPainter,
        rect: QRect,
        state: QStyle.StateFlag,
        *,
        is_marked: bool = False,
        is_dropped_on: bool = False,
    ) -> None:
        if is_marked or is_dropped_on or _is_hovered(state):
            ground = self._theme.color("accent_behind" if is_dropped_on else "selection")
            ground.setAlphaF(1.0 if is_marked or is_dropped_on else 0.5)
            painter.setBrush(ground)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.drawRoundedRect(rect, RADIUS_CONTROL, RADIUS_CONTROL)
        if is_dropped_on or state & QStyle.StateFlag.State_HasFocus:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(self._theme.color("accent"), 1))
            radius = RADIUS_CONTROL - 0.5
            painter.drawRoundedRect(QRectF(rect).adjusted(0.5, 0.5, -0.5, -0.5), radius, radius)

    def _paint_title(self, painter: QPainter, room: QRect, title: str) -> None:
        """At the left, cut at its end, whichever way it is read."""
        painter.setFont(ui_font())
        painter.setPen(self._theme.color("text"))
        shown = QFontMetrics(painter.font()).elidedText(title, Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room, int(_CENTER_LEFT), shown)


def _mark_words(warmth: Warmth | None, cost: Cost | None) -> str:
    """The precision of a cache that is not whole; else how long it takes to go on, where that is known."""
    if warmth is None:
        return ""
    if warmth.state is not CacheState.COLD and not is_full(warmth.precision):
        return precision_mark(warmth.precision, warmth.kept)
    if warmth.state is not CacheState.WARM and cost is not None and cost.seconds is not None:
        return about(cost.seconds)
    return ""


def _paint_right(painter: QPainter, rect: QRect, right: int, words: str, colour: QColor) -> int:
    """Gives where what stands before the words has to end."""
    painter.setFont(ui_font(SMALL_PX))
    painter.setPen(colour)
    painter.drawText(rect.adjusted(0, 0, right - rect.right(), 0), int(_CENTER_RIGHT), words)
    return right - QFontMetrics(painter.font()).horizontalAdvance(words) - 8


def _indent(row: object) -> int:
    return INDENT if isinstance(row, ChatRow) and row.is_indented else 0


def _is_hovered(state: QStyle.StateFlag) -> bool:
    return bool(state & QStyle.StateFlag.State_MouseOver)


_CENTER_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignAbsolute
_CENTER_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_BOTTOM_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom
