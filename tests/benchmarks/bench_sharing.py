"""What sharing saves, with the real model: one system prompt for two chats; edit, regenerate, branch, delete.

make bench ARGS="tests/benchmarks/bench_sharing.py"
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.protocol.commands import ChatMessage, Role
from engine.protocol.config import EngineConfig
from engine.protocol.events import Finished
from tests.end_to_end.conftest import long_message
from tests.engine.conftest import Engine, user

TOKENS = 12


@pytest.fixture
def engine(default_model: Path, tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(EngineConfig(tmp_path / "kv", tmp_path / "converted"))
    engine.load(default_model)
    yield engine
    engine.worker.shutdown(60)


def told(engine: Engine, step: str, finished: Finished | None = None) -> None:
    """One line: what was fed and what is held now."""
    report = engine.report()
    fed = ""
    if finished is not None:
        one = finished.statistics
        fed = f"{one.prefilled_tokens:5,} fed, {one.reused_tokens:6,} of {one.prompt_tokens:6,} reused"
        fed += f" ({one.miss_reason})" if one.miss_reason else ""
    rows = [
        f"{row.conversation_id} {row.memory_bytes / 1e6:.1f} MB ({row.shared_bytes / 1e6:.1f} shared)"
        for row in report.conversations
    ]
    print(
        f"{step:34} {fed:40} memory {report.memory_bytes / 1e6:6.1f} MB, shared {report.shared_bytes / 1e6:5.1f},"
        f" spare {report.spare_bytes / 1e6:5.1f}, waste {report.waste_ratio:4.1%}; disk {report.disk_bytes / 1e6:6.1f};"
        f" {', '.join(rows)}"
    )


def test_two_chats_with_one_system_prompt(engine: Engine) -> None:
    print()
    system = ChatMessage(Role.SYSTEM, long_message(64))
    first, second, third = (
        [system, user(text)] for text in ("Who keeps the light?", "When do the ferries leave?", "Hi")
    )
    told(engine, "first chat", engine.reply("first", first, max_new_tokens=TOKENS))
    shared = engine.reply("second", second, max_new_tokens=TOKENS)
    told(engine, "second chat, same system prompt", shared)
    told(engine, "third chat, same system prompt", engine.reply("third", third, max_new_tokens=TOKENS))
    assert shared.statistics.reused_tokens > 1_900
    assert engine.report().shared_bytes > 40e6


def test_edit_regenerate_branch_delete(engine: Engine) -> None:
    print()
    messages: list[ChatMessage] = []
    for number in range(5):
        messages.append(user(f"Part {number}: " + long_message(6)))
        told(engine, f"message {len(messages)} and its reply", engine.reply("main", messages, max_new_tokens=TOKENS))
    whole = list(messages)
    again = engine.reply("main", whole[:9], max_new_tokens=TOKENS)
    told(engine, "regenerate the last reply", again)
    assert again.statistics.prefilled_tokens < 10
    branch = [*whole[:4], user("Another question here: " + long_message(6))]
    told(engine, "branch after message 4", engine.reply("branch", branch, max_new_tokens=TOKENS))
    edited = [*whole[:2], user("Edited: " + long_message(6))]
    told(engine, "edit message 3 of 10", engine.reply("main", edited, max_new_tokens=TOKENS))
    before = engine.report()
    engine.forget("main")
    told(engine, "delete the first branch")
    branch.append(user("Go on."))
    after = engine.reply("branch", branch, max_new_tokens=TOKENS)
    told(engine, "the other branch goes on", after)
    assert after.statistics.miss_reason is None
    assert engine.report().disk_bytes < before.disk_bytes
