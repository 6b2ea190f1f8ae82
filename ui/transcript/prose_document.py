"""Draws blocks into a QTextDocument through a cursor: no HTML on the way, so nothing in a reply can be markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
)

from ui.markdown.blocks import LINE_BREAK, Block, Maths, Paragraph, Rule, Span, Table
from ui.theme import mono_font, ui_font
from ui.tokens import LINE_HEIGHT_PX, SECONDARY_PX, TEXT_PX, Tokens
from ui.transcript.block_marks import (
    INDENT_PX,
    MARKER_PROPERTY,
    RULE_PROPERTY,
    TASK_PROPERTY,
    marker_room,
)
from ui.transcript.footnotes import Footnotes
from ui.transcript.formula_object import FormulaObject, insert_formula
from ui.transcript.prose_formats import place, place_note, table_format, thin_characters, thin_format

_HEADING_PX = {1: 20, 2: 18, 3: 16, 4: 15, 5: 14, 6: 14}
_ALIGNMENTS = {
    "left": Qt.AlignmentFlag.AlignLeft,
    "center": Qt.AlignmentFlag.AlignHCenter,
    "right": Qt.AlignmentFlag.AlignRight,
}
_LINE_HEIGHT_TYPE = QTextBlockFormat.LineHeightTypes.MinimumHeight.value


class ProseWriter:
    """Appends to one document. The very first block of a reply (`is_first`) has no space above it."""

    def __init__(
        self, document: QTextDocument, tokens: Tokens, is_first: bool = True, notes: Footnotes | None = None
    ) -> None:
        self._document = document
        self._tokens = tokens
        self._is_first = is_first
        self._notes = notes or Footnotes()
        self._has_formulas = False
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
                    self._write_maths(cursor, block)
                case Rule():
                    self._start_block(cursor, self._block_format(8, 8, rule=True), QTextCharFormat())
                case _:
                    raise TypeError(f"{block!r} is not prose")
            self.is_empty = False
        cursor.endEditBlock()

    def _write_paragraph(self, cursor: QTextCursor, paragraph: Paragraph) -> None:
        above = 2 if paragraph.is_tight else 8
        block_format = self._block_format(14 if paragraph.heading else above, 2 if paragraph.heading else 0)
        base = self._base_format(paragraph.heading, bool(paragraph.quotes), paragraph.note is not None)
        place(block_format, paragraph.depth, paragraph.quotes)
        if paragraph.task is not None:
            block_format.setProperty(TASK_PROPERTY, paragraph.task)
        elif paragraph.marker is not None:
            block_format.setProperty(MARKER_PROPERTY, paragraph.marker)
            block_format.setLeftMargin(block_format.leftMargin() + marker_room(paragraph.marker))
        if paragraph.note is not None:
            place_note(block_format, paragraph.starts_note)
        self._start_block(cursor, block_format, base)
        if paragraph.starts_note and paragraph.note is not None:
            cursor.insertText(f"{self._notes.number(paragraph.note) or paragraph.note}.\t", base)
        self._write_spans(cursor, paragraph.spans, base)

    def _write_maths(self, cursor: QTextCursor, maths: Maths) -> None:
        block_format = self._block_format(12, 6)
        place(block_format, maths.depth, maths.quotes)
        base = self._base_format(0)
        self._start_block(cursor, block_format, base)
        self._handle_formulas()
        if insert_formula(cursor, maths.latex, True, base):
            block_format.setAlignment(Qt.AlignmentFlag.AlignHCenter)
            cursor.mergeBlockFormat(block_format)
        else:
            source = maths.latex.replace("\n", LINE_BREAK)
            cursor.insertText(source, self._span_format(Span(source, code=True), base))

    def _write_table(self, cursor: QTextCursor, table: Table) -> None:
        columns = max(1, len(table.alignments))
        if not self.is_empty:
            self._start_block(cursor, thin_format(), thin_characters())
        frame = table_format(self._tokens)
        frame.setLeftMargin(table.depth * INDENT_PX)
        text_table = cursor.insertTable(max(1, len(table.rows)), columns, frame)
        for row, cells in enumerate(table.rows):
            base = self._base_format(0)
            if row == 0:
                base.setFontWeight(QFont.Weight.DemiBold)
            for column, spans in enumerate(cells[:columns]):
                cell = text_table.cellAt(row, column)
                cell_format = cell.format()
                cell_format.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignMiddle)
                if row == 0:
                    cell_format.setBackground(QColor(self._tokens.code))
                cell.setFormat(cell_format)
                inner = cell.firstCursorPosition()
                block_format = QTextBlockFormat()
                block_format.setAlignment(_ALIGNMENTS.get(table.alignments[column], Qt.AlignmentFlag.AlignLeft))
                inner.setBlockFormat(block_format)
                self._write_spans(inner, spans, base, 1 / columns)
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.setBlockFormat(thin_format())
        cursor.setBlockCharFormat(thin_characters())
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

    def _write_spans(
        self, cursor: QTextCursor, spans: tuple[Span, ...], base: QTextCharFormat, share: float = 1.0
    ) -> None:
        """`share`: of the width of the document, what a formula may take."""
        for span in spans:
            if span.maths is not None:
                self._handle_formulas()
                if not insert_formula(cursor, span.text, span.maths == "display", self._span_format(span, base), share):
                    cursor.insertText(span.text, self._span_format(replace(span, code=True), base))
            elif span.note is not None and (number := self._notes.number(span.note)) is not None:
                raised = self._span_format(span, base)
                raised.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignSuperScript)
                raised.setForeground(QColor(self._tokens.accent))
                cursor.insertText(number, raised)
            else:
                cursor.insertText(span.text, self._span_format(span, base))

    def _handle_formulas(self) -> None:
        """The document learns to draw formulas with the first of them."""
        if not self._has_formulas and self._document.findChild(FormulaObject) is None:
            FormulaObject(self._document)
        self._has_formulas = True

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

    def _base_format(self, heading: int, is_quoted: bool = False, is_note: bool = False) -> QTextCharFormat:
        result = QTextCharFormat()
        pixels = _HEADING_PX.get(heading, SECONDARY_PX if is_note else TEXT_PX)
        result.setFont(ui_font(pixels, QFont.Weight.DemiBold if heading else QFont.Weight.Normal))
        result.setForeground(QColor(self._tokens.muted if is_quoted or is_note else self._tokens.text))
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
