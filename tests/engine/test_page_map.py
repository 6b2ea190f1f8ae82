"""Every block that is reported is there: the runs add up to the report, to the tensors and to the files."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from engine.kv.blocks import Block
from engine.kv.page_map import PageMap
from engine.kv.resident import Resident
from engine.protocol.commands import Compress, FreeNow, Generate, ReportBlocks, ReportCache
from engine.protocol.config import GREEDY, EngineConfig, Sampling
from engine.protocol.events import (
    BlockPlace,
    BlockRun,
    BlocksReported,
    CacheState,
    Compressed,
    ConversationBlocks,
    ConversationCache,
    Finished,
    PressureActed,
    SnapshotSaved,
)
from tests.engine.conftest import Engine, build_model, user

StartEngine = Callable[..., Engine]
WARMER = Sampling(temperature=1.0, seed=3)
PROMPT = 800


@pytest.fixture(scope="module")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "roomy", max_position_embeddings=4096)


@pytest.fixture
def engine_config(engine_config: EngineConfig) -> EngineConfig:
    return dataclasses.replace(engine_config, prefill_chunk=512)


def digits(num_tokens: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice("0123456789") for _ in range(num_tokens))


def blocks(engine: Engine) -> BlocksReported:
    request = f"blocks-{len(engine.events)}"
    engine.worker.submit(ReportBlocks(request))
    answer = engine.wait(BlocksReported, request_id=request)
    assert isinstance(answer, BlocksReported)
    return answer


def rows(engine: Engine) -> dict[str, ConversationBlocks]:
    return {row.conversation_id: row for row in blocks(engine).conversations}


def total(runs: Iterable[BlockRun], **wanted: object) -> int:
    return sum(run.bytes for run in runs if all(getattr(run, name) == value for name, value in wanted.items()))


def agrees(engine: Engine) -> dict[str, tuple[ConversationBlocks, ConversationCache]]:
    """Assert that both reports say the same of all; what each says, by conversation."""
    report, told = engine.report(), blocks(engine)
    assert (told.memory_bytes, told.spare_bytes, told.budget_bytes, told.disk_bytes) == (
        report.memory_bytes,
        report.spare_bytes,
        report.budget_bytes,
        report.disk_bytes,
    )
    assert report.disk_cap_bytes in (told.disk_cap_bytes, None)  # unknown before a model is there
    caches = {row.conversation_id: row for row in report.conversations if row.state is not CacheState.COLD}
    assert [row.conversation_id for row in told.conversations] == list(caches)
    pairs = {row.conversation_id: (row, caches[row.conversation_id]) for row in told.conversations}
    for row, cache in pairs.values():
        assert row.tokens == cache.tokens
        assert (row.precision, row.kept) == (cache.precision, pytest.approx(cache.kept))
        assert row.held_bytes == cache.memory_bytes
        if cache.state is CacheState.WARM:
            assert total(row.runs) == cache.memory_bytes - cache.waste_bytes
            assert total(row.runs, is_shared=True) == cache.shared_bytes
            assert {run.place for run in row.runs} == {BlockPlace.MEMORY}
        else:
            assert 0 < total(row.runs) < cache.disk_bytes  # the manifest, states, and a compressed chat's originals
            assert total(row.runs, is_shared=True) <= cache.shared_bytes  # of states as well
            assert {run.place for run in row.runs} == {BlockPlace.DISK}
        assert all(run.count == -(-run.tokens // 32) for run in row.runs)
    return pairs


def test_chats_that_share_their_beginning_active_parked_and_after_a_restart(
    start_engine: StartEngine, roomy_model: Path
) -> None:
    engine = start_engine(roomy_model)
    for number, name in enumerate("abc"):
        engine.reply(name, [user(digits(PROMPT) + digits(300, number + 1))])
        agrees(engine)
    pairs = agrees(engine)
    for name, (row, cache) in pairs.items():
        assert row.runs[0].is_shared == (name != "c" or cache.shared_bytes > 0)
        assert sum(run.tokens for run in row.runs) == cache.tokens
    assert pairs["a"][0].runs[0].tokens >= PROMPT - 256
    assert sum(row.held_bytes for row, _ in pairs.values()) > blocks(engine).memory_bytes - 2**20
    for is_loaded in (True, False):
        engine = start_engine(roomy_model if is_loaded else None)
        for row, cache in agrees(engine).values():
            assert row.runs[0].is_shared
            assert total(row.runs) == pytest.approx(cache.disk_bytes, rel=0.05)  # less its manifest
            assert row.tokens > PROMPT


def test_the_branches_of_a_conversation_are_folded_together(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model)
    first, second = [user(digits(PROMPT))], [user(digits(PROMPT))]
    engine.reply("a", first, max_new_tokens=40)
    engine.reply("a", second, branch="2", sampling=WARMER, max_new_tokens=40)
    engine.reply("b", [user("other")])
    row, cache = agrees(engine)["a"]
    assert not any(run.is_shared for run in row.runs)
    assert sum(run.tokens for run in row.runs) >= cache.tokens
    engine = start_engine(roomy_model)
    (row,) = [one for one in blocks(engine).conversations if one.conversation_id == "a"]
    assert not any(run.is_shared for run in row.runs)
    assert PROMPT < sum(run.tokens for run in row.runs) < PROMPT * 1.5


@pytest.mark.parametrize("precision", ["int8", "balanced", "compact"])
def test_quantized_chats(start_engine: StartEngine, roomy_model: Path, precision: str) -> None:
    engine = start_engine(roomy_model, kv_precision=precision)
    engine.reply("a", [user(digits(PROMPT))])
    engine.reply("b", [user(digits(400, 7))])
    pairs = agrees(engine)
    row, cache = pairs["a"]
    assert precision in {run.precision for run in row.runs}
    assert total(row.runs, precision=precision) > 0
    assert sum(run.tokens for run in row.runs) == cache.tokens


def test_a_compressed_chat(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(PROMPT))]
    engine.reply("a", messages)
    engine.worker.submit(Compress("a", "compress", tuple(messages), keep=0.3))
    answer = engine.wait(Compressed)
    assert isinstance(answer, Compressed)
    engine.wait(SnapshotSaved, request_id="compress")
    row, cache = agrees(engine)["a"]
    assert row.precision == "kvzip"
    assert row.kept == pytest.approx(answer.kept)
    assert sum(run.tokens for run in row.runs) == cache.tokens
    engine = start_engine(roomy_model)
    row, _ = agrees(engine)["a"]
    assert {run.precision for run in row.runs} == {"kvzip"}


def test_a_model_whose_cache_has_states(start_engine: StartEngine, window_model: Path) -> None:
    engine = start_engine(window_model)
    for name in ("a", "b"):
        engine.reply(name, [user("tell a story " * 9)])
        agrees(engine)
    agrees(start_engine(window_model))


def test_it_is_answered_amid_a_reply_and_stops_nothing(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model)
    messages = (user(digits(PROMPT)),)
    engine.worker.submit(Generate("a", "turn", messages, GREEDY, 200))
    for number in range(3):
        engine.worker.submit(ReportBlocks(f"amid-{number}"))
    finished = engine.wait(Finished)
    assert isinstance(finished, Finished)
    assert [type(one) for one in engine.events].count(BlocksReported) == 3
    assert finished.statistics.new_tokens > 1


def test_freeing_saves_first_then_drops_and_the_chat_resumes(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model)
    messages = {name: [user(digits(PROMPT, seed))] for seed, name in enumerate("ab")}
    for name, one in messages.items():
        engine.reply(name, one)
    engine.worker.submit(FreeNow(("a",)))
    step = engine.wait(PressureActed)
    assert isinstance(step, PressureActed)
    assert (step.conversation_id, step.action) == ("a", "drop")  # it was saved after its reply
    assert step.bytes_freed > 0
    assert step.comes_back_s is not None
    pairs = agrees(engine)
    assert {name: row.runs[0].place for name, (row, _) in pairs.items()} == {
        "a": BlockPlace.DISK,
        "b": BlockPlace.MEMORY,
    }
    engine.worker.submit(FreeNow())
    engine.wait(PressureActed)
    assert engine.report().memory_bytes == 0
    messages["a"].append(user("and then?"))
    back = engine.reply("a", messages["a"])
    assert back.statistics.prefilled_tokens < 40


def test_freeing_what_is_not_saved_yet_and_what_may_not_be_saved(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model)
    engine.reply("secret", [user(digits(300))], is_incognito=True)
    engine.reply("a", [user(digits(PROMPT))], is_saved=False)
    engine.worker.submit(FreeNow())
    engine.report()
    steps = [(one.conversation_id, one.action) for one in engine.events if isinstance(one, PressureActed)]
    assert ("secret", "save") not in steps
    assert [step for step in steps if step[1] == "drop"] == [("secret", "drop"), ("a", "drop")]
    assert set(rows(engine)) == {"a"}
    assert engine.report().memory_bytes == 0


def test_freeing_before_a_model_is_there_does_nothing(start_engine: StartEngine) -> None:
    engine = start_engine()
    engine.worker.submit(FreeNow())
    engine.worker.submit(ReportCache("after"))
    assert not any(isinstance(one, PressureActed) for one in engine.events)
    assert blocks(engine).conversations == ()


def test_a_hundred_thousand_blocks_take_a_few_milliseconds(
    start_engine: StartEngine, roomy_model: Path, engine_config: EngineConfig
) -> None:
    """The map alone, of one chat whose blocks are as cheap as they come."""
    engine = start_engine(roomy_model)
    engine.reply("a", [user("hello")])
    seen: list[float] = []

    caches = engine.runtime._caches
    assert caches is not None
    chat = Resident("large", caches.pool)
    ids = tuple(range(32))
    chat.blocks = [Block(None, ids, []) for _ in range(100_000)]
    for block in chat.blocks[:1000]:
        block.refs = 2
    chat._parked_ids = [0] * 3_200_000
    caches._residents["large"] = chat
    page_map = PageMap(caches)
    page_map.report("first", engine_config)
    for _ in range(5):
        started = time.perf_counter()
        answer = page_map.report("again", engine_config)
        seen.append(time.perf_counter() - started)
    del caches._residents["large"]
    (row,) = [one for one in answer.conversations if one.conversation_id == "large"]
    assert [run.count for run in row.runs] == [1000, 99_000]
    assert row.tokens == sum(run.tokens for run in row.runs) == 3_200_000
    print(f"\npage map of 100,000 blocks: {min(seen) * 1e3:.1f} ms")
    assert min(seen) < 0.1
