"""What the page map says in words: a cell, all cells of a chat, and a chat's line. In the window's language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import BlockPlace, BlockRun, BlocksReported, ConversationBlocks
from ui import numbers
from ui.memory.precision_words import precision_words

BLOCK_TOKENS = 32
UNBROKEN = "\N{NO-BREAK SPACE}"


def _tr(source: str) -> str:
    return QCoreApplication.translate("Memory", source)


def place_words(place: BlockPlace) -> str:
    return {
        BlockPlace.MEMORY: _tr("in memory"),
        BlockPlace.DEVICE: _tr("on the graphics card"),
        BlockPlace.DISK: _tr("on disk"),
    }[place]


def sharing_pair(report: BlocksReported) -> dict[str, str]:
    """With whom a chat shares its blocks in memory; empty where more than two do, so that it may be with several."""
    sharing = [row.conversation_id for row in report.conversations if any(map(_is_shared_in_memory, row.runs))]
    return dict(zip(sharing, reversed(sharing), strict=True)) if len(sharing) == 2 else {}


def cell_words(
    index: int, num_cells: int, run: BlockRun, index_in_run: int, run_start: int, shares_with: str = ""
) -> str:
    """`run_start`: tokens before the run. `shares_with`: the one chat that shares what is in memory, "" if unknown."""
    first = index_in_run * BLOCK_TOKENS
    last = min(first + BLOCK_TOKENS, run.tokens)
    block = _tr("Block {number} of {count}: tokens {first} to {last}").format(
        number=numbers.count(index + 1),
        count=numbers.count(num_cells),
        first=numbers.count(run_start + first + 1),
        last=numbers.count(run_start + last),
    )
    parts = [block, precision_words(run.precision), place_words(run.place)]
    if run.bytes and run.tokens:
        parts.append(numbers.size(round(run.bytes * (last - first) / run.tokens)))
    if _is_shared_in_memory(run) and shares_with:
        parts.append(_tr("shared with “{title}”").format(title=shares_with))
    elif run.is_shared:
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
    """As "6,412 tokens · 148 MB · 16 bit · in memory" or "5,120 tokens · 118 MB on disk · resumes in about 0.1 s".

    Breaks between its parts only, where there is no room for a line.
    """
    tokens = _tr("{count} tokens").format(count=numbers.count(row.tokens))
    precision = precision_words(row.precision, row.kept)
    places = {run.place for run in row.runs}
    if places == {BlockPlace.DISK}:
        on_disk = _tr("{size} on disk").format(size=numbers.size(sum(run.bytes for run in row.runs)))
        parts = [tokens, on_disk, precision]
        if row.comes_back_s is not None:
            parts.append(_tr("resumes in about {time}").format(time=numbers.seconds(row.comes_back_s)))
    else:
        place = BlockPlace.DEVICE if BlockPlace.DEVICE in places else BlockPlace.MEMORY
        parts = [tokens, numbers.size(row.held_bytes), precision, place_words(place)]
    return f"{UNBROKEN}· ".join(part.replace(" ", UNBROKEN) for part in parts if part)


def _is_shared_in_memory(run: BlockRun) -> bool:
    return run.is_shared and run.place is not BlockPlace.DISK
