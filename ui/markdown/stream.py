"""Markdown -> plain records. Knows markdown-it-py and nothing of Qt; HTML is text, images are their description.

`MarkdownStream` owns a growing reply. Its invariant: a finished block is never parsed again, only what follows the last
finished block is, and the lines of an open code fence are not parsed at all, so that the cost of a flush stays flat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from markdown_it.token import Token

from ui.markdown.blocks import Block, Code, Maths, Paragraph, Span, Table
from ui.markdown.limits import NUM_CELLS, TABLE_CELLS, Work
from ui.markdown.maths import IS_WHOLE
from ui.markdown.parser import markdown_parser
from ui.markdown.plain import Allowance, plain_blocks, shortened
from ui.markdown.reader import fenced, read_blocks

_LONGEST_OPEN_BLOCK = 6000  # characters; a longer open block is closed at its last line or word
_SURE_AFTER = 8  # characters of the last block before the one above it counts as finished ("2" may become "2. item")
_REST_STEP = 1000  # characters of a line that is not read
_FENCE = re.compile(r"^( {0,3})(`{3,}+|~{3,}+)([^\n]*+)\n")


@dataclass(frozen=True, slots=True)
class Update:
    """`finished` blocks are new and final; `open` ones replace those of the update before."""

    finished: tuple[Block, ...]
    open: tuple[Block, ...]


class MarkdownStream:
    def __init__(self) -> None:
        self.num_parses = 0
        self.parsed_characters = 0
        self._parser = markdown_parser()
        self._env: dict[str, Any] = {}  # link references, which later blocks may use
        self._source = ""
        self._fence: _Fence | None = None
        self._work = Work()
        self._allowance = Allowance()
        self._rest = ""  # what follows where too much has been read

    def feed(self, text: str) -> Update:
        """Add text to the reply."""
        if self._work.is_done:
            return self._feed_rest(text)
        text, rest = self._work.take(text)
        update = self._feed(text)
        finished, opened = self._final(update.finished), self._passing(update.open)
        if not rest:
            return Update(finished, opened)
        finished += self._final(self._finish())
        update = self._feed_rest(rest)
        return Update(finished + update.finished, update.open)

    def finish(self) -> Update:
        """The reply is whole: what is open is finished."""
        rest, self._rest = self._rest, ""
        return Update(self._final(self._finish()) + (plain_blocks(rest) if rest else ()), ())

    def _feed(self, text: str) -> Update:
        self._source += text
        finished: list[Block] = []
        while True:
            if self._fence is None:
                self._open_fence_at_start()
            if self._fence is not None:
                if not self._close_fence(finished):
                    return Update(tuple(finished), (self._fence.open_block(self._source),))
                continue
            tokens = self._parse(self._source)
            start_line = _start_of_last_block(tokens)
            if start_line is None:
                return Update(tuple(finished), ())
            cut = _offset_of_line(self._source, start_line)
            rest = self._source[cut:]
            if start_line == 0 or (len(rest.strip()) < _SURE_AFTER and not _FENCE.match(rest)):
                cut = self._cut_long_block()
                if not cut:
                    return Update(tuple(finished), read_blocks(tokens))
                finished.extend(read_blocks(self._parse(self._source[:cut])))
            else:
                finished.extend(read_blocks(_tokens_before(tokens, start_line)))
            self._source = self._source[cut:]

    def _finish(self) -> tuple[Block, ...]:
        self._env[IS_WHOLE] = True
        if self._fence is not None:
            block: tuple[Block, ...] = (self._fence.block(self._source),)
        else:
            block = read_blocks(self._parse(self._source)) if self._source.strip() else ()
        self._source, self._fence = "", None
        return block

    def _feed_rest(self, text: str) -> Update:
        """All but the last line and what may belong to it is final."""
        self._rest += text
        end = max(self._rest.rfind("\n") + 1, len(self._rest) // _REST_STEP * _REST_STEP)
        done, self._rest = self._rest[:end], self._rest[end:]
        return Update(
            plain_blocks(done.removesuffix("\n")) if done else (), plain_blocks(self._rest) if self._rest else ()
        )

    def _final(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """Blocks as they stay, counted."""
        cells = sum(TABLE_CELLS + sum(map(len, block.rows)) for block in blocks if isinstance(block, Table))
        self._env[NUM_CELLS] = self._env.get(NUM_CELLS, 0) + cells
        return _limited(blocks, self._allowance)

    def _passing(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        return _limited(blocks, self._allowance.copy())

    def _parse(self, source: str) -> list[Token]:
        self.num_parses += 1
        self.parsed_characters += len(source)
        return self._parser.parse(source, self._env)

    def _open_fence_at_start(self) -> None:
        self._source = self._source.lstrip("\n")
        match = _FENCE.match(self._source)
        if match and not (match[2][0] == "`" and "`" in match[3]):
            self._fence = _Fence(len(match[1]), match[2], match[3].strip())
            self._source = self._source[match.end() :]

    def _close_fence(self, finished: list[Block]) -> bool:
        """Move the closing line and what is before it out of the source; False while the fence is open."""
        assert self._fence is not None
        match = self._fence.closing.search(self._source, self._fence.searched)
        if match is None:
            self._fence.searched = self._source.rfind("\n") + 1
            return False
        finished.append(self._fence.block(self._source[: match.start()]))
        self._source = self._source[match.end() :]
        self._fence = None
        return True

    def _cut_long_block(self) -> int:
        if len(self._source) <= _LONGEST_OPEN_BLOCK:
            return 0
        newline = self._source.rfind("\n", 1)
        return newline + 1 if newline > 0 else self._source.rfind(" ") + 1


class _Fence:
    """An open code fence: how it was opened, and how far its lines were searched for the closing one."""

    def __init__(self, indent: int, marker: str, info: str) -> None:
        self.closing = re.compile(rf"^ {{0,3}}{re.escape(marker[0])}{{{len(marker)},}}[ \t]*(?:\n|\Z)", re.MULTILINE)
        self.searched = 0
        self._marker = marker
        self._indent = indent
        self._info = info

    def open_block(self, source: str) -> Block:
        """What to show while it grows: of a formula its source."""
        block = self.block(source)
        return Paragraph((Span(block.latex, code=True),)) if isinstance(block, Maths) else block

    def block(self, source: str) -> Code | Maths:
        last = source.rsplit("\n", 1)[-1].strip()
        if last and self._marker.startswith(last):  # perhaps the closing line, half arrived
            source = source[: source.rfind("\n") + 1]
        if self._indent:
            source = re.sub(rf"^ {{1,{self._indent}}}", "", source, flags=re.MULTILINE)
        return fenced(source, self._info)


def parse_markdown(text: str) -> tuple[Block, ...]:
    """The blocks of a whole reply."""
    stream = MarkdownStream()
    update = stream.feed(text)
    return update.finished + stream.finish().finished


def _limited(blocks: tuple[Block, ...], allowance: Allowance) -> tuple[Block, ...]:
    return tuple(short for block in blocks for short in shortened(allowance.limit(block)))


def _start_of_last_block(tokens: list[Token]) -> int | None:
    starts = [token.map[0] for token in tokens if token.level == 0 and token.map and token.nesting >= 0]
    return starts[-1] if starts else None


def _tokens_before(tokens: list[Token], line: int) -> list[Token]:
    for index, token in enumerate(tokens):
        if token.level == 0 and token.nesting >= 0 and token.map and token.map[0] >= line:
            return tokens[:index]
    return tokens


def _offset_of_line(source: str, line: int) -> int:
    offset = 0
    for _ in range(line):
        offset = source.find("\n", offset) + 1
    return offset
