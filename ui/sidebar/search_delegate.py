"""Paints what a search found: titles and excerpts, the words looked for bold on the accent's ground."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPen, QTextCharFormat, QTextLayout, QTextOption
from PySide6.QtWidgets import QAbstractItemView, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from ui import numbers
from ui.sidebar.search_rows import FoundChat, FoundRow, FoundText, Span, cut_before_match, utf16_spans
from ui.theme import Theme, ui_font
from ui.tokens import RADIUS_CONTROL, SECONDARY_PX, SMALL_PX

TITLE_ROW_PX = 33
_LINE_PX, _MAX_LINES = 17, 2
_TEXT_X, _PAD = 20, 8
_ROOM, _WIDTH_OF_ROOM = 60, 215  # so many characters of an excerpt are in sight at so many pixels
_BOLD = 1.15
_Index = QModelIndex | QPersistentModelIndex


class SearchDelegate(QStyledItemDelegate):
    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._metrics = QFontMetrics(ui_font(SECONDARY_PX))

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        row: FoundRow = index.data(Qt.ItemDataRole.UserRole)
        if isinstance(row, FoundChat):
            return QSize(100, TITLE_ROW_PX)
        assert isinstance(option.widget, QAbstractItemView)
        width = _text_width(option.widget.viewport().width())
        return QSize(100, _LINE_PX * (1 if self._fits_a_line(row, width) else _MAX_LINES) + 8)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        row: FoundRow = index.data(Qt.ItemDataRole.UserRole)
        state: QStyle.StateFlag = option.state
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        is_lit = bool(state & (QStyle.StateFlag.State_Selected | QStyle.StateFlag.State_MouseOver))
        self._paint_ground(painter, option.rect, state)
        if isinstance(row, FoundChat):
            self._paint_chat(painter, option.rect, row, is_lit)
        else:
            self._paint_text(painter, option.rect, row, is_lit)
        painter.restore()

    def _fits_a_line(self, row: FoundText, width: int) -> bool:
        """Without laying it out, which would take long for hundreds: a bold word may be a little wider."""
        if len(row.text) > _ROOM:
            return False
        return self._metrics.horizontalAdvance(row.text) * _BOLD <= width

    def _paint_ground(self, painter: QPainter, rect: QRect, state: QStyle.StateFlag) -> None:
        is_selected = bool(state & QStyle.StateFlag.State_Selected)
        if is_selected or state & QStyle.StateFlag.State_MouseOver:
            ground = self._theme.color("selection")
            ground.setAlphaF(1.0 if is_selected else 0.5)
            painter.setBrush(ground)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.drawRoundedRect(rect, RADIUS_CONTROL, RADIUS_CONTROL)
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(self._theme.color("accent"), 1))
            radius = RADIUS_CONTROL - 0.5
            painter.drawRoundedRect(QRectF(rect).adjusted(0.5, 0.5, -0.5, -0.5), radius, radius)

    def _paint_chat(self, painter: QPainter, rect: QRect, row: FoundChat, is_lit: bool) -> None:
        right = rect.right() - _PAD
        if row.num_more:
            painter.setFont(ui_font(SMALL_PX))
            painter.setPen(self._theme.color("text" if is_lit else "muted"))
            words = f"+{numbers.count(row.num_more)}"
            room = rect.adjusted(0, 0, right - rect.right(), 0)
            painter.drawText(room, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), words)
            right -= painter.fontMetrics().horizontalAdvance(words) + 8
        font = ui_font(weight=QFont.Weight.Medium)
        room = QRect(rect.left() + _PAD, rect.top(), right - rect.left() - _PAD, rect.height())
        self._paint_marked(painter, room, row.title, row.matches, font, "text", max_lines=1)

    def _paint_text(self, painter: QPainter, rect: QRect, row: FoundText, is_lit: bool) -> None:
        width = _text_width(rect.width())
        room = QRect(rect.left() + _TEXT_X, rect.top(), width, rect.height())
        text, matches = _in_sight(row, width)
        colour = "text" if is_lit else "muted"
        self._paint_marked(painter, room, text, matches, ui_font(SECONDARY_PX), colour, max_lines=_MAX_LINES)

    def _paint_marked(
        self,
        painter: QPainter,
        room: QRect,
        text: str,
        matches: Sequence[Span],
        font: QFont,
        colour: str,
        *,
        max_lines: int,
    ) -> None:
        """`text` in at most so many lines, in the middle of `room`; cut with "…" where it is longer."""
        layout = _layout(text, self._formats(text, matches), font, room.width(), max_lines)
        if layout.lineCount() > max_lines:
            last = layout.lineAt(max_lines - 1)
            kept = _without_units(text, last.textStart() + last.textLength())
            while kept:
                layout = _layout(f"{kept.rstrip()}…", self._formats(kept, matches), font, room.width(), max_lines)
                if layout.lineCount() <= max_lines:
                    break
                kept = kept.rstrip()[:-1]
        line_px = layout.lineAt(0).height() if max_lines == 1 else _LINE_PX
        top = room.top() + (room.height() - line_px * layout.lineCount()) / 2
        painter.setPen(self._theme.color(colour))
        for number in range(layout.lineCount()):
            line = layout.lineAt(number)
            line.setPosition(QPointF(0, number * line_px))
        layout.draw(painter, QPointF(room.left(), top))

    def _formats(self, text: str, matches: Sequence[Span]) -> list[QTextLayout.FormatRange]:
        formats = []
        for start, length in utf16_spans(text, [span for span in matches if span[0] < len(text)]):
            marked = QTextLayout.FormatRange()
            marked.start, marked.length = start, length
            look = QTextCharFormat()
            look.setFontWeight(QFont.Weight.Bold)
            look.setForeground(self._theme.color("text"))
            look.setBackground(self._theme.color("accent_behind"))
            marked.format = look
            formats.append(marked)
        return formats


def _text_width(row_width: int) -> int:
    return max(1, row_width - _TEXT_X - _PAD)


def _in_sight(row: FoundText, width: int) -> tuple[str, tuple[Span, ...]]:
    return cut_before_match(row.text, row.matches, _ROOM * width // _WIDTH_OF_ROOM)


def _layout(
    text: str, formats: Sequence[QTextLayout.FormatRange], font: QFont, width: int, max_lines: int
) -> QTextLayout:
    """Laid out until a line more than `max_lines`, which tells that the text is longer."""
    layout = QTextLayout(text, font)
    option = QTextOption(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignAbsolute)
    option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
    layout.setTextOption(option)
    layout.setFormats(list(formats))
    layout.beginLayout()
    for _ in range(max_lines + 1):
        line = layout.createLine()
        if not line.isValid():
            break
        line.setLineWidth(max(1, width))
    layout.endLayout()
    return layout


def _without_units(text: str, num_units: int) -> str:
    """The first `num_units` UTF-16 units of `text`."""
    return text.encode("utf-16-le")[: 2 * num_units].decode("utf-16-le", "ignore")
