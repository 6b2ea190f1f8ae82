"""The cache lab through the engine: progress in order, cancelling, and chats that notice nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.protocol.commands import BenchName, ChatMessage, ReportBlocks, RunBench
from engine.protocol.config import EngineConfig
from engine.protocol.events import BenchFinished, BenchProgress, BlocksReported, Event, Failed
from tests.engine.conftest import ColdReply, Engine, user
from tests.engine.lab_speed import measure_briefly

TOTALS = "memory_bytes", "disk_bytes", "shared_bytes", "spare_bytes", "waste_ratio"
QUICK = [BenchName.MEMORY, BenchName.LOOP, BenchName.SHARED_PREFIX, BenchName.USE_CACHE, BenchName.PRECISIONS]


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)


def measure(engine: Engine, name: BenchName, context: int | None = None) -> list[Event]:
    """All events of one measurement, the last of which answers it."""
    engine.worker.submit(RunBench(f"bench-{name}", name, context))
    start = len(engine.events)
    engine.wait(BenchFinished, Failed, request_id=f"bench-{name}")
    return [event for event in engine.events[start:] if getattr(event, "request_id", None) == f"bench-{name}"]


def test_rows_come_as_they_are_measured_and_again_in_the_result(
    start_engine: Callable[..., Engine], tiny_model: Path
) -> None:
    *progress, finished = measure(start_engine(tiny_model), BenchName.MEMORY)
    assert isinstance(finished, BenchFinished), finished
    told = [event for event in progress if isinstance(event, BenchProgress)]
    assert told == progress
    assert [event.done for event in told] == list(range(told[0].total + 1))
    assert [event.row for event in told if event.row is not None] == finished.result["rows"]


def test_a_measurement_can_be_cancelled_amid_its_steps(
    start_engine: Callable[..., Engine], tiny_model: Path, engine_config: object
) -> None:
    engine = start_engine(tiny_model)
    engine.worker.submit(RunBench("bench", BenchName.USE_CACHE))
    engine.wait(BenchProgress, request_id="bench")
    engine.worker.cancel("bench")
    failed = engine.wait(BenchFinished, Failed, request_id="bench")
    assert isinstance(failed, Failed)
    assert (failed.code, failed.message) == ("bench", "The measurement was stopped.")


def test_chats_are_as_they_were_after_every_experiment(
    start_engine: Callable[..., Engine], tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    first: list[ChatMessage] = [user("the quick brown fox")]
    second: list[ChatMessage] = [user("tells a story")]
    engine.reply("first", first)
    engine.reply("second", second)
    before = engine.report()
    for name in QUICK:
        *_, finished = measure(engine, name, 128 if name is BenchName.USE_CACHE else None)
        assert isinstance(finished, BenchFinished), finished
        after = engine.report()
        assert after.conversations == before.conversations, name
        assert [getattr(after, total) for total in TOTALS] == [getattr(before, total) for total in TOTALS], name
    second.append(user("and then"))
    asked = list(second)
    again = engine.reply("second", second)
    assert again.statistics.reused_tokens > 0
    assert again.text == cold_reply(tiny_model, asked).text


@pytest.mark.parametrize("name", [BenchName.MEMORY, BenchName.KVZIP])
def test_a_refusal_is_one_sentence(start_engine: Callable[..., Engine], window_model: Path, name: BenchName) -> None:
    (failed,) = measure(start_engine(window_model), name, 100_000)
    assert isinstance(failed, Failed)
    assert failed.message.endswith(".")
    assert failed.code in ("cannot_measure", "context_overflow")


def test_the_memory_panel_is_answered_amid_a_measurement(start_engine: Callable[..., Engine], tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    engine.worker.submit(RunBench("bench", BenchName.USE_CACHE))
    engine.wait(BenchProgress, request_id="bench")
    engine.worker.submit(ReportBlocks("panel"))
    first = engine.wait(BlocksReported, BenchFinished, Failed)
    assert isinstance(first, BlocksReported), "it need not wait for the end"
    assert isinstance(engine.wait(BenchFinished, Failed, request_id="bench"), BenchFinished)


def test_what_a_killed_measurement_left_is_cleared_away(
    start_engine: Callable[..., Engine], tiny_model: Path, engine_config: EngineConfig
) -> None:
    left = engine_config.kv_dir / "bench-abc123" / "chunks"
    left.mkdir(parents=True)
    (left / "chunk").write_bytes(bytes(1000))
    start_engine(tiny_model)
    assert not left.parent.exists()
