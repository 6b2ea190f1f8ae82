"""Settings that change while the engine runs count at once, without loading the model again."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.kv import codec_choice
from engine.kv.codecs.registry import NAMES
from engine.protocol.commands import Configure
from engine.protocol.config import EngineConfig
from engine.protocol.events import (
    CacheState,
    ConversationCache,
    ModelLoaded,
    ModelLoading,
    Phase,
    PhaseChanged,
    PressureActed,
)
from engine.protocol.misses import MissCode
from tests.engine.conftest import Engine, build_model, user

StartEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "roomy", max_position_embeddings=2048)


@pytest.fixture
def any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is random: whatever a codec costs it is accepted."""
    monkeypatch.setattr(codec_choice, "MOST_KL", dict.fromkeys(NAMES, 100.0))


def digits(num_tokens: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice("0123456789") for _ in range(num_tokens))


def rows(engine: Engine) -> dict[str, ConversationCache]:
    return {row.conversation_id: row for row in engine.report().conversations}


def configure(engine: Engine, config: EngineConfig, **changes: object) -> list[PressureActed]:
    """Change the settings; returns what was done for it."""
    engine.report()
    engine.events.clear()
    engine.worker.submit(Configure(dataclasses.replace(config, **changes)))  # type: ignore[arg-type]
    engine.report()
    assert not any(isinstance(event, ModelLoading | ModelLoaded) for event in engine.events)
    return [event for event in engine.events if isinstance(event, PressureActed)]


def test_a_lower_memory_budget_frees_memory(
    start_engine: StartEngine, roomy_model: Path, engine_config: EngineConfig
) -> None:
    engine = start_engine(roomy_model, prefill_chunk=512)
    chats = {name: [user(digits(500, number))] for number, name in enumerate("abc")}
    for name, messages in chats.items():
        engine.reply(name, messages)
    assert engine.report().memory_bytes > 900_000
    acted = configure(engine, engine_config, memory_budget_bytes=500_000, prefill_chunk=512)
    assert {event.budget_bytes for event in acted} == {500_000}
    report = engine.report()
    assert report.budget_bytes == 500_000
    assert report.memory_bytes <= 500_000
    assert rows(engine)["c"].state is CacheState.WARM
    chats["a"].append(user("back"))
    assert engine.reply("a", chats["a"]).statistics.prefilled_tokens < 32


def test_a_lower_disk_cap_evicts_and_a_higher_floor_stops_saving(
    start_engine: StartEngine, roomy_model: Path, engine_config: EngineConfig, tmp_path: Path
) -> None:
    engine = start_engine(roomy_model, prefill_chunk=512)
    for number, name in enumerate("ab"):
        engine.reply(name, [user(digits(500, number))])
    cap = rows(engine)["b"].disk_bytes + 1000
    acted = configure(engine, engine_config, disk_cap_bytes=cap)
    assert [(event.action, event.conversation_id) for event in acted] == [("evict_disk", "a")]
    assert engine.report().disk_cap_bytes == cap
    assert [path.stem for path in (tmp_path / "kv").glob("*/conversations/*")] == ["b"]
    engine = start_engine(roomy_model, prefill_chunk=512)
    configure(engine, engine_config, disk_floor_bytes=1 << 60)
    engine.reply("c", [user("nowhere to go")])
    assert [path.stem for path in (tmp_path / "kv").glob("*/conversations/*")] == ["b"]


def test_what_a_lower_cap_took_is_told_as_that(
    start_engine: StartEngine, roomy_model: Path, engine_config: EngineConfig
) -> None:
    engine = start_engine(roomy_model)
    messages = [user("remember this")]
    engine.reply("a", messages)
    engine = start_engine(roomy_model)
    configure(engine, engine_config, disk_cap_bytes=0)
    messages.append(user("do you?"))
    assert engine.reply("a", messages).statistics.miss_code == MissCode.EVICTED


@pytest.mark.usefixtures("any_price")
def test_another_precision_is_taken_by_all_chats_and_given_up_again(
    start_engine: StartEngine, roomy_model: Path, engine_config: EngineConfig
) -> None:
    engine = start_engine(roomy_model, prefill_chunk=512)
    chats = {name: [user(digits(600, number))] for number, name in enumerate("ab")}
    for name, messages in chats.items():
        engine.reply(name, messages)
    full = rows(engine)
    configure(engine, engine_config, kv_precision="int8", prefill_chunk=512)
    now = rows(engine)
    assert {row.precision for row in now.values()} <= {"int8", "mixed"}
    assert sum(row.memory_bytes for row in now.values()) < 0.6 * sum(row.memory_bytes for row in full.values())
    for messages in chats.values():
        messages.append(user("go on"))
    for name, messages in chats.items():
        reply = engine.reply(name, messages)
        assert reply.statistics.prefilled_tokens < 32
        assert reply.statistics.cache.precision in ("int8", "mixed")
    configure(engine, engine_config, prefill_chunk=512)
    chats["a"].append(user("in full again"))
    back = engine.reply("a", chats["a"])
    assert back.statistics.cache.precision == full["a"].precision


def test_another_chunk_is_fed_from_the_next_turn_on(
    start_engine: StartEngine, roomy_model: Path, engine_config: EngineConfig
) -> None:
    engine = start_engine(roomy_model, prefill_chunk=32)
    configure(engine, engine_config, prefill_chunk=100)
    engine.reply("a", [user(digits(250))])
    progress = [event for event in engine.events if isinstance(event, PhaseChanged) and event.phase is Phase.PREFILL]
    assert [event.done_tokens for event in progress][:3] == [0, 100, 200]


@pytest.mark.usefixtures("any_price")
def test_compression_by_itself_may_be_allowed_later(
    start_engine: StartEngine, roomy_model: Path, engine_config: EngineConfig
) -> None:
    budget = 390 * 768
    engine = start_engine(roomy_model, memory_budget_bytes=budget, prefill_chunk=512)
    messages = [user(digits(1200))]
    assert engine.fail("a", messages).code == "memory_budget"
    configure(engine, engine_config, memory_budget_bytes=budget, allows_compression=True, prefill_chunk=512)
    engine.reply("a", messages)
    assert rows(engine)["a"].kept < 1.0


def test_before_any_model_it_counts_for_the_first_one(
    start_engine: StartEngine, roomy_model: Path, engine_config: EngineConfig, tmp_path: Path
) -> None:
    engine = start_engine()
    changed = dataclasses.replace(engine_config, memory_budget_bytes=123_456_789, kv_dir=tmp_path / "elsewhere")
    engine.worker.submit(Configure(changed))
    assert engine.report().budget_bytes == 123_456_789
    engine.load(roomy_model)
    assert engine.report().budget_bytes == 123_456_789
    engine.reply("a", [user("hello")])
    assert not (tmp_path / "elsewhere").exists()
