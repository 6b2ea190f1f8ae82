"""What is not read as Markdown as blocks to draw: short ones, since a long one is laid out anew with each change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ui.markdown.blocks import LINE_BREAK, Block, Code, Maths, Paragraph, Span, Table

_LONGEST_PARAGRAPH = 8000  # characters; a longer one is drawn as several
_PIECE = 1000
_MOST_FORMULAS = 200  # of a reply
_MOST_CODES = 100
_MOST_LATEX = 8_000  # characters of all of them


def plain_blocks(text: str) -> tuple[Block, ...]:
    """Every character of `text`, line by line, in paragraphs of moderate length."""
    return tuple(Paragraph((Span(piece),), is_tight=True) for piece in _pieces(text))


def shortened(block: Block) -> Iterable[Block]:
    """A very long paragraph as several."""
    if not isinstance(block, Paragraph) or sum(len(span.text) for span in block.spans) <= _LONGEST_PARAGRAPH:
        return (block,)
    groups: list[list[Span]] = [[]]
    length = 0
    for span in block.spans:
        pieces = [span.text] if span.maths or span.note else [*_cut(span.text)]
        for piece in pieces:
            if length + len(piece) > _PIECE and groups[-1]:
                groups.append([])
                length = 0
            groups[-1].append(replace(span, text=piece))
            length += len(piece)
    first, *others = groups
    rest = replace(block, marker=None, task=None, starts_note=False, is_tight=True)
    return (replace(block, spans=tuple(first)), *(replace(rest, spans=_unbroken(spans)) for spans in others))


class Allowance:
    """How many more formulas of a reply are set, the others stay as they are written; and how many more of its blocks
    of code have a frame of their own."""

    def __init__(self) -> None:
        self.number = self.characters = self.codes = 0

    def limit(self, block: Block) -> Block:
        match block:
            case Code():
                self.codes += 1
                return block if self.codes <= _MOST_CODES else _code_as_text(block)
            case Maths():
                return block if self._take(block.latex) else _as_written(block)
            case Paragraph():
                return block if not _has_formulas(block.spans) else replace(block, spans=self._limit(block.spans))
            case Table() if any(_has_formulas(cell) for row in block.rows for cell in row):
                return replace(block, rows=tuple(tuple(self._limit(cell) for cell in row) for row in block.rows))
        return block

    def copy(self) -> Allowance:
        result = Allowance()
        result.number, result.characters, result.codes = self.number, self.characters, self.codes
        return result

    def _limit(self, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        return tuple(
            span if not span.maths or self._take(span.text) else replace(span, maths=None, code=True) for span in spans
        )

    def _take(self, latex: str) -> bool:
        self.number += 1
        self.characters += len(latex)
        return self.number <= _MOST_FORMULAS and self.characters <= _MOST_LATEX


def _code_as_text(code: Code) -> Block:
    return Paragraph((Span(code.text.replace("\n", LINE_BREAK), code=True),), 0, code.depth)


def _as_written(maths: Maths) -> Block:
    return Paragraph((Span(maths.latex.replace("\n", LINE_BREAK), code=True),), 0, maths.depth, None, maths.quotes)


def _has_formulas(spans: tuple[Span, ...]) -> bool:
    return any(span.maths for span in spans)


def _pieces(text: str) -> Iterable[str]:
    lines: list[str] = []
    length = 0
    for line in text.split("\n"):
        for part in _cut(line):
            if length + len(part) > _PIECE and lines:
                yield LINE_BREAK.join(lines)
                lines, length = [], 0
            lines.append(part)
            length += len(part) + 20
    if lines:
        yield LINE_BREAK.join(lines)


def _cut(text: str) -> list[str]:
    return [text[place : place + _PIECE] for place in range(0, len(text), _PIECE)] or [""]


def _unbroken(spans: list[Span]) -> tuple[Span, ...]:
    """The paragraph begins a line of its own already."""
    return tuple(spans[1:] if spans[0].text == LINE_BREAK and len(spans) > 1 else spans)
