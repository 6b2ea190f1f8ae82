"""Going to another chat that is in memory, in full precision: its first token against that of the chat shown last.

make bench ARGS="tests/benchmarks/bench_switch.py"
"""

from __future__ import annotations

import statistics
from pathlib import Path

from engine.protocol.commands import ChatMessage
from engine.protocol.config import EngineConfig
from tests.end_to_end.conftest import long_message
from tests.engine.conftest import Engine, user

TOKENS = 4_000
ROUNDS = 8


def first_token_s(engine: Engine, chat: str, messages: list[ChatMessage]) -> float:
    messages.append(user("hi"))
    finished = engine.reply(chat, messages, max_new_tokens=4)
    assert finished.statistics.ttft_s is not None
    assert finished.statistics.miss_reason is None
    engine.report()  # idle work is done: the others are parked
    return finished.statistics.ttft_s


def test_switching_between_two_chats_in_memory(default_model: Path, tmp_path: Path) -> None:
    engine = Engine(EngineConfig(tmp_path / "kv", tmp_path / "converted"))
    engine.load(default_model)
    chats = {name: [user(f"{name}: " + long_message(TOKENS // 31))] for name in ("first", "second")}
    cold = {name: engine.reply(name, messages, max_new_tokens=4).statistics for name, messages in chats.items()}
    engine.report()
    stayed: list[float] = []
    switched: list[float] = []
    for number in range(ROUNDS):
        name = ("first", "second")[number % 2]
        switched.append(first_token_s(engine, name, chats[name]))
        stayed.append(first_token_s(engine, name, chats[name]))
    engine.worker.shutdown(60)
    ratio = statistics.median(switched) / statistics.median(stayed)
    print(
        f"\n{cold['first'].prompt_tokens:,} tokens each, read in {cold['first'].ttft_s:.1f} s;"
        f" first token staying {statistics.median(stayed) * 1e3:.0f} ms ({min(stayed) * 1e3:.0f} to"
        f" {max(stayed) * 1e3:.0f}), switching {statistics.median(switched) * 1e3:.0f} ms ({min(switched) * 1e3:.0f} to"
        f" {max(switched) * 1e3:.0f}): {ratio:.2f} times"
    )
