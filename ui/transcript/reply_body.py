"""The parts of one reply: runs of prose and blocks of code. While it streams, only its open end is drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from PySide6.QtCore import QEvent, Qt
from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.markdown.blocks import Block, Code, Paragraph, Span, block_spans
from ui.markdown.stream import MarkdownStream, Update, parse_markdown
from ui.theme import Theme
from ui.transcript.code_block import CodeBlock
from ui.transcript.flow_text import FlowText
from ui.transcript.footnotes import Footnotes
from ui.transcript.prose_document import ProseWriter

_CARET = Span("▍")
_Part = TypeVar("_Part", bound=QWidget)


class ReplyBody(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._stream = MarkdownStream()
        self._notes = Footnotes()
        self._finished: list[ProsePart | CodeBlock] = []
        self._open: list[ProsePart | CodeBlock] = []
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
        for part in self.parts:
            self._discard(part)
        self._finished, self._open, self._stream, self._notes = [], [], MarkdownStream(), Footnotes()
        self.show_text(text)

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
        for block in update.finished:
            if isinstance(block, Code):
                self._append_code(block)
            else:
                self._append_prose(block)
        self._show_open(update.open)

    def _define_notes(self, update: Update) -> None:
        """References drawn before their definition are drawn again, as the numbers they have now."""
        blocks = (*update.finished, *update.open)
        labels = {block.note for block in blocks if isinstance(block, Paragraph) and block.starts_note and block.note}
        defined = {label for label in sorted(labels) if self._notes.define(label)}
        for part in self._finished if defined else ():
            if isinstance(part, ProsePart):
                part.number_notes(defined)

    def _append_code(self, code: Code) -> None:
        if self._open and isinstance(self._open[0], CodeBlock):
            part = self._open.pop(0)
            assert isinstance(part, CodeBlock)
            part.show_code(code)
        else:
            part = self._insert(len(self._finished), CodeBlock(self._theme, code))
        part.finish()
        self._finished.append(part)

    def _append_prose(self, block: Block) -> None:
        last = self._finished[-1] if self._finished else None
        if not isinstance(last, ProsePart):
            last = self._insert(len(self._finished), ProsePart(self._theme, self._notes, is_first=not self._finished))
            self._finished.append(last)
        last.append_block(block)

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
            old = self._insert(position, ProsePart(self._theme, self._notes, is_first=position == 0))
            self._open.append(old)
        old.replace(group)

    def _insert(self, position: int, part: _Part) -> _Part:
        self._layout.insertWidget(position, part)
        part.show()
        return part

    def _discard(self, part: QWidget) -> None:
        self._layout.removeWidget(part)
        part.hide()
        part.deleteLater()


class ProsePart(FlowText):
    """A run of blocks without code between them. Keeps its blocks, to draw them again in another theme."""

    def __init__(self, theme: Theme, notes: Footnotes, is_first: bool, parent: QWidget | None = None) -> None:
        super().__init__(theme, parent)
        self._notes = notes
        self._blocks: list[Block] = []
        self._is_first = is_first
        self._writer = ProseWriter(self.document(), theme.tokens, is_first, notes)
        self._retranslate()

    def append_block(self, block: Block) -> None:
        self._blocks.append(block)
        self._writer.write([block])
        self._update_focus_policy()

    def replace(self, blocks: list[Block]) -> None:
        if blocks != self._blocks:
            self._blocks = blocks
            self._rewrite()

    def number_notes(self, labels: set[str]) -> None:
        """The footnotes with these `labels` have numbers now."""
        if any(span.note in labels for block in self._blocks for span in block_spans(block)):
            self._rewrite()

    def recolour(self) -> None:
        self._rewrite()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        self.setAccessibleName(self.tr("Reply"))

    def _update_focus_policy(self) -> None:
        """The keyboard reaches prose with links in it, to open them; other prose would only be in the way."""
        has_link = any(span.href for block in self._blocks for span in block_spans(block))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus if has_link else Qt.FocusPolicy.ClickFocus)

    def _rewrite(self) -> None:
        self.document().clear()
        self._writer = ProseWriter(self.document(), self._theme.tokens, self._is_first, self._notes)
        self._writer.write(self._blocks)
        self._update_focus_policy()


def _with_caret(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    if not blocks:
        return (Paragraph((_CARET,)),)
    last = blocks[-1]
    if not isinstance(last, Paragraph):
        return blocks
    spans = (*last.spans, _CARET)
    return (*blocks[:-1], replace(last, spans=spans))
