"""markdown-it-py's block tokens -> records. Nothing of HTML is made on the way."""

from __future__ import annotations

from markdown_it.token import Token

from ui.markdown.blocks import LINE_BREAK, Block, Code, Maths, Paragraph, Rule, Span, Table
from ui.markdown.maths import LONGEST_FORMULA
from ui.markdown.spans import read_spans, read_task


def read_blocks(tokens: list[Token]) -> tuple[Block, ...]:
    """Flatten the tokens of whole top-level blocks."""
    reader = _Reader()
    for token in tokens:
        reader.read(token)
    return tuple(reader.blocks)


def fenced(text: str, info: str, depth: int = 0) -> Code | Maths:
    """What a fence holds: code, or a formula if it says so."""
    text = text.removesuffix("\n")
    is_maths = info.lower().split()[:1] == ["math"] and text.strip() and len(text) <= LONGEST_FORMULA
    return Maths(text.strip(), depth) if is_maths else Code(text, info, depth)


class _Reader:
    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._depth = 0
        self._quotes: tuple[int, ...] = ()
        self._heading = 0
        self._marker: int | None = None
        self._is_hidden = False
        self._rows: list[list[tuple[Span, ...]]] = []
        self._alignments: list[str] = []
        self._in_table = False
        self._note: str | None = None
        self._starts_note = False

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
                self._quotes = (*self._quotes, self._depth)
            case "blockquote_close":
                self._quotes = self._quotes[:-1]
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
                self.blocks.append(fenced(token.content, token.info.strip(), self._depth))
            case "maths_block":
                self._flush_marker()
                self.blocks.append(Maths(token.content, self._depth, self._quotes))
            case "maths_open":
                spans = (Span(token.content.replace("\n", LINE_BREAK)),)
                self.blocks.append(Paragraph(spans, 0, self._depth, None, self._quotes))
            case "footnote_reference_open":
                self._note, self._starts_note = str(token.meta["label"]), True
            case "footnote_reference_close":
                self._note = None
            case "hr":
                self.blocks.append(Rule())
            case "table_open":
                self._in_table, self._rows, self._alignments = True, [], []
            case "table_close":
                self._in_table = False
                self.blocks.append(Table(tuple(tuple(row) for row in self._rows), tuple(self._alignments), self._depth))
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
        task, spans = read_task(spans) if marker == 0 and not self._heading else (None, spans)
        is_tight = self._depth > 0 and self._is_hidden
        starts_note, self._starts_note = self._starts_note, False
        self.blocks.append(
            Paragraph(spans, self._heading, self._depth, marker, self._quotes, is_tight, task, self._note, starts_note)
        )

    def _flush_marker(self) -> None:
        """An item without a paragraph of its own still shows its marker."""
        if self._marker is not None:
            marker, self._marker = self._marker, None
            self.blocks.append(Paragraph((), 0, self._depth, marker, self._quotes, True))
