"""The parts of one text: runs of prose and blocks of code. While it streams, only its open end is drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.markdown.blocks import Block, Code, Paragraph, Span
from ui.markdown.stream import MarkdownStream, Update, parse_markdown
from ui.theme import Theme
from ui.transcript.code_block import CodeBlock
from ui.transcript.footnotes import Footnotes
from ui.transcript.prose_part import ProsePart

_CARET = Span("▍")
_Part = TypeVar("_Part", bound=QWidget)


class MarkdownBody(QWidget):
    def __init__(self, theme: Theme, *, is_quiet: bool = False, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._is_quiet = is_quiet
        self._stream = MarkdownStream()
        self._notes = Footnotes()
        self._finished: list[ProsePart | CodeBlock] = []
        self._open: list[ProsePart | CodeBlock] = []
        self._num_above = 0  # widgets that stand above the parts
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(0)

    @property
    def num_parses(self) -> int:
        return self._stream.num_parses

    @property
    def parts(self) -> list[ProsePart | CodeBlock]:
        return [*self._finished, *self._open]

    def show_text(self, text: str) -> None:
        """Show a whole reply."""
        self._apply(Update(parse_markdown(text), ()))

    def replace_text(self, text: str) -> None:
        """Show another whole reply than the one that streamed."""
        self.clear()
        self.show_text(text)

    def clear(self) -> None:
        for part in self.parts:
            self._discard(part)
        self._finished, self._open, self._stream, self._notes = [], [], MarkdownStream(), Footnotes()

    def feed(self, text: str) -> None:
        """Append to a reply that streams; a caret stands at its end."""
        update = self._stream.feed(text)
        self._apply(Update(update.finished, _with_caret(update.open)))

    def finish(self) -> None:
        """Nothing follows: the open end is final and the caret goes."""
        self._apply(self._stream.finish())

    def recolour(self) -> None:
        for part in self.parts:
            part.recolour()

    def plain_text(self) -> str:
        return "\n".join(part.code if isinstance(part, CodeBlock) else part.plain_text() for part in self.parts)

    def _apply(self, update: Update) -> None:
        self._define_notes(update)
        for is_code, blocks in groupby(update.finished, key=lambda block: isinstance(block, Code)):
            if is_code:
                for block in blocks:
                    self._append_code(block)
            else:
                self._append_prose(list(blocks))
        self._show_open(update.open)

    def _define_notes(self, update: Update) -> None:
        """References drawn before their definition are drawn again, as the numbers they have now."""
        blocks = (*update.finished, *update.open)
        labels = {block.note for block in blocks if isinstance(block, Paragraph) and block.starts_note and block.note}
        defined = {label for label in sorted(labels) if self._notes.define(label)}
        for part in self._finished if defined else ():
            if isinstance(part, ProsePart):
                part.number_notes(defined)

    def _append_code(self, code: Block) -> None:
        assert isinstance(code, Code)
        if self._open and isinstance(self._open[0], CodeBlock):
            part = self._open.pop(0)
            assert isinstance(part, CodeBlock)
            part.show_code(code)
        else:
            part = self._insert(len(self._finished), CodeBlock(self._theme, code))
        part.finish()
        self._finished.append(part)

    def _append_prose(self, blocks: list[Block]) -> None:
        """At once: the document is laid out after each change."""
        last = self._finished[-1] if self._finished else None
        if not isinstance(last, ProsePart):
            last = self._insert(len(self._finished), self._new_prose(not self._finished))
            self._finished.append(last)
        last.append_blocks(blocks)

    def _show_open(self, blocks: Sequence[Block]) -> None:
        groups = [list(group) for _, group in groupby(blocks, key=lambda block: isinstance(block, Code) and id(block))]
        for index, group in enumerate(groups):
            self._show_group(index, group)
        for part in self._open[len(groups) :]:
            self._discard(part)
        del self._open[len(groups) :]

    def _show_group(self, index: int, group: list[Block]) -> None:
        old = self._open[index] if index < len(self._open) else None
        code = group[0] if isinstance(group[0], Code) else None
        if old is not None and isinstance(old, CodeBlock) != (code is not None):
            for part in self._open[index:]:
                self._discard(part)
            del self._open[index:]
            old = None
        position = len(self._finished) + index
        if code is not None:
            if isinstance(old, CodeBlock):
                old.show_code(code)
            else:
                self._open.append(self._insert(position, CodeBlock(self._theme, code)))
            return
        if not isinstance(old, ProsePart):
            old = self._insert(position, self._new_prose(position == 0))
            self._open.append(old)
        old.replace(group)

    def _new_prose(self, is_first: bool) -> ProsePart:
        return ProsePart(self._theme, self._notes, is_first, self._is_quiet)

    def _insert(self, position: int, part: _Part) -> _Part:
        self._layout.insertWidget(self._num_above + position, part)
        part.show()
        return part

    def _discard(self, part: QWidget) -> None:
        self._layout.removeWidget(part)
        part.hide()
        part.deleteLater()


def _with_caret(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    if not blocks:
        return (Paragraph((_CARET,)),)
    last = blocks[-1]
    if not isinstance(last, Paragraph):
        return blocks
    spans = (*last.spans, _CARET)
    return (*blocks[:-1], replace(last, spans=spans))
