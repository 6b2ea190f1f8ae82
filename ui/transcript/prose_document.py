"""Draws blocks into a QTextDocument through a cursor: no HTML on the way, so nothing in a reply can be markup."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFont,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFrameFormat,
    QTextLength,
    QTextListFormat,
    QTextTableFormat,
)

from ui.markdown.blocks import Block, Maths, Paragraph, Rule, Span, Table
from ui.theme import mono_font, ui_font
from ui.tokens import LINE_HEIGHT_PX, TEXT_PX, Tokens
from ui.transcript.flow_text import QUOTE_PROPERTY, RULE_PROPERTY

INDENT_PX = 20
_HEADING_PX = {1: 20, 2: 18, 3: 16, 4: 15, 5: 14, 6: 14}
_ALIGNMENTS = {
    "left": Qt.AlignmentFlag.AlignLeft,
    "center": Qt.AlignmentFlag.AlignHCenter,
    "right": Qt.AlignmentFlag.AlignRight,
}
_LINE_HEIGHT_TYPE = QTextBlockFormat.LineHeightTypes.MinimumHeight.value


class ProseWriter:
    """Appends to one document. The very first block of a reply (`is_first`) has no space above it."""

    def __init__(self, document: QTextDocument, tokens: Tokens, is_first: bool = True) -> None:
        self._document = document
        self._tokens = tokens
        self._is_first = is_first
        self._is_fresh = True  # the last block of the document holds nothing yet
        self.is_empty = True
        document.setIndentWidth(INDENT_PX)
        document.setDefaultFont(ui_font())

    def write(self, blocks: Sequence[Block]) -> None:
        cursor = QTextCursor(self._document)
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.beginEditBlock()
        for block in blocks:
            match block:
                case Paragraph():
                    self._write_paragraph(cursor, block)
                case Table():
                    self._write_table(cursor, block)
                case Maths():
                    self._write_paragraph(cursor, Paragraph((Span(block.latex, code=True),), depth=block.depth))
                case Rule():
                    self._start_block(cursor, self._block_format(8, 8, rule=True), QTextCharFormat())
                case _:
                    raise TypeError(f"{block!r} is not prose")
            self.is_empty = False
        cursor.endEditBlock()

    def _write_paragraph(self, cursor: QTextCursor, paragraph: Paragraph) -> None:
        above = 2 if paragraph.is_tight else 8
        block_format = self._block_format(14 if paragraph.heading else above, 2 if paragraph.heading else 0)
        base = self._base_format(paragraph.heading, is_quiet=paragraph.quote > 0)
        if paragraph.quote:
            block_format.setProperty(QUOTE_PROPERTY, paragraph.quote)
            block_format.setLeftMargin(14 * paragraph.quote)
        if paragraph.depth and paragraph.marker is None:
            block_format.setIndent(paragraph.depth)
        self._start_block(cursor, block_format, base)
        if paragraph.marker is not None:
            cursor.createList(_list_format(paragraph.depth, paragraph.marker))
        self._write_spans(cursor, paragraph.spans, base)

    def _write_table(self, cursor: QTextCursor, table: Table) -> None:
        columns = max(1, len(table.alignments))
        if not self.is_empty:
            self._start_block(cursor, _thin_format(), _thin_characters())
        text_table = cursor.insertTable(max(1, len(table.rows)), columns, _table_format(self._tokens))
        for row, cells in enumerate(table.rows):
            base = self._base_format(0)
            if row == 0:
                base.setFontWeight(QFont.Weight.DemiBold)
            for column, spans in enumerate(cells[:columns]):
                cell = text_table.cellAt(row, column)
                if row == 0:
                    cell_format = cell.format()
                    cell_format.setBackground(QColor(self._tokens.code))
                    cell.setFormat(cell_format)
                inner = cell.firstCursorPosition()
                block_format = QTextBlockFormat()
                block_format.setAlignment(_ALIGNMENTS.get(table.alignments[column], Qt.AlignmentFlag.AlignLeft))
                inner.setBlockFormat(block_format)
                self._write_spans(inner, spans, base)
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.setBlockFormat(_thin_format())
        cursor.setBlockCharFormat(_thin_characters())
        self._is_fresh = False

    def _start_block(self, cursor: QTextCursor, block: QTextBlockFormat, characters: QTextCharFormat) -> None:
        if self.is_empty and self._is_first:
            block.setTopMargin(0)
        if self._is_fresh:
            cursor.setBlockFormat(block)
            cursor.setBlockCharFormat(characters)
            self._is_fresh = False
        else:
            cursor.insertBlock(block, characters)

    def _write_spans(self, cursor: QTextCursor, spans: tuple[Span, ...], base: QTextCharFormat) -> None:
        for span in spans:
            cursor.insertText(span.text, self._span_format(span, base))

    def _span_format(self, span: Span, base: QTextCharFormat) -> QTextCharFormat:
        result = QTextCharFormat(base)
        if span.code:
            result.setFont(mono_font(TEXT_PX - 1), QTextCharFormat.FontPropertiesInheritanceBehavior.FontPropertiesAll)
            result.setBackground(QColor(self._tokens.code))
        if span.bold:
            result.setFontWeight(QFont.Weight.Bold)
        if span.italic:
            result.setFontItalic(True)
        if span.strike:
            result.setFontStrikeOut(True)
        if span.href:
            result.setAnchor(True)
            result.setAnchorHref(span.href)
            result.setForeground(QColor(self._tokens.accent))
            result.setFontUnderline(True)
        return result

    def _base_format(self, heading: int, is_quiet: bool = False) -> QTextCharFormat:
        result = QTextCharFormat()
        pixels = _HEADING_PX.get(heading, TEXT_PX)
        result.setFont(ui_font(pixels, QFont.Weight.DemiBold if heading else QFont.Weight.Normal))
        result.setForeground(QColor(self._tokens.muted if is_quiet else self._tokens.text))
        return result

    def _block_format(self, above: int, below: int, rule: bool = False) -> QTextBlockFormat:
        result = QTextBlockFormat()
        result.setTopMargin(above)
        result.setBottomMargin(below)
        result.setLineHeight(LINE_HEIGHT_PX, _LINE_HEIGHT_TYPE)
        if rule:
            result.setProperty(RULE_PROPERTY, True)
        return result


def write_plain(document: QTextDocument, text: str, tokens: Tokens) -> None:
    """Replace the document by `text`, in which nothing is markup."""
    document.clear()
    writer = ProseWriter(document, tokens)
    writer.write([Paragraph((Span(line),), is_tight=True) for line in text.split("\n")])


def _list_format(depth: int, marker: int) -> QTextListFormat:
    result = QTextListFormat()
    result.setIndent(depth)
    if marker:
        result.setStyle(QTextListFormat.Style.ListDecimal)
        result.setStart(marker)
    else:
        style = QTextListFormat.Style.ListDisc if depth == 1 else QTextListFormat.Style.ListCircle
        result.setStyle(style)
    return result


def _table_format(tokens: Tokens) -> QTextTableFormat:
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


def _thin_format() -> QTextBlockFormat:
    result = QTextBlockFormat()
    result.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
    return result


def _thin_characters() -> QTextCharFormat:
    result = QTextCharFormat()
    result.setFont(ui_font(1))
    return result
