"""What of a reply is read as Markdown. All is read and laid out in the thread of the window, so what would hold that up
is shown as it was written: a paragraph crowded with marks, a large table, formulas after the first few hundred, and
whatever follows where a reply has become as long as a book. Ordinary replies are far below every limit.

Work is counted in characters and marks, not timed, so that a reply looks the same on every machine.
"""

from __future__ import annotations

import re
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

NUM_CELLS = "num_cells"  # in the parser's env: cells of the tables already read
TABLE_CELLS = 20  # what a table costs beside its cells

_MOST_WORK = 250_000  # a whole reply, in characters of prose
_LINE_WORK, _MARK_WORK = 40, 8
_STEP = 2000  # characters weighed at once

_LONGEST_INLINE = 50_000  # characters; of one paragraph, as the following
_MOST_MARKS = 4000
_MOST_EMPHASIS = 1500
_MOST_BRACKETS = 600
_DEEPEST_BRACKETS = 40
_MOST_LINK_WORK = 4_000_000  # beginnings of addresses times characters: an end is looked for from each

_MOST_ROWS, _MOST_CELLS = 300, 1500  # of one table
_MOST_CELLS_IN_ALL = 3000

_MARK = re.compile(r"[\\`*_~\[\]<>&!${}^|]")
_BRACKET = re.compile(r"[\[\]]")


class Work:
    """What of a growing reply may still be read."""

    def __init__(self) -> None:
        self._left = _MOST_WORK
        self.is_done = False

    def take(self, text: str) -> tuple[str, str]:
        """`text` as (what may be read, what may not). Once anything may not, nothing that follows may."""
        if self.is_done:
            return "", text
        end = 0
        for place in range(0, len(text), _STEP):
            piece = text[place : place + _STEP]
            self._left -= len(piece) + _LINE_WORK * piece.count("\n") + _MARK_WORK * len(_MARK.findall(piece))
            end = place + len(piece)
            if self._left < 0:
                newline = piece.rfind("\n")
                end = place + newline + 1 if newline >= 0 else end
                self.is_done = newline >= 0 or self._left < -_LONGEST_INLINE
                if self.is_done:
                    break
        return text[:end], text[end:]


def use_limits(parser: MarkdownIt) -> None:
    parser.core.ruler.before("inline", "large_tables", _large_tables)
    parser.core.ruler.at("inline", _inline)


def is_crowded(text: str) -> bool:
    """Whether a paragraph has more in it than can be read in a moment."""
    if len(text) < _MOST_BRACKETS:
        return _nesting(text) > _DEEPEST_BRACKETS
    emphasis = text.count("*") + text.count("_") + text.count("~")
    return (
        len(text) > _LONGEST_INLINE
        or emphasis > _MOST_EMPHASIS
        or text.count("[") > _MOST_BRACKETS
        or text.count("](") * len(text) > _MOST_LINK_WORK
        or len(_MARK.findall(text)) > _MOST_MARKS
        or _nesting(text) > _DEEPEST_BRACKETS
    )


def _nesting(text: str) -> int:
    """How deep brackets lie in one another, at most."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(text):
        depth = depth + 1 if bracket == "[" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _inline(state: StateCore) -> None:
    """As markdown-it's own rule, but a crowded paragraph is its lines."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        if token.children is None:
            token.children = []
        if is_crowded(token.content):
            token.children += _lines(token.content)
        else:
            state.md.inline.parse(token.content, state.md, state.env, token.children)


def _lines(text: str) -> list[Token]:
    result: list[Token] = []
    for line in text.split("\n"):
        result += [Token("plain", "", 0, content=line), Token("softbreak", "br", 0)]
    return result[:-1]


def _large_tables(state: StateCore) -> None:
    """Tables with more rows or cells than can be laid out are shown as they were written."""
    env: Any = state.env
    num_cells, start = int(env.get(NUM_CELLS, 0)), -1
    kept: list[Token] = []
    rows = cells = 0
    for token in state.tokens:
        if token.type == "table_open":
            start, rows, cells = len(kept), 0, TABLE_CELLS
        kept.append(token)
        rows += token.type == "tr_open"
        cells += token.type in ("th_open", "td_open")
        if token.type == "table_close" and start >= 0:
            if rows > _MOST_ROWS or cells > _MOST_CELLS or num_cells + cells > _MOST_CELLS_IN_ALL:
                kept[start:] = [_source(state, kept[start])]
            else:
                num_cells += cells
    state.tokens = kept


def _source(state: StateCore, table: Token) -> Token:
    first, end = table.map or [0, 0]
    content = "\n".join(state.src.split("\n")[first:end]) + "\n"
    return Token("fence", "code", 0, content=content, map=table.map, level=table.level, block=True)
