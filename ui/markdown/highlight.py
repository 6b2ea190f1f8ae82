"""Pygments -> ranges per line, in kinds of the theme. While code streams only its last lines are read again.

Lexers keep no state between calls, so a growing block is lexed from a checkpoint that follows its end; `is_exact` is
False when a checkpoint was used, and one whole pass at the end, in slices, makes the colours exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

from pygments.lexers import get_lexer_by_name
from pygments.token import Token
from pygments.util import ClassNotFound

_WINDOW = 24  # lines lexed again at most on each flush, and about twice as many at once
_KINDS = (
    (Token.Comment, "comment"),
    (Token.Keyword, "keyword"),
    (Token.Operator.Word, "keyword"),
    (Token.Literal.String, "string"),
    (Token.Literal.Number, "number"),
    (Token.Name.Function, "function"),
    (Token.Name.Class, "function"),
    (Token.Name.Builtin, "name"),
    (Token.Name.Decorator, "name"),
    (Token.Name.Tag, "keyword"),
    (Token.Name.Attribute, "name"),
    (Token.Generic.Deleted, "error"),
    (Token.Generic.Inserted, "string"),
    (Token.Generic.Heading, "function"),
)


@dataclass(frozen=True, slots=True)
class Range:
    """Characters `start` .. `start + length` of a line, coloured as `kind`."""

    start: int
    length: int
    kind: str


Line = list[Range]


class CodeLexer:
    """The coloured ranges of one code block, whose text only grows."""

    def __init__(self, language: str) -> None:
        self._lexer = _lexer_for(language)
        self._checkpoint = 0  # first line lexed again
        self.lines: list[Line] = []
        self.is_exact = True

    def update(self, text_lines: list[str]) -> int:
        """Lex again what follows the checkpoint. Returns the first line whose ranges may have changed."""
        if self._lexer is None:
            return len(text_lines)
        first = self._checkpoint
        if len(text_lines) - first > 2 * _WINDOW:  # much came at once: its end now, the rest in the whole pass
            first = _calm_line(text_lines, len(text_lines) - _WINDOW, len(text_lines) - 1)
            self.lines.extend([] for _ in range(first - len(self.lines)))
            self._checkpoint, self.is_exact = first, False
        self.lines[first:] = LexRun(self._lexer, text_lines[first:]).all_lines()
        if len(text_lines) - first > _WINDOW:
            self._checkpoint = _calm_line(text_lines, first + _WINDOW // 2, len(text_lines) - 1)
            self.is_exact = False
        return first

    def whole_pass(self, text_lines: list[str]) -> LexRun | None:
        """A pass over everything, if shortcuts were taken. Its lines replace those here as they come."""
        if self.is_exact or self._lexer is None:
            return None
        run = LexRun(self._lexer, text_lines)
        self.lines, self._checkpoint, self.is_exact = run.lines, 0, True
        return run


class LexRun:
    """One pass over a text. `lines` grows while it advances; its last one may still be incomplete."""

    def __init__(self, lexer: Any, text_lines: list[str]) -> None:
        self.lines: list[Line] = [[]]
        self._num_lines = len(text_lines)
        self._column = 0
        self._tokens: Iterator[tuple[Any, str]] = iter(lexer.get_tokens("\n".join(text_lines)))

    def all_lines(self) -> list[Line]:
        while not self.advance(1.0):
            pass
        return self.lines

    def advance(self, budget_s: float) -> bool:
        """Go on for about `budget_s`. True when everything is lexed."""
        deadline = perf_counter() + budget_s
        for token_type, value in self._tokens:
            self._take(_kind_of(token_type), value)
            if perf_counter() > deadline:
                return False
        del self.lines[self._num_lines :]
        self.lines.extend([] for _ in range(self._num_lines - len(self.lines)))
        return True

    def _take(self, kind: str, value: str) -> None:
        for index, part in enumerate(value.split("\n")):
            if index:
                self.lines.append([])
                self._column = 0
            length = _utf16_length(part)
            if part and kind:
                self.lines[-1].append(Range(self._column, length, kind))
            self._column += length


def _lexer_for(language: str) -> Any:
    """A Pygments lexer for the first word of a fence's info, or None where the language is unknown."""
    try:
        name = language.lower().split()[0] if language.split() else ""
        return get_lexer_by_name(name, stripnl=False, ensurenl=False) if name else None
    except ClassNotFound:
        return None


def _calm_line(text_lines: list[str], first: int, last: int) -> int:
    """A line to start lexing from: the first unindented one after a blank line, else `first`."""
    for line in range(first, last):
        if line and not text_lines[line - 1].strip() and text_lines[line][:1].strip():
            return line
    return first


@lru_cache(maxsize=512)
def _kind_of(token_type: Any) -> str:
    for ancestor, kind in _KINDS:
        if token_type in ancestor:
            return kind
    return ""


def _utf16_length(text: str) -> int:
    """Qt counts UTF-16 units, Python code points."""
    return len(text) + sum(1 for character in text if ord(character) > 0xFFFF) if not text.isascii() else len(text)
