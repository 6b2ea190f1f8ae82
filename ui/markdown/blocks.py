"""The records a reply is drawn from, and how they are read from markdown-it-py's tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from markdown_it.token import Token

LINE_BREAK = "\u2028"


@dataclass(frozen=True, slots=True)
class Span:
    """A run of text in one style."""

    text: str
    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Paragraph:
    """`heading` 1..6, or 0. `depth` of lists around it; `marker` is set on an item's first paragraph:
    0 for a bullet, else the item's number. `is_tight`: hardly any space above it."""

    spans: tuple[Span, ...]
    heading: int = 0
    depth: int = 0
    marker: int | None = None
    quote: int = 0
    is_tight: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first row is the header. `alignments`: "left", "center" or "right" per column."""

    rows: tuple[tuple[tuple[Span, ...], ...], ...]
    alignments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """`info`: what follows the fence; its first word is the language."""

    text: str
    info: str = ""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    pass


Block = Paragraph | Table | Code | Rule


def block_spans(block: Block) -> tuple[Span, ...]:
    match block:
        case Paragraph():
            return block.spans
        case Table():
            return tuple(span for row in block.rows for cell in row for span in cell)
    return ()


def plain_text(spans: tuple[Span, ...]) -> str:
    return "".join(span.text for span in spans)


def read_blocks(tokens: list[Token]) -> tuple[Block, ...]:
    """Flatten the tokens of whole top-level blocks."""
    reader = _Reader()
    for token in tokens:
        reader.read(token)
    return tuple(reader.blocks)


@dataclass(slots=True)
class _Style:
    bold: int = 0
    italic: int = 0
    strike: int = 0
    hrefs: list[str] = field(default_factory=list)


class _Reader:
    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._depth = 0
        self._quote = 0
        self._heading = 0
        self._marker: int | None = None
        self._is_hidden = False
        self._rows: list[list[tuple[Span, ...]]] = []
        self._alignments: list[str] = []
        self._in_table = False

    def read(self, token: Token) -> None:
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                self._depth += 1
            case "bullet_list_close" | "ordered_list_close":
                self._depth -= 1
            case "list_item_open":
                self._marker = int(token.info) if token.info.isdigit() else 0
            case "list_item_close":
                self._flush_marker()
            case "blockquote_open":
                self._quote += 1
            case "blockquote_close":
                self._quote -= 1
            case "heading_open":
                self._heading = int(token.tag[1:])
            case "heading_close":
                self._heading = 0
            case "paragraph_open":
                self._is_hidden = token.hidden
            case "inline":
                self._read_inline(token)
            case "fence" | "code_block":
                self._flush_marker()
                self.blocks.append(Code(token.content.removesuffix("\n"), token.info.strip(), self._depth))
            case "hr":
                self.blocks.append(Rule())
            case "table_open":
                self._in_table, self._rows, self._alignments = True, [], []
            case "table_close":
                self._in_table = False
                self.blocks.append(Table(tuple(tuple(row) for row in self._rows), tuple(self._alignments)))
            case "tr_open":
                self._rows.append([])
            case "th_open":
                style = str(token.attrs.get("style", ""))
                self._alignments.append(style.removeprefix("text-align:") or "left")

    def _read_inline(self, token: Token) -> None:
        spans = read_spans(token.children or [])
        if self._in_table:
            self._rows[-1].append(spans)
            return
        marker, self._marker = self._marker, None
        is_tight = self._depth > 0 and self._is_hidden
        self.blocks.append(Paragraph(spans, self._heading, self._depth, marker, self._quote, is_tight))

    def _flush_marker(self) -> None:
        """An item without a paragraph of its own still shows its marker."""
        if self._marker is not None:
            marker, self._marker = self._marker, None
            self.blocks.append(Paragraph((), 0, self._depth, marker, self._quote, True))


def read_spans(tokens: list[Token]) -> tuple[Span, ...]:
    spans: list[Span] = []
    style = _Style()
    for token in tokens:
        match token.type:
            case "strong_open" | "strong_close":
                style.bold += token.nesting
            case "em_open" | "em_close":
                style.italic += token.nesting
            case "s_open" | "s_close":
                style.strike += token.nesting
            case "link_open":
                style.hrefs.append(str(token.attrs.get("href", "")))
            case "link_close":
                style.hrefs.pop()
            case "softbreak" | "hardbreak":
                spans.append(_span(LINE_BREAK, style))
            case "code_inline":
                spans.append(_span(token.content, style, code=True))
            case _:
                if token.content:
                    spans.append(_span(token.content, style))
    return tuple(spans)


def _span(text: str, style: _Style, code: bool = False) -> Span:
    href = style.hrefs[-1] if style.hrefs else None
    return Span(text, style.bold > 0, style.italic > 0, style.strike > 0, code, href)
