"""Puts generated lines into a Markdown file, between comments of their own inside the BENCHMARKS comments.

What else stands between the BENCHMARKS comments stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_OUTER_END = "<!-- BENCHMARKS: end -->"


class BlockMissingError(Exception):
    """The file has no place for the lines."""


def replace_block(text: str, name: str, lines: Sequence[str], verb: str = "peers") -> str:
    """`text` with the block `name`, which `make verb` writes, made of `lines`; a new one goes to the end of the
    BENCHMARKS part.

    Raises BlockMissingError when there is no such part, or when a block begins that does not end.
    """
    begin, end = f"<!-- {name}: begin. Written by `make {verb}`; do not edit. -->", f"<!-- {name}: end -->"
    block = "\n".join([begin, *lines, end])
    if begin in text:
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise BlockMissingError(f"the line {end} is missing")
        return before + block + after
    before, found, after = text.partition(_OUTER_END)
    if not found:
        raise BlockMissingError(f"the line {_OUTER_END} is missing")
    return f"{before}\n{block}\n{found}{after}"


def write_block(path: Path, name: str, lines: Sequence[str], verb: str = "peers") -> None:
    path.write_text(replace_block(path.read_text(encoding="utf-8"), name, lines, verb), encoding="utf-8")
