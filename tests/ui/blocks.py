"""Reports of blocks as an engine gives them, for tests: chats of the fake model, which takes 23,040 bytes a token."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol.events import BlockPlace, BlockRun, BlocksReported, ConversationBlocks
from tests.ui.fakes import GB, MB

BUDGET = 2048  # MB, as the settings have it
PER_TOKEN = 23_040


def run(tokens: int, precision: str = "bf16", place: str = "memory", *, shared: bool = False) -> BlockRun:
    size = {"int8": 0.5, "kvzip": 0.3}.get(precision, 1.0)
    return BlockRun(-(-tokens // 32), tokens, precision, shared, BlockPlace(place), round(tokens * PER_TOKEN * size))


def chat(conversation_id: str, *runs: BlockRun, kept: float = 1.0, back_s: float | None = None) -> ConversationBlocks:
    held = sum(one.bytes for one in runs if one.place is not BlockPlace.DISK)
    kinds = {one.precision for one in runs} - {"bf16"}
    precision = kinds.pop() if kinds else "bf16"
    return ConversationBlocks(conversation_id, runs, sum(one.tokens for one in runs), precision, kept, held, back_s)


def three_precisions(ids: Sequence[str]) -> tuple[ConversationBlocks, ...]:
    """Four chats: two begin alike, one of them in 8 bits; one is compressed, one on disk."""
    return (
        chat(ids[0], run(448, shared=True), run(5964)),
        chat(ids[1], run(448, shared=True), run(3456, "int8")),
        chat(ids[2], run(7020, "kvzip"), kept=0.3),
        chat(ids[3], run(448, place="disk", shared=True), run(4672, place="disk"), back_s=0.1),
    )


def report(
    request_id: str, rows: Sequence[ConversationBlocks], memory_bytes: int | None = None, spare_bytes: int = 0
) -> BlocksReported:
    if memory_bytes is None:
        memory_bytes = sum(row.held_bytes for row in rows)
    budget = BUDGET * MB
    high, low = budget * 95 // 100, budget * 80 // 100
    return BlocksReported(request_id, tuple(rows), memory_bytes, budget, 900 * MB, high, low, 20 * GB, spare_bytes)
