"""Paints a row of the conversation list: the warmth mark, the title, where known the precision, a pin if pinned."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPainterPath, QPen
from PySide6.QtWidgets import QLineEdit, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from engine.protocol.events import CacheState
from ui.memory.precision_words import FULL, is_full, kind_of, precision_mark
from ui.sidebar.conversation_model import ListRole, Warmth
from ui.theme import Theme, ui_font
from ui.tokens import RADIUS_CONTROL, SMALL_PX

ROW_PX = 35
HEADING_PX = 28
_MARK = 9
_TEXT_X = 26
_DARK_CENTRE = "#1F1B16"
_PIN_WIDTH, _PIN_HEIGHT = 8, 12
_Index = QModelIndex | QPersistentModelIndex


class ConversationDelegate(QStyledItemDelegate):
    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        return QSize(100, HEADING_PX if index.data(ListRole.IS_HEADING) else ROW_PX)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect: QRect = option.rect
        if index.data(ListRole.IS_HEADING):
            self._paint_heading(painter, rect, str(index.data()))
        else:
            self._paint_row(painter, rect, option.state, index)
        painter.restore()

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: _Index) -> QWidget:
        editor = QLineEdit(parent)
        editor.setMaxLength(200)
        editor.setAccessibleName(self.tr("Title"))
        return editor

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, index: _Index) -> None:
        rect: QRect = option.rect
        editor.setGeometry(rect.adjusted(_TEXT_X - 11, 1, 0, -1))

    def _paint_heading(self, painter: QPainter, rect: QRect, text: str) -> None:
        font = ui_font(SMALL_PX, QFont.Weight.DemiBold)
        font.setLetterSpacing(QFont.SpacingType.AbsoluteSpacing, 0.4)
        painter.setFont(font)
        painter.setPen(self._theme.color("muted"))
        painter.drawText(rect.adjusted(8, 0, -8, -5), int(_BOTTOM_LEFT), text.upper())

    def _paint_row(self, painter: QPainter, rect: QRect, state: QStyle.StateFlag, index: _Index) -> None:
        is_selected = bool(state & QStyle.StateFlag.State_Selected)
        if is_selected or state & QStyle.StateFlag.State_MouseOver:
            ground = self._theme.color("selection")
            ground.setAlphaF(1.0 if is_selected else 0.5)
            painter.setBrush(ground)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.drawRoundedRect(rect, RADIUS_CONTROL, RADIUS_CONTROL)
        if is_selected and state & QStyle.StateFlag.State_HasFocus:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(self._theme.color("accent"), 1))
            painter.drawRoundedRect(
                QRectF(rect).adjusted(0.5, 0.5, -0.5, -0.5), RADIUS_CONTROL - 0.5, RADIUS_CONTROL - 0.5
            )
        warmth: Warmth | None = index.data(ListRole.WARMTH)
        if warmth is not None:
            self._paint_mark(painter, rect, warmth)
        quiet = self._theme.color("text" if is_selected else "muted")
        right = rect.right() - 8
        if index.data(ListRole.IS_PINNED):
            right = self._paint_pin(painter, rect, right, quiet)
        right = self._paint_precision(painter, rect, right, warmth, quiet)
        painter.setFont(ui_font())
        painter.setPen(self._theme.color("text"))
        room = rect.adjusted(_TEXT_X, 0, right - rect.right(), 0)
        title = QFontMetrics(painter.font()).elidedText(str(index.data()), Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room, int(_CENTER_LEFT), title)

    def _paint_mark(self, painter: QPainter, rect: QRect, warmth: Warmth) -> None:
        """Filled: in memory. Half: on disk. Hollow: cold. Told apart without colour."""
        precisions = self._theme.tokens.precision
        hollow = QColor(precisions["on_disk"])
        circle = QRectF(0, 0, _MARK, _MARK)
        circle.moveCenter(QPointF(rect.left() + 8 + _MARK / 2, rect.center().y() + 0.5))
        if warmth.state is CacheState.WARM:
            kind = kind_of(warmth.precision)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(precisions.get(kind, precisions[FULL])))
            painter.drawEllipse(circle)
            if kind == "kvzip":
                painter.setBrush(QColor(_DARK_CENTRE))
                painter.drawEllipse(circle.center(), _MARK / 6, _MARK / 6)
            return
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(hollow, 1.2))
        ring = circle.adjusted(0.6, 0.6, -0.6, -0.6)
        painter.drawEllipse(ring)
        if warmth.state is CacheState.ON_DISK:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(hollow)
            painter.drawPie(ring, 90 * 16, 180 * 16)

    def _paint_pin(self, painter: QPainter, rect: QRect, right: int, colour: QColor) -> int:
        """A drawing pin, seen from the side; gives where what stands before it has to end."""
        top = rect.center().y() - _PIN_HEIGHT / 2 + 0.5
        middle = right - _PIN_WIDTH / 2
        pin = QPainterPath(QPointF(middle - 3, top))
        for x, y in ((3, 0), (3, 1.5), (2, 1.5), (2, 5), (4, 7.5), (-4, 7.5), (-2, 5), (-2, 1.5), (-3, 1.5)):
            pin.lineTo(middle + x, top + y)
        pin.closeSubpath()
        painter.fillPath(pin, colour)
        painter.setPen(QPen(colour, 1.2))
        painter.drawLine(QPointF(middle, top + 7.5), QPointF(middle, top + _PIN_HEIGHT))
        return right - _PIN_WIDTH - 7

    def _paint_precision(
        self, painter: QPainter, rect: QRect, right: int, warmth: Warmth | None, colour: QColor
    ) -> int:
        """Where what stands before it has to end: `right` itself when there is nothing to say."""
        if warmth is None or warmth.state is CacheState.COLD or is_full(warmth.precision):
            return right
        mark = precision_mark(warmth.precision, warmth.kept)
        painter.setFont(ui_font(SMALL_PX))
        painter.setPen(colour)
        width = QFontMetrics(painter.font()).horizontalAdvance(mark)
        painter.drawText(rect.adjusted(0, 0, right - rect.right(), 0), int(_CENTER_RIGHT), mark)
        return right - width - 8


_CENTER_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_CENTER_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_BOTTOM_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom
