"""The coloured lines of a block of code. They grow while a reply streams; only what is new is inserted and coloured."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, QTimer, Slot
from PySide6.QtGui import (
    QColor,
    QResizeEvent,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextLayout,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextEdit

from ui.markdown.highlight import CodeLexer, LexRun, Line
from ui.theme import Theme, mono_font

_LINE_PX = 20
_PADDING = 10
_SCROLL_BAR_PX = 10
_SLICE_S = 0.004


class CodeText(QTextEdit):
    """The lines; wide ones scroll sideways."""

    def __init__(self, theme: Theme, language: str) -> None:
        super().__init__()
        self._theme = theme
        self._lexer = CodeLexer(language)
        self._shown: list[Line] = []
        self._run: LexRun | None = None
        self._run_from = 0
        self._slice_timer = QTimer(self, interval=0)
        self._slice_timer.timeout.connect(self._on_slice_due)
        self.code = ""
        self._lines = [""]  # of the code
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setLineWrapMode(QTextEdit.LineWrapMode.NoWrap)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setViewportMargins(12, _PADDING, 0, 0)
        self.document().setDocumentMargin(0)
        self.document().setDefaultFont(mono_font(13))
        self._set_block_format()

    def set_language(self, language: str) -> None:
        self._lexer = CodeLexer(language)
        text, self.code = self.code, ""
        self._lines, self._shown = [""], []
        self.clear()
        self._set_block_format()
        self.show_code(text)

    def show_code(self, text: str) -> None:
        if text == self.code:
            return
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        if text.startswith(self.code):
            added = text[len(self.code) :]
            cursor.insertText(added)
            first, *others = added.split("\n")
            self._lines[-1] += first
            self._lines.extend(others)
        elif self.code.startswith(text):  # the half closing line, taken back
            cursor.movePosition(
                QTextCursor.MoveOperation.Left, QTextCursor.MoveMode.KeepAnchor, len(self.code) - len(text)
            )
            cursor.removeSelectedText()
            self._lines = text.split("\n")
        else:
            self.clear()
            self._set_block_format()
            self._shown = []
            cursor = QTextCursor(self.document())
            cursor.insertText(text)
            self._lines = text.split("\n")
        self.code = text
        self._colour(self._lexer.update(self._lines))
        self._fit()

    def finish(self) -> None:
        """The code is whole: colour it exactly, in slices that do not hold the window up."""
        self._run = self._lexer.whole_pass(self._lines)
        if self._run is not None:
            self._run_from = 0
            self._slice_timer.start()

    @Slot()
    def _on_slice_due(self) -> None:
        assert self._run is not None
        is_done = self._run.advance(_SLICE_S)
        end = len(self._run.lines) - (0 if is_done else 1)
        self._colour(self._run_from, end)
        self._run_from = end
        if is_done:
            self._slice_timer.stop()
            self._run = None

    def recolour(self) -> None:
        self._shown = []
        self._colour(0, self._run_from if self._run is not None else None)

    def sizeHint(self) -> QSize:
        return QSize(100, self.height())

    def wheelEvent(self, event: QWheelEvent) -> None:
        if abs(event.angleDelta().x()) > abs(event.angleDelta().y()):
            super().wheelEvent(event)
        else:
            event.ignore()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        is_wide = self.document().idealWidth() > self.viewport().width()
        bottom = _SCROLL_BAR_PX if is_wide else _PADDING
        self.setFixedHeight(self.document().blockCount() * _LINE_PX + _PADDING + bottom)

    def _set_block_format(self) -> None:
        cursor = QTextCursor(self.document())
        block_format = QTextBlockFormat()
        block_format.setLineHeight(_LINE_PX, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
        cursor.setBlockFormat(block_format)
        characters = QTextCharFormat()
        characters.setFont(mono_font(13))
        cursor.setBlockCharFormat(characters)

    def _colour(self, first: int, end: int | None = None) -> None:
        """Give the lines from `first` on their colours, touching only those whose ranges changed."""
        lines = self._lexer.lines
        end = len(lines) if end is None else end
        self._shown.extend([] for _ in range(end - len(self._shown)))
        block = self.document().findBlockByNumber(first)
        changed: list[int] = []
        for number in range(first, end):
            if lines[number] != self._shown[number]:
                block.layout().setFormats([self._format_range(part) for part in _parts(lines[number])])
                changed += [block.position(), block.position() + block.length()]
                self._shown[number] = lines[number]
            block = block.next()
        if changed:  # at once: for each time the document moves all that lies below
            self.document().markContentsDirty(changed[0], changed[-1] - changed[0])

    def _format_range(self, part: tuple[int, int, str]) -> QTextLayout.FormatRange:
        result = QTextLayout.FormatRange()
        result.start, result.length, kind = part
        result.format.setForeground(QColor(self._theme.tokens.syntax[kind]))
        return result


def _parts(line: Line) -> list[tuple[int, int, str]]:
    return [(part.start, part.length, part.kind) for part in line]
