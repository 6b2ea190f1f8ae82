"""What the page map says in words: a cell, all cells of a chat, and a chat's line. In the window's language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import BlockPlace, BlockRun, ConversationBlocks
from ui import numbers
from ui.memory.precision_words import precision_words

BLOCK_TOKENS = 32


def _tr(source: str) -> str:
    return QCoreApplication.translate("Memory", source)


def place_words(place: BlockPlace) -> str:
    return {
        BlockPlace.MEMORY: _tr("in memory"),
        BlockPlace.DEVICE: _tr("on the graphics card"),
        BlockPlace.DISK: _tr("on disk"),
    }[place]


def cell_words(index: int, num_cells: int, run: BlockRun, index_in_run: int, run_start: int) -> str:
    """`run_start`: tokens before the run."""
    first = index_in_run * BLOCK_TOKENS
    last = min(first + BLOCK_TOKENS, run.tokens)
    block = _tr("Block {number} of {count}: tokens {first} to {last}").format(
        number=numbers.count(index + 1),
        count=numbers.count(num_cells),
        first=numbers.count(run_start + first + 1),
        last=numbers.count(run_start + last),
    )
    parts = [block, precision_words(run.precision), place_words(run.place)]
    if run.is_shared:
        parts.append(_tr("shared with another chat"))
    return " · ".join(part for part in parts if part)


def map_words(title: str, runs: Sequence[BlockRun]) -> str:
    """As "Harbour: 201 blocks, 187 16 bit in memory, 14 16 bit in memory, shared"."""
    counts: Counter[str] = Counter()
    for run in runs:
        words = f"{precision_words(run.precision)} {place_words(run.place)}".strip()
        counts[f"{words} ({_tr('shared')})" if run.is_shared else words] += run.count
    total = _tr("{count} blocks").format(count=numbers.count(sum(counts.values())))
    parts = [f"{numbers.count(count)} {words}" for words, count in counts.items()]
    return f"{title}: {', '.join([total, *parts])}"


def chat_words(row: ConversationBlocks) -> str:
    """As "6,412 tokens · 148 MB · 16 bit · in memory" or "5,120 tokens · 118 MB on disk · resumes in about 0.1 s"."""
    tokens = _tr("{count} tokens").format(count=numbers.count(row.tokens))
    precision = precision_words(row.precision, row.kept)
    places = {run.place for run in row.runs}
    if places == {BlockPlace.DISK}:
        on_disk = _tr("{size} on disk").format(size=numbers.size(sum(run.bytes for run in row.runs)))
        parts = [tokens, on_disk, precision]
        if row.comes_back_s is not None:
            parts.append(_tr("resumes in about {time}").format(time=numbers.seconds(row.comes_back_s)))
        return " · ".join(part for part in parts if part)
    place = BlockPlace.DEVICE if BlockPlace.DEVICE in places else BlockPlace.MEMORY
    return " · ".join(part for part in (tokens, numbers.size(row.held_bytes), precision, place_words(place)) if part)
