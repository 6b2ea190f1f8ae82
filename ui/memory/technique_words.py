"""What the page map's colours and marks stand for, a short paragraph each, with the numbers of the report beside it.

Numbers are counted from a `BlocksReported` alone, and what 16 bit would take from the model's bytes a token. Where the
report has nothing of a kind, the paragraph says so and names no number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import BlockPlace, BlockRun, BlocksReported
from ui import numbers
from ui.memory.page_words import BLOCK_TOKENS, UNBROKEN
from ui.memory.precision_words import FULL, kind_of


class Topic(StrEnum):
    """Those of precisions are named as `kind_of` names them."""

    BLOCK = "block"
    FULL = FULL
    INT8 = "int8"
    BALANCED = "balanced"
    COMPACT = "compact"
    KVZIP = "kvzip"
    ON_DISK = "on_disk"
    SHARED = "shared"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Found:
    """Those blocks of a report that are of one kind, as they are drawn: what chats share is in each of them."""

    num_chats: int
    num_blocks: int
    tokens: int
    num_bytes: int


def find(report: BlocksReported, is_wanted: Callable[[BlockRun], bool]) -> Found:
    by_chat = [[run for run in row.runs if is_wanted(run)] for row in report.conversations]
    runs = [run for found in by_chat for run in found]
    return Found(
        num_chats=sum(map(bool, by_chat)),
        num_blocks=sum(run.count for run in runs),
        tokens=sum(run.tokens for run in runs),
        num_bytes=sum(run.bytes for run in runs),
    )


def topic_heading(topic: Topic) -> str:
    return {
        Topic.BLOCK: _tr("Blocks"),
        Topic.FULL: _tr("16 bit"),
        Topic.INT8: _tr("8 bit (int8)"),
        Topic.BALANCED: _tr("K 8 bit, V 4 bit (balanced)"),
        Topic.COMPACT: _tr("4 bit (compact)"),
        Topic.KVZIP: _tr("KVzip"),
        Topic.ON_DISK: _tr("On disk"),
        Topic.SHARED: _tr("Shared beginnings"),
        Topic.BUDGET: _tr("Budget and water marks"),
    }[topic]


def topic_words(topic: Topic, report: BlocksReported | None, bytes_per_token: int | None) -> str:
    """The whole paragraph; without numbers where there is no report yet."""
    parts = [_meaning(topic)]
    if report is not None:
        parts.append(_here(topic, report, bytes_per_token))
    return " ".join(parts)


def _tr(source: str) -> str:
    return QCoreApplication.translate("Techniques", source)


def _meaning(topic: Topic) -> str:
    match topic:
        case Topic.BLOCK:
            return _tr(
                "Each cell is a block, also called a page: what the model remembers (keys and values) of up to 32 "
                "tokens. A chat's memory grows block by block, not as one piece as large as it might ever get. The "
                "names of the colours explain them when they are pressed."
            )
        case Topic.FULL:
            return _tr("Just as the model computed it: nothing is lost. All other ways are measured against it.")
        case Topic.INT8:
            return _tr(
                "Numbers are kept in 8 bits, with a scale for each small group: half the size. Replies hardly change."
            )
        case Topic.BALANCED:
            return _tr(
                "Keys decide what the model looks at, so they keep 8 bits; values make do with 4. Wording may change "
                "a little."
            )
        case Topic.COMPACT:
            return _tr(
                "Keys and values both in 4 bits, but the first 64 tokens and the last 128 in 16: the smallest way to "
                "keep every token. Replies may differ."
            )
        case Topic.KVZIP:
            return _tr(
                "The model repeats the chat to itself, and what it does not look at meanwhile is dropped (KVzip), or "
                "the middle is (“Forget the middle”). The text stays, details may be missing from replies, and Undo "
                "brings everything back."
            )
        case Topic.ON_DISK:
            return _tr(
                "A chat's memory is saved after each reply. Once it was put away, hollow cells are what is left of it: "
                "it resumes from disk, and its text is not read again."
            )
        case Topic.SHARED:
            return _tr(
                "Chats that begin alike, with the same instructions say, keep that beginning once, and it is read "
                "once. Outlined cells are held by another chat too."
            )
        case Topic.BUDGET:
            return _tr(
                "Above the upper mark Ember makes room, down to the lower one, beginning with the chat that was used "
                "longest ago: save to disk, keep in fewer bits, put away. Pinned chats come last, and the one in use "
                "stays. “What happened” tells what was done."
            )


def _here(topic: Topic, report: BlocksReported, bytes_per_token: int | None) -> str:
    match topic:
        case Topic.BLOCK:
            return _blocks_here(report)
        case Topic.ON_DISK:
            return _disk_here(report)
        case Topic.SHARED:
            return _shared_here(report)
        case Topic.BUDGET:
            return _budget_here(report)
    found = find(report, lambda run: _is_in_memory(run) and kind_of(run.precision) == topic.value)
    if not found.num_blocks:
        return _tr("Nothing in memory is kept in this way now.")
    values = _values(found)
    if topic is Topic.FULL:
        return _tr("Here: {blocks} in {chats}, {size}.").format(**values)
    if bytes_per_token is None:
        return _tr("Here: {blocks} in {chats} take {size}.").format(**values)
    full = _size(found.tokens * bytes_per_token)
    return _tr("Here: {blocks} in {chats} take {size}; in full they would take about {full}.").format(
        full=full, **values
    )


def _blocks_here(report: BlocksReported) -> str:
    found = find(report, _is_in_memory)
    if not found.num_blocks:
        return _tr("No chat is in memory now.")
    held = sum(row.held_bytes for row in report.conversations)
    slack = held - found.num_bytes
    words = _tr(
        "Here: {chats} with {blocks} in memory; {tokens} fill {share} of their places. {slack} of the {held} they "
        "hold are room for what comes next."
    )
    return words.format(
        tokens=_one_or_more(found.tokens, _tr("1 token"), _tr("{count} tokens")),
        share=numbers.share(found.tokens / (found.num_blocks * BLOCK_TOKENS)),
        slack=_size(slack),
        held=_size(held),
        **_values(found),
    )


def _disk_here(report: BlocksReported) -> str:
    found = find(report, lambda run: run.place is BlockPlace.DISK)
    used = _tr("Saved in all: {disk} of {cap}.").format(disk=_size(report.disk_bytes), cap=_size(report.disk_cap_bytes))
    if not found.num_blocks:
        return f"{_tr('No chat is on disk alone.')} {used}"
    parts = [_tr("Here: {blocks} in {chats}, {size}.").format(**_values(found)), used]
    back = [row.comes_back_s for row in report.conversations if row.comes_back_s is not None]
    if back:
        parts.append(_tr("The largest is back in about {time}.").format(time=numbers.seconds(max(back))))
    return " ".join(parts)


def _shared_here(report: BlocksReported) -> str:
    found = find(report, lambda run: run.is_shared)
    if not found.num_blocks:
        return _tr("No chat here shares anything now.")
    words = _tr("Here: {blocks} in {chats} are outlined.").format(**_values(found))
    together = report.memory_bytes - report.spare_bytes
    apart = sum(row.held_bytes for row in report.conversations)
    if apart <= together:
        return words  # what is shared lies on disk
    saved = _tr("All chats take {together} of memory; if each kept its own, they would take {apart}.")
    return f"{words} {saved.format(together=_size(together), apart=_size(apart))}"


def _budget_here(report: BlocksReported) -> str:
    words = _tr("Here: {used} of {budget}; room is made above {high}, down to {low}.")
    return words.format(
        used=_size(report.memory_bytes),
        budget=_size(report.budget_bytes),
        high=_size(report.high_water_bytes),
        low=_size(report.low_water_bytes),
    )


def _is_in_memory(run: BlockRun) -> bool:
    return run.place is not BlockPlace.DISK


def _values(found: Found) -> dict[str, str]:
    return {
        "chats": _one_or_more(found.num_chats, _tr("1 chat"), _tr("{count} chats")),
        "blocks": _one_or_more(found.num_blocks, _tr("1 block"), _tr("{count} blocks")),
        "size": _size(found.num_bytes),
    }


def _size(num_bytes: int) -> str:
    """Its unit stays with its number where a line ends."""
    return numbers.size(num_bytes).replace(" ", UNBROKEN)


def _one_or_more(number: int, one: str, more: str) -> str:
    return one if number == 1 else more.format(count=numbers.count(number))
