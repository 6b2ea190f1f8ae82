"""Pygments -> ranges per line, in kinds of the theme. While code streams only its last lines are read again.

Lexers keep no state between calls, so a growing block is lexed from a checkpoint that follows its end; `is_exact` is
False when a checkpoint was used, and one whole pass at the end makes the colours exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pygments.lexers import get_lexer_by_name
from pygments.token import Token
from pygments.util import ClassNotFound

_WINDOW = 80  # lines lexed again at most on each flush
_EXACT_UP_TO = 200_000  # characters; above this the last pass is not made
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
        self.lines[first:] = self._lex(text_lines[first:])
        if len(text_lines) - first > _WINDOW:
            self._checkpoint = _calm_line(text_lines, first + _WINDOW // 2, len(text_lines) - 1)
            self.is_exact = False
        return first

    def finish(self, text_lines: list[str]) -> bool:
        """Lex the whole block once, if shortcuts were taken. True if the ranges changed."""
        if self.is_exact or self._lexer is None or sum(map(len, text_lines)) > _EXACT_UP_TO:
            return False
        self.lines = self._lex(text_lines)
        self._checkpoint, self.is_exact = 0, True
        return True

    def _lex(self, text_lines: list[str]) -> list[Line]:
        result: list[Line] = [[]]
        column = 0
        assert self._lexer is not None
        for token_type, value in self._lexer.get_tokens("\n".join(text_lines)):
            kind = _kind_of(token_type)
            for index, part in enumerate(value.split("\n")):
                if index:
                    result.append([])
                    column = 0
                if part and kind:
                    result[-1].append(Range(column, _utf16_length(part), kind))
                column += _utf16_length(part)
        del result[len(text_lines) :]
        result.extend([] for _ in range(len(text_lines) - len(result)))
        return result


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


def _kind_of(token_type: Any) -> str:
    for ancestor, kind in _KINDS:
        if token_type in ancestor:
            return kind
    return ""


def _utf16_length(text: str) -> int:
    """Qt counts UTF-16 units, Python code points."""
    return len(text) + sum(1 for character in text if ord(character) > 0xFFFF) if not text.isascii() else len(text)
