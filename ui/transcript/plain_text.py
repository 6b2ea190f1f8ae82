"""What prose says as plain text: markers of lists, cells apart, and formulas as they are written."""

from __future__ import annotations

from PySide6.QtGui import QTextBlock, QTextCursor, QTextDocument, QTextTable

from ui.markdown.blocks import LINE_BREAK
from ui.transcript.block_marks import MARKER_PROPERTY, TASK_PROPERTY, THIN_PROPERTY
from ui.transcript.formula_object import source_of


def document_text(document: QTextDocument, start: int = 0, end: int | None = None) -> str:
    """The text from position `start` to `end`; an item that is taken from its start has its marker."""
    end = document.characterCount() if end is None else end
    pieces: list[str] = []
    row: tuple[int, int] | None = None
    block = document.findBlock(start)
    while block.isValid() and block.position() < end:
        if not block.blockFormat().hasProperty(THIN_PROPERTY):
            before, row = row, _row(block)
            if pieces:
                pieces.append("\t" if row is not None and row == before else "\n")
            marker = _marker(block) if start <= block.position() else ""
            pieces.append(marker + _block_text(block, start, end))
        block = block.next()
    return "".join(pieces)


def _block_text(block: QTextBlock, start: int, end: int) -> str:
    pieces = []
    iterator = block.begin()
    while not iterator.atEnd():
        fragment = iterator.fragment()
        text = fragment.text()
        first = max(0, start - fragment.position())
        last = max(0, end - fragment.position())
        units = text.encode("utf-16-le", "surrogatepass")[2 * first : 2 * last]  # Qt counts UTF-16 units
        taken = units.decode("utf-16-le", "replace")
        source = source_of(fragment.charFormat())
        pieces.append(source * len(taken) if source else taken)
        iterator += 1
    return "".join(pieces).replace(LINE_BREAK, "\n")


def _marker(block: QTextBlock) -> str:
    """As Markdown has it, but for the boxes of tasks."""
    block_format = block.blockFormat()
    indent = "  " * max(0, block_format.indent() - 1)
    if block_format.hasProperty(TASK_PROPERTY):
        return indent + ("☑ " if block_format.property(TASK_PROPERTY) else "☐ ")
    if block_format.hasProperty(MARKER_PROPERTY):
        number = int(block_format.property(MARKER_PROPERTY))
        return indent + (f"{number}. " if number else "- ")
    return ""


def _row(block: QTextBlock) -> tuple[int, int] | None:
    """Which row of which table a block is in."""
    table: QTextTable | None = QTextCursor(block).currentTable()
    if table is None:
        return None
    return table.firstPosition(), table.cellAt(block.position()).row()
