"""The plots of a page as a picture: larger than on the screen, with its numbers and what they are of written below."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QImage, QPainter, QPen

from ui.lab.plot_data import Plot
from ui.lab.plot_painter import PlotPicture
from ui.lab.view import Table
from ui.theme import ui_font
from ui.tokens import SECONDARY_PX, TEXT_PX, Tokens

_SCALE = 2.0
_WIDTH, _PLOT_HEIGHT, _MARGIN, _HEAD, _FOOT = 960, 380, 32, 44, 24
_ROW, _MOST_ROWS = 24, 12
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


def draw_picture(plots: Sequence[Plot], tokens: Tokens, title: str, about: str, tables: Sequence[Table] = ()) -> QImage:
    """`about`: the line below. Tables of more than a few rows are left out."""
    shown = [table for table in tables if 0 < len(table.rows) <= _MOST_ROWS]
    below = sum((len(table.rows) + 1 + bool(table.title)) * _ROW + _MARGIN for table in shown)
    height = _HEAD + len(plots) * (_PLOT_HEIGHT + _MARGIN) + below + _FOOT + _MARGIN
    image = QImage(round(_WIDTH * _SCALE), round(height * _SCALE), QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(_SCALE)
    image.fill(QColor(tokens.surface))
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    inner = _WIDTH - 2 * _MARGIN
    painter.setFont(ui_font(20, QFont.Weight.DemiBold))
    painter.setPen(QColor(tokens.text))
    painter.drawText(QRectF(_MARGIN, _MARGIN / 2, inner, _HEAD), _LEFT, title)
    y = float(_HEAD + _MARGIN / 2)
    for plot in plots:
        PlotPicture(plot, tokens, QRectF(_MARGIN, y, inner, _PLOT_HEIGHT), "").draw(painter)
        y += _PLOT_HEIGHT + _MARGIN
    for table in shown:
        y = _draw_table(painter, table, tokens, QRectF(_MARGIN, y, inner, _ROW)) + _MARGIN
    font = ui_font(SECONDARY_PX)
    painter.setFont(font)
    painter.setPen(QColor(tokens.muted))
    elided = QFontMetricsF(font).elidedText(about, Qt.TextElideMode.ElideRight, inner)
    painter.drawText(QRectF(_MARGIN, height - _FOOT - _MARGIN / 2, inner, _FOOT), _LEFT, elided)
    painter.end()
    return image


def png_bytes(image: QImage) -> bytes:
    content = QByteArray()
    buffer = QBuffer(content)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    image.save(buffer, "PNG")  # type: ignore[call-overload]
    buffer.close()
    return bytes(content.data())


def _draw_table(painter: QPainter, table: Table, tokens: Tokens, line: QRectF) -> float:
    """From `line` on downwards; columns share the width as their words need it. Where it ends."""
    plain, strong = ui_font(SECONDARY_PX), ui_font(SECONDARY_PX, QFont.Weight.DemiBold)
    if table.title:
        painter.setFont(ui_font(TEXT_PX, QFont.Weight.DemiBold))
        painter.setPen(QColor(tokens.text))
        painter.drawText(line, _LEFT, table.title)
        line = line.translated(0, _ROW)
    metrics, rows = QFontMetricsF(strong), [table.heads, *table.rows]
    wanted = [max(metrics.horizontalAdvance(row[place]) for row in rows) + 16 for place in range(len(table.heads))]
    share = line.width() / sum(wanted)
    for number, row in enumerate(rows):
        painter.setFont(plain if number else strong)
        painter.setPen(QColor(tokens.text if number else tokens.muted))
        x = line.left()
        for words, wide in zip(row, wanted, strict=True):
            cell = QRectF(x, line.top(), wide * share - 8, _ROW)
            painter.drawText(cell, _LEFT, metrics.elidedText(words, Qt.TextElideMode.ElideRight, cell.width()))
            x += wide * share
        line = line.translated(0, _ROW)
        painter.setPen(QPen(QColor(tokens.line), 1))
        painter.drawLine(QPointF(line.left(), line.top() - 0.5), QPointF(line.right(), line.top() - 0.5))
    return line.top()
