"""The records a reply is drawn from."""

from __future__ import annotations

from dataclasses import dataclass

LINE_BREAK = "\u2028"


@dataclass(frozen=True, slots=True)
class Span:
    """A run of text in one style. `maths`: the text is LaTeX, to be set "inline" or, larger, as "display". `note`: the
    label of the footnote it refers to; the text is how it was written."""

    text: str
    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    href: str | None = None
    maths: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Paragraph:
    """`heading` 1..6, or 0. `depth` of lists around it; `marker` is set on an item's first paragraph:
    0 for a bullet, else the item's number; `task` says whether an item that is a task is done. `is_tight`: hardly any
    space above it. `note`: the label of the footnote it belongs to, and `starts_note` in the first one. `quotes`: for
    each quote it is in, how many lists are around that."""

    spans: tuple[Span, ...]
    heading: int = 0
    depth: int = 0
    marker: int | None = None
    quotes: tuple[int, ...] = ()
    is_tight: bool = False
    task: bool | None = None
    note: str | None = None
    starts_note: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first row is the header. `alignments`: "left", "center" or "right" per column."""

    rows: tuple[tuple[tuple[Span, ...], ...], ...]
    alignments: tuple[str, ...]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Maths:
    """A formula on a line of its own."""

    latex: str
    depth: int = 0
    quotes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """`info`: what follows the fence; its first word is the language."""

    text: str
    info: str = ""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    pass


Block = Paragraph | Table | Code | Maths | Rule


def block_spans(block: Block) -> tuple[Span, ...]:
    match block:
        case Paragraph():
            return block.spans
        case Table():
            return tuple(span for row in block.rows for cell in row for span in cell)
    return ()


def plain_text(spans: tuple[Span, ...]) -> str:
    return "".join(span.text for span in spans)
