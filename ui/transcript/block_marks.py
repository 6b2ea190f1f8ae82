"""What is painted beside blocks of prose: the bars of quotes, rules, the markers of lists and tasks."""

from __future__ import annotations

from math import ceil

from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen, QTextBlock, QTextDocument, QTextFormat

from ui.theme import ui_font
from ui.tokens import Tokens

QUOTE_PROPERTY = int(QTextFormat.Property.UserProperty) + 1  # where its bars stand, as "0,22"
RULE_PROPERTY = int(QTextFormat.Property.UserProperty) + 2
TASK_PROPERTY = int(QTextFormat.Property.UserProperty) + 3  # whether it is done
THIN_PROPERTY = int(QTextFormat.Property.UserProperty) + 4  # holds nothing: Qt wants a block around a table
MARKER_PROPERTY = int(QTextFormat.Property.UserProperty) + 5  # of a list's item: 0 a bullet, else its number
INDENT_PX = 24  # of each list
QUOTE_PX = 14
_BOX = 13.0
_BOX_LEFT = 21.0  # from the text
_BULLET_LEFT = 12.0
_BULLET_RADIUS = 2.4
_NUMBER_GAP = 6.0
_AHEAD_PX = 200  # cells of a table are not one below the other


def marker_room(number: int) -> int:
    """How much wider than an indent the marker of an item is."""
    return max(0, ceil(QFontMetricsF(ui_font()).horizontalAdvance(f"{number}.") + _NUMBER_GAP) - INDENT_PX)


def paint_marks(painter: QPainter, document: QTextDocument, tokens: Tokens, exposed: QRect, width: int) -> None:
    """Look only at the blocks in `exposed`: a reply may be long, and a line of it is drawn thirty times a second."""
    block = _first_block(document, exposed)
    while block.isValid() and _rect(block).top() <= exposed.bottom() + _AHEAD_PX:
        block_format = block.blockFormat()
        if block_format.hasProperty(QUOTE_PROPERTY):
            _paint_quote(painter, block, tokens, exposed)
        elif block_format.hasProperty(RULE_PROPERTY):
            rect = _rect(block)
            painter.fillRect(QRect(0, rect.center().y(), width, 1), QColor(tokens.line))
        if block_format.hasProperty(TASK_PROPERTY):
            _paint_task(painter, block, tokens, exposed)
        elif block_format.hasProperty(MARKER_PROPERTY):
            _paint_marker(painter, block, tokens, exposed)
        block = block.next()


def _first_block(document: QTextDocument, exposed: QRect) -> QTextBlock:
    place = document.documentLayout().hitTest(QPointF(0, exposed.top()), Qt.HitTestAccuracy.FuzzyHit)
    block = document.findBlock(max(0, place))
    for _ in range(2):
        if block.previous().isValid():
            block = block.previous()
    return block


def quote_bars(quotes: tuple[int, ...]) -> str:
    """Where the bars of quotes stand, each in so many lists."""
    return ",".join(str(depth * INDENT_PX + level * QUOTE_PX) for level, depth in enumerate(quotes))


def _paint_quote(painter: QPainter, block: QTextBlock, tokens: Tokens, exposed: QRect) -> None:
    rect, before = _rect(block), block.previous()
    bars_before = _bars(before) if before.isValid() else []
    for left in _bars(block):
        top = _rect(before).bottom() if left in bars_before else rect.top() + 2
        bar = QRect(left, top, 2, rect.bottom() + 2 - top)
        if bar.intersects(exposed):
            painter.fillRect(bar, QColor(tokens.line))


def _bars(block: QTextBlock) -> list[int]:
    bars = str(block.blockFormat().property(QUOTE_PROPERTY) or "")
    return [int(bar) for bar in bars.split(",") if bar]


def _paint_marker(painter: QPainter, block: QTextBlock, tokens: Tokens, exposed: QRect) -> None:
    """A disc, or a circle in inner lists, or the number, at the first line."""
    start = _line_start(block, exposed)
    if start is None:
        return
    number = int(block.blockFormat().property(MARKER_PROPERTY))
    colour = QColor(tokens.muted if block.blockFormat().hasProperty(QUOTE_PROPERTY) else tokens.text)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    if number:
        font = ui_font()
        text = f"{number}."
        width = QFontMetricsF(font).horizontalAdvance(text)
        painter.setFont(font)
        painter.setPen(colour)
        painter.drawText(start - QPointF(width + _NUMBER_GAP, 0), text)
    else:
        is_inner = block.blockFormat().indent() > 1
        painter.setPen(QPen(colour, 1.0) if is_inner else Qt.PenStyle.NoPen)
        painter.setBrush(Qt.BrushStyle.NoBrush if is_inner else colour)
        radius = _BULLET_RADIUS if not is_inner else _BULLET_RADIUS - 0.2
        painter.drawEllipse(start + QPointF(-_BULLET_LEFT, -4.6), radius, radius)
    painter.restore()


def _paint_task(painter: QPainter, block: QTextBlock, tokens: Tokens, exposed: QRect) -> None:
    """A small box on the first line's letters, ticked when the task is done."""
    start = _line_start(block, exposed)
    if start is None:
        return
    box = QRectF(round(start.x() - _BOX_LEFT) + 0.5, round(start.y() - _BOX) + 1.5, _BOX, _BOX)
    is_done = bool(block.blockFormat().property(TASK_PROPERTY))
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(QColor(tokens.accent if is_done else tokens.muted), 1.2))
    painter.setBrush(QColor(tokens.accent) if is_done else Qt.BrushStyle.NoBrush)
    painter.drawRoundedRect(box, 3, 3)
    if is_done:
        pen = QPen(QColor(tokens.on_accent), 1.8, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap)
        pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        painter.setPen(pen)
        corner = box.topLeft()
        painter.drawPolyline([corner + QPointF(3.2, 6.8), corner + QPointF(5.6, 9.2), corner + QPointF(9.9, 4.2)])
    painter.restore()


def _line_start(block: QTextBlock, exposed: QRect) -> QPointF | None:
    """Where the baseline of the first line begins, if the block is to be painted."""
    layout = block.layout()
    if layout.lineCount() == 0 or not _rect(block).adjusted(0, -4, 0, 4).intersects(exposed):
        return None
    line = layout.lineAt(0)
    return layout.position() + QPointF(line.x(), line.y() + line.ascent())


def _rect(block: QTextBlock) -> QRect:
    return block.document().documentLayout().blockBoundingRect(block).toAlignedRect()
