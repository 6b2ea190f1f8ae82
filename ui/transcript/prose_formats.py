"""Formats of blocks and tables of prose."""

from __future__ import annotations

from PySide6.QtGui import (
    QBrush,
    QColor,
    QTextBlockFormat,
    QTextCharFormat,
    QTextFrameFormat,
    QTextLength,
    QTextOption,
    QTextTableFormat,
)

from ui.theme import ui_font
from ui.tokens import Tokens
from ui.transcript.block_marks import INDENT_PX, QUOTE_PROPERTY, QUOTE_PX, THIN_PROPERTY, quote_bars

_NOTE_LINE_PX = 19
_AT_LEAST = QTextBlockFormat.LineHeightTypes.MinimumHeight.value


def place(block_format: QTextBlockFormat, depth: int, quotes: tuple[int, ...]) -> None:
    """In as many lists and quotes as it is."""
    block_format.setIndent(depth)
    if quotes:
        block_format.setProperty(QUOTE_PROPERTY, quote_bars(quotes))
        block_format.setLeftMargin(QUOTE_PX * len(quotes))


def place_note(block_format: QTextBlockFormat, starts_note: bool) -> None:
    """The number of a footnote hangs before its text."""
    block_format.setLeftMargin(block_format.leftMargin() + INDENT_PX)
    block_format.setTopMargin(4)
    block_format.setLineHeight(_NOTE_LINE_PX, _AT_LEAST)
    if starts_note:
        block_format.setTextIndent(-INDENT_PX)
        block_format.setTabPositions([QTextOption.Tab(INDENT_PX, QTextOption.TabType.LeftTab)])


def table_format(tokens: Tokens) -> QTextTableFormat:
    result = QTextTableFormat()
    result.setBorder(1)
    result.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    result.setBorderBrush(QBrush(QColor(tokens.line)))
    result.setBorderCollapse(True)
    result.setCellSpacing(0)
    result.setCellPadding(7)
    result.setTopMargin(8)
    result.setBottomMargin(4)
    result.setHeaderRowCount(1)
    result.setWidth(QTextLength())
    return result


def thin_format() -> QTextBlockFormat:
    """Of the empty blocks that Qt wants before and behind a table."""
    result = QTextBlockFormat()
    result.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
    result.setProperty(THIN_PROPERTY, True)
    return result


def thin_characters() -> QTextCharFormat:
    result = QTextCharFormat()
    result.setFont(ui_font(1))
    return result
