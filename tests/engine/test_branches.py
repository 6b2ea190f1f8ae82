"""A conversation that went on in several ways: each has its cache, what they share is kept once, and it is one chat."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.kv.chat_key import branch_of, chat_key, conversation_of
from engine.kv.store.files import file_stem
from engine.kv.store.report import report_disk
from engine.protocol.commands import ChatMessage, Compress, ForgetUnknown, Generate, Pin, Role, Undo, Verify
from engine.protocol.config import GREEDY, EngineConfig, Sampling
from engine.protocol.events import (
    CacheState,
    Compressed,
    ConversationCache,
    Event,
    Failed,
    Finished,
    PressureActed,
    SnapshotSaved,
    Verified,
)
from tests.engine.conftest import ColdReply, Engine, build_model, user

StartEngine = Callable[..., Engine]
WARMER = Sampling(temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "roomy", max_position_embeddings=4096)


def digits(num_tokens: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice("0123456789") for _ in range(num_tokens))


@pytest.fixture
def engine_config(engine_config: EngineConfig) -> EngineConfig:
    """In few passes: the chats are long, and nothing is about their chunks."""
    return dataclasses.replace(engine_config, prefill_chunk=512)


def row(engine: Engine, conversation: str = "a") -> ConversationCache:
    return next(one for one in engine.report().conversations if one.conversation_id == conversation)


def files_of(folder: Path) -> list[Path]:
    return [path for kind in ("chunks", "states", "conversations") for path in folder.glob(f"kv/*/{kind}/**/*.*")]


def test_a_key_is_told_apart_and_named() -> None:
    for conversation in ("a", "with\x1fseparator", "", "Ärger ~ / \\"):
        for branch in ("", "12", "any/thing~"):
            key = chat_key(conversation, branch)
            assert (conversation_of(key), branch_of(key)) == (conversation, branch)
    assert chat_key("a") == "a"
    assert file_stem(chat_key("a", "12")) == "a~12"
    stems = [file_stem(chat_key(c, b)) for c in ("a", "b", "a~12", "A") for b in ("", "12", "a/b")]
    assert len(set(stems)) == len(stems)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_back_to_the_first_reply_after_a_second_one(
    start_engine: StartEngine, roomy_model: Path, cold_reply: ColdReply, is_restarted: bool
) -> None:
    engine = start_engine(roomy_model)
    question = [user(digits(2000))]
    first = list(question)
    engine.reply("a", first, max_new_tokens=40)
    second = list(question)
    regenerated = engine.reply("a", second, branch="2", sampling=WARMER, max_new_tokens=40)
    assert regenerated.statistics.prefilled_tokens == 1
    assert second[-1].text != first[-1].text
    second.append(user("go on there"))
    assert engine.reply("a", second, branch="2").statistics.prefilled_tokens < 32
    if is_restarted:
        engine = start_engine(roomy_model)
    first.append(user("go on here"))
    told = engine.estimate("a", first)
    back = engine.reply("a", first)
    assert back.statistics.prefilled_tokens == told.new_tokens < 32
    assert back.statistics.miss_code is None
    assert back.token_ids == cold_reply(roomy_model, first[:-1]).token_ids
    second.append(user("and there again"))
    told = engine.estimate("a", second, branch="2")
    again = engine.reply("a", second, branch="2")
    assert again.statistics.prefilled_tokens == told.new_tokens < 32
    assert again.token_ids == cold_reply(roomy_model, second[:-1]).token_ids


@pytest.mark.parametrize("is_restarted", [False, True])
def test_back_from_an_edited_message(start_engine: StartEngine, roomy_model: Path, is_restarted: bool) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(300))]
    for seed in range(1, 5):
        engine.reply("a", messages)
        messages.append(user(digits(300, seed)))
    engine.reply("a", messages)
    edited = [*messages[:4], user("other words than before")]
    other = engine.reply("a", edited, branch="5")
    assert other.statistics.reused_tokens > 600
    assert other.statistics.prefilled_tokens < 48
    assert other.statistics.miss_code is None
    if is_restarted:
        engine = start_engine(roomy_model)
    messages.append(user("go on as if nothing had happened"))
    back = engine.reply("a", messages)
    assert back.statistics.prefilled_tokens < 64
    assert back.statistics.miss_code is None
    edited.append(user("go on in the other one"))
    assert engine.reply("a", edited, branch="5").statistics.prefilled_tokens < 48


def test_a_model_that_cannot_crop_goes_back_too(start_engine: StartEngine, window_model: Path) -> None:
    engine = start_engine(window_model)
    question = [user("tell a story " * 9)]
    first, second = list(question), list(question)
    engine.reply("a", first)
    assert engine.reply("a", second, branch="2", sampling=WARMER).statistics.prefilled_tokens < 24
    for _ in range(2):
        first.append(user("go on"))
        assert engine.reply("a", first).statistics.prefilled_tokens < 32
        second.append(user("go on"))
        assert engine.reply("a", second, branch="2").statistics.prefilled_tokens < 32
        engine = start_engine(window_model)


def test_an_abandoned_branch_costs_its_own_end(start_engine: StartEngine, roomy_model: Path, tmp_path: Path) -> None:
    engine = start_engine(roomy_model)
    question = [user(digits(2000))]
    engine.reply("a", list(question))
    before = row(engine)
    for branch in ("2", "3", "4"):
        engine.reply("a", list(question), branch=branch, sampling=WARMER)
        engine.report()
    after = row(engine)
    assert after.memory_bytes < before.memory_bytes * 1.1
    assert after.disk_bytes < before.disk_bytes * 2  # each a chunk of up to 256 tokens and a manifest
    assert after.shared_bytes == 0
    files = files_of(tmp_path)
    assert after.disk_bytes == engine.report().disk_bytes == sum(path.stat().st_size for path in files)
    assert len([path for path in files if path.suffix == ".json"]) == 4


def test_the_report_knows_conversations_only(start_engine: StartEngine, roomy_model: Path, tmp_path: Path) -> None:
    engine = start_engine(roomy_model)
    one, other = [user(digits(300))], [user(digits(300, 1))]
    engine.reply("a", one, branch="7")
    engine.reply("a", other, branch="8")
    engine.reply("b", [user("something else")])
    report = engine.report()
    rows = {row.conversation_id: row for row in report.conversations}
    assert set(rows) == {"a", "b"}
    assert len(report.conversations) == 2
    assert rows["a"].state is CacheState.WARM
    assert sum(row.memory_bytes for row in rows.values()) == report.memory_bytes - report.spare_bytes
    assert sum(row.disk_bytes for row in rows.values()) == report.disk_bytes
    assert report.disk_bytes == sum(path.stat().st_size for path in files_of(tmp_path))
    asked = {row.conversation_id: row for row in report_disk(tmp_path / "kv", 0).conversations}
    assert set(asked) == {"a", "b"}
    assert asked["a"].tokens == rows["a"].tokens
    ids = {event.conversation_id for event in engine.events if isinstance(event, SnapshotSaved | Finished)}
    assert ids == {"a", "b"}
    engine = start_engine(roomy_model)
    stored = row(engine)
    assert (stored.state, stored.tokens) == (CacheState.ON_DISK, rows["a"].tokens)


def test_deleting_leaves_nothing_of_any_branch(start_engine: StartEngine, roomy_model: Path, tmp_path: Path) -> None:
    engine = start_engine(roomy_model)
    for number in range(6):
        branch = str(number) if number else ""
        engine.reply("a", [user(digits(100, number))], branch=branch, is_saved=bool(number % 2))
    engine.reply("b", [user("stays")])
    engine.forget("a")
    report = engine.report()
    assert [row.conversation_id for row in report.conversations] == ["b"]
    assert report.disk_bytes == report.conversations[0].disk_bytes
    assert [path.name for path in tmp_path.glob("kv/*/conversations/*")] == ["b.json"]
    assert sum(path.stat().st_size for path in files_of(tmp_path)) == report.disk_bytes


def test_a_deletion_before_any_model_and_one_that_was_cut_off(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(roomy_model)
    for conversation in ("a", "b", "c"):
        for branch in ("", "1", "x/y"):
            engine.reply(conversation, [user(f"{conversation}{branch} says")], branch=branch)
    engine = start_engine()
    engine.forget("a")
    engine.worker.submit(ForgetUnknown(frozenset({"b"})))
    engine.load(roomy_model)
    assert {row.conversation_id for row in engine.report().conversations} == {"b"}
    assert len(list(tmp_path.glob("kv/*/conversations/*"))) == 3
    again = engine.reply("b", [user("b1 says")], branch="1")
    assert again.statistics.prefilled_tokens == 1


def test_incognito_branches_share_within_their_conversation_only(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(roomy_model)
    question = [user(digits(400))]
    engine.reply("secret", list(question), is_incognito=True)
    again = engine.reply("secret", list(question), is_incognito=True, branch="2", sampling=WARMER)
    assert again.statistics.prefilled_tokens == 1
    other = engine.reply("other", list(question))
    assert other.statistics.prefilled_tokens == other.statistics.prompt_tokens
    assert [path.name for path in tmp_path.glob("kv/*/conversations/*")] == ["other.json"]
    first = engine.reply("secret", list(question), is_incognito=True)
    assert first.statistics.prefilled_tokens == 1
    engine.forget("secret")
    assert [row.conversation_id for row in engine.report().conversations] == ["other"]


def test_under_pressure_branches_go_like_chats(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=1_000_000)
    for number in range(4):
        engine.reply("a", [user(digits(500, number))], branch=str(number))
    report = engine.report()
    assert report.memory_bytes <= 1_000_000
    acted = [event for event in engine.events if isinstance(event, PressureActed)]
    assert acted
    assert {event.conversation_id for event in acted} == {"a"}
    back = engine.reply("a", [user(digits(500, 0))], branch="0")
    assert back.statistics.prefilled_tokens < 40


def test_a_pinned_conversation_s_branches_stay(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=1_400_000, disk_cap_bytes=0)
    engine.worker.submit(Pin(frozenset({"kept"})))
    engine.reply("kept", [user(digits(300))], branch="5")
    for number in range(4):
        engine.reply(f"c{number}", [user(digits(400, number + 1))])
    states = {row.conversation_id: row for row in engine.report().conversations}
    assert states["kept"].is_pinned
    assert states["kept"].state is CacheState.WARM
    assert engine.reply("kept", [user(digits(300))], branch="5").statistics.prefilled_tokens == 1


def test_a_branch_is_verified_compressed_and_brought_back(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model)
    first = [user(digits(900)), ChatMessage(Role.ASSISTANT, digits(50, 1)), user("go on")]
    engine.reply("a", first)
    second = [*first[:2], user("go elsewhere " + digits(200, 2))]
    engine.reply("a", second, branch="2")
    engine.worker.submit(Verify("a", "v", tuple(second), branch="2"))
    verified = engine.wait(Verified, Failed)
    assert isinstance(verified, Verified)
    assert verified.equal
    engine.worker.submit(Compress("a", "c", tuple(second), 0.5, branch="2"))
    compressed = engine.wait(Compressed, Failed)
    assert isinstance(compressed, Compressed), compressed
    assert compressed.conversation_id == "a"
    assert row(engine).kept < 1.0
    first.append(user("and here nothing was compressed"))
    back = engine.reply("a", first)
    assert back.statistics.cache.kept == 1.0
    assert back.statistics.prefilled_tokens < 64
    engine.worker.submit(Undo("a", "u", tuple(second), branch="2"))
    undone = engine.wait(Compressed, Failed, request_id="u")
    assert isinstance(undone, Compressed), undone
    assert undone.kept == 1.0
    assert undone.read_tokens < 32


def test_an_unknown_branch_of_a_known_chat_says_which_model_had_it(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(roomy_model)
    messages = [user("first")]
    engine.reply("a", messages, branch="3")
    engine.load(build_model(tmp_path / "twin", seed=1))
    messages.append(user("second"))
    assert engine.reply("a", messages, branch="4").statistics.miss_code == "model_changed"


def test_a_reply_to_a_branch_is_told_without_its_name(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model)
    engine.worker.submit(Generate("a", "r", (user("hello"),), GREEDY, 5, branch="9"))
    engine.wait(SnapshotSaved)
    named = [event for event in engine.events if hasattr(event, "conversation_id")]
    assert {getattr(event, "conversation_id", None) for event in named} == {"a"}
    assert not any("\x1f" in repr(dataclasses.asdict(event)) for event in engine.events if is_plain(event))


def is_plain(event: Event) -> bool:
    return dataclasses.is_dataclass(event)
