"""What a conversation holds on to when it becomes active and when it rests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.kv.codecs.registry import INT8
from tests.engine.conftest import Engine, user

StartEngine = Callable[..., Engine]


def test_a_quantized_chat_that_came_back_exact_from_disk_keeps_nothing_that_was_rounded(
    start_engine: StartEngine, tiny_model: Path
) -> None:
    engine = start_engine(tiny_model)
    messages = [user("the quick brown fox " * 12)]
    engine.reply("a", messages)
    engine.reply("b", [user("hello")])
    _, caches = engine.runtime._loaded()
    resident = next(one for one in caches.residents if one.conversation_id == "a")
    assert resident.quantize(INT8) > 0
    assert not resident.is_exact
    engine.reply("a", [*messages, user("and then?")])
    assert resident.is_exact
    assert all(block.is_full_precision for block in resident.blocks)
    engine.reply("b", [user("hello")])
    assert resident.blocks
    assert all(block.is_full_precision for block in resident.blocks)
