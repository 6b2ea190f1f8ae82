"""The paged cache from outside: shared, parked, quantized, dropped and brought back, as if never touched."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.generation.sampler import Sampler
from engine.kv.arena import KVArena
from engine.kv.block_keys import BLOCK_TOKENS, CHUNK_TOKENS
from engine.kv.blocks import BlockPool
from engine.kv.codecs.affine import AffineCodec
from engine.kv.manager import CacheManager
from engine.kv.rates import MeasuredRates
from engine.kv.resident import Resident, common_prefix
from engine.kv.store.reader import StoreReader
from engine.kv.store.scratch_file import ScratchFile
from engine.kv.working_cache import ContiguousLayer
from engine.protocol.commands import ChatMessage, Forget, Generate, Pin, Role
from engine.protocol.config import GREEDY, EngineConfig
from engine.protocol.events import (
    CacheReported,
    CacheState,
    ConversationCache,
    Failed,
    Finished,
    ModelLoaded,
    PressureActed,
    SnapshotNotSaved,
    SnapshotSaved,
)
from engine.protocol.misses import MissCode, SaveProblem
from tests.engine.conftest import TEMPLATE, ColdReply, Engine, build_model, build_tokenizer, user
from tests.engine.families import BY_NAME
from tests.engine.test_history_tokens import REASONING

StartEngine = Callable[..., Engine]
TOKEN_BYTES = 3 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head_dim, float32
OUT_OF_MEMORY = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 7 bytes"
NOTE = "Memory ran out; other chats were put away and the step was repeated."


@pytest.fixture(scope="session")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny, but of 2,048 tokens of context."""
    return build_model(tmp_path_factory.mktemp("models") / "roomy", max_position_embeddings=2048)


def digits(num_tokens: int, seed: int = 0) -> str:
    """A text of exactly so many tokens, different for every seed."""
    rng = random.Random(seed)
    return "".join(rng.choice("0123456789") for _ in range(num_tokens))


def system(num_tokens: int, seed: int = 0) -> ChatMessage:
    return ChatMessage(Role.SYSTEM, digits(num_tokens, seed))


def caches_of(engine: Engine) -> CacheManager:
    caches = engine.runtime._caches
    assert caches is not None
    return caches


def resident(engine: Engine, conversation: str) -> Resident:
    return caches_of(engine)._residents[conversation]


def prompt_ids(engine: Engine, messages: list[ChatMessage]) -> list[int]:
    model = engine.runtime._model
    assert model is not None
    return model.history.ids(messages)


def row(report: CacheReported, conversation: str) -> ConversationCache:
    return next(one for one in report.conversations if one.conversation_id == conversation)


def files_on_disk(root: Path) -> list[Path]:
    kinds = ("chunks", "states", "conversations")
    return [path for kind in kinds for path in (root / "kv").glob(f"*/{kind}/**/*.*")]


def tensor_bytes(root: object) -> int:
    """Bytes of all tensors that can be reached from an object, what several of them share counted once."""
    spans: list[tuple[int, int]] = []
    seen: set[int] = set()
    queue: list[Any] = [root]
    while queue:
        found = queue.pop()
        if id(found) in seen or isinstance(found, str | bytes | int | float | type | Path):
            continue
        seen.add(id(found))
        if isinstance(found, KVArena):  # its tensors begin on a page of a slightly larger buffer
            spans += [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in found.groups]
        elif isinstance(found, torch.Tensor):
            memory = found.untyped_storage()
            spans.append((memory.data_ptr(), memory.data_ptr() + memory.nbytes()))
        elif isinstance(found, dict):
            queue += [*found.values()]
        elif isinstance(found, list | tuple | set | frozenset):
            queue += [*found]
        elif type(found).__module__.startswith(("engine.", "transformers.cache_utils")):
            names = {
                *getattr(found, "__dict__", ()),
                *(n for c in type(found).__mro__ for n in getattr(c, "__slots__", ())),
            }
            queue += [
                getattr(found, name) for name in names if name not in ("_model", "_config") and hasattr(found, name)
            ]
    total, end = 0, 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def check_sums(engine: Engine, root: Path) -> CacheReported:
    """The report's sums are those of the tensors in this process and of the files on disk."""
    report = engine.report()
    assert report.memory_bytes == pytest.approx(tensor_bytes(caches_of(engine)), rel=0.01)
    assert report.disk_bytes == sum(path.stat().st_size for path in files_on_disk(root))
    resident_rows = [one for one in report.conversations if one.memory_bytes]
    own = sum(one.memory_bytes - one.shared_bytes for one in resident_rows)
    shared = report.shared_bytes if any(one.shared_bytes for one in resident_rows) else 0  # else it is the disk's
    assert own + shared == pytest.approx(report.memory_bytes, rel=0.01)
    return report


def pressure(engine: Engine) -> list[PressureActed]:
    return [event for event in engine.events if isinstance(event, PressureActed)]


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write fails: the disk is full."""

    def write(self: ScratchFile, data: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ScratchFile, "write", write)


# -- sharing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["active", "parked", "disk"])
def test_a_new_chat_starts_from_the_longest_prefix_any_other_has_to_the_token(
    start_engine: StartEngine, roomy_model: Path, cold_reply: ColdReply, where: str
) -> None:
    engine = start_engine(roomy_model)
    shared = system(CHUNK_TOKENS + 75)
    first = [shared, user("the first question")]
    engine.reply("a", first)
    if where == "parked":
        engine.reply("else", [user("something else")])
    if where == "disk":
        engine = start_engine(roomy_model)
    second = [shared, user("the second one")]
    expected = common_prefix(prompt_ids(engine, first), prompt_ids(engine, second))
    reply = engine.reply("b", list(second))
    assert reply.statistics.reused_tokens == expected
    assert expected > CHUNK_TOKENS + 75
    assert reply.statistics.prefilled_tokens == reply.statistics.prompt_tokens - expected
    assert reply.statistics.miss_code is None
    assert reply.token_ids == cold_reply(roomy_model, second).token_ids


def test_an_active_chat_takes_over_what_another_one_has_beyond_it(
    start_engine: StartEngine, roomy_model: Path, cold_reply: ColdReply
) -> None:
    """Its memory grew amid a forward pass and is now written to outside of one."""
    engine = start_engine(roomy_model)
    messages = [user(digits(300))]
    engine.reply("a", messages)
    longer = [*messages, user(digits(200, 1))]
    engine.reply("b", list(longer))
    engine.reply("a", [*messages, user("go on")], max_new_tokens=60)
    reply = engine.reply("a", list(longer))
    assert reply.statistics.prefilled_tokens == 1
    assert reply.token_ids == cold_reply(roomy_model, longer).token_ids


def test_what_chats_share_is_there_once_in_memory_and_once_on_disk(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(roomy_model)
    shared = system(3 * CHUNK_TOKENS)
    chats = {name: [shared, user(f"question {name}")] for name in "abc"}
    for name, messages in chats.items():
        engine.reply(name, messages)
    report = check_sums(engine, tmp_path)
    blocks = (3 * CHUNK_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS * TOKEN_BYTES
    assert report.shared_bytes == pytest.approx(blocks, rel=0.03)
    assert row(report, "a").shared_bytes == row(report, "b").shared_bytes == report.shared_bytes
    a, b = resident(engine, "a"), resident(engine, "b")
    assert [one is other for one, other in zip(a.blocks, b.blocks, strict=False)][: 3 * 8] == [True] * 3 * 8
    chunks = list((tmp_path / "kv").glob("*/chunks/*/*"))
    assert len(chunks) == 3 + 3  # three that are shared, and a tail each
    manifests = [caches_of(engine).persistence.catalog.manifest(name) for name in chats]
    assert len({one.chunks[:3] for one in manifests if one is not None}) == 1
    engine.reply("a", [*chats["a"], user("more")])
    check_sums(engine, tmp_path)


def test_a_chat_that_is_forgotten_takes_only_its_own(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(roomy_model)
    shared = system(2 * CHUNK_TOKENS)
    chats = {name: [shared, user(f"question {name}")] for name in "abc"}
    for name, messages in chats.items():
        engine.reply(name, messages)
    engine.forget("a")
    report = check_sums(engine, tmp_path)
    assert [one.conversation_id for one in report.conversations] == ["c", "b"]
    assert len(list((tmp_path / "kv").glob("*/chunks/*/*"))) == 2 + 2
    engine.forget("c")
    report = check_sums(engine, tmp_path)
    assert report.shared_bytes == 0
    chats["b"].append(user("still there?"))
    reply = engine.reply("b", list(chats["b"]))
    assert reply.statistics.miss_code is None
    assert reply.token_ids == cold_reply(roomy_model, chats["b"]).token_ids
    engine.forget("b")
    assert check_sums(engine, tmp_path).disk_bytes == 0
    assert files_on_disk(tmp_path) == []
    assert caches_of(engine).pool.nbytes == 0


def test_branch_edit_regenerate_delete_feed_and_hold_only_what_is_new(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(roomy_model)
    steps: list[tuple[str, int, int, int, int]] = []

    def step(name: str, conversation: str, messages: list[ChatMessage]) -> Finished:
        finished = engine.reply(conversation, list(messages))
        written = [event.bytes_written for event in engine.events if isinstance(event, SnapshotSaved)][-1]
        report = check_sums(engine, tmp_path)
        statistics = finished.statistics
        steps.append((name, statistics.prefilled_tokens, statistics.prompt_tokens, report.memory_bytes, written))
        assert finished.token_ids == cold_reply(roomy_model, messages).token_ids, name
        return finished

    messages: list[ChatMessage] = []
    for turn in range(5):
        messages.append(user(digits(60, turn)))
        engine.reply("a", messages)
    assert len(messages) == 10

    branched = step("branch at 6", "b", [*messages[:6], user("another way")])
    assert branched.statistics.prefilled_tokens < 40
    assert branched.statistics.miss_code is None
    edited = step("edit 3 of 10", "a", [*messages[:2], user("instead of the third")])
    assert edited.statistics.prefilled_tokens < 50
    assert edited.statistics.miss_code is None
    again = step("regenerate", "a", [*messages[:2], user("instead of the third")])
    assert again.statistics.prefilled_tokens == 1
    assert again.token_ids == edited.token_ids
    before = engine.report()
    engine.forget("a")
    after = check_sums(engine, tmp_path)
    steps.append(("delete the first", 0, 0, after.memory_bytes, after.disk_bytes - before.disk_bytes))
    assert after.memory_bytes < before.memory_bytes
    assert after.disk_bytes < before.disk_bytes
    more = [*messages[:6], user("another way"), ChatMessage(Role.ASSISTANT, branched.text, branched.token_ids)]
    last = step("go on in branch", "b", [*more, user("and then?")])
    assert last.statistics.prefilled_tokens < 40
    assert last.statistics.miss_code is None
    print(f"\n\n{'step':18} {'fed':>5} {'of':>5} {'bytes in memory':>16} {'bytes written':>14}")
    for name, fed, prompt, memory, written in steps:
        print(f"{name:18} {fed:5} {prompt:5} {memory:16,} {written:14,}")


def test_editing_message_3_and_keeping_the_rest_reads_again_from_there_and_says_so(
    start_engine: StartEngine, roomy_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(roomy_model)
    messages: list[ChatMessage] = []
    for turn in range(5):
        messages.append(user(digits(60, turn)))
        engine.reply("a", messages)
    edited = [*messages[:2], user("another third message"), *messages[3:], user("and?")]
    unchanged = common_prefix(prompt_ids(engine, messages), prompt_ids(engine, edited))
    reply = engine.reply("a", list(edited))
    assert reply.statistics.reused_tokens == unchanged
    assert reply.statistics.miss_code == MissCode.HISTORY_CHANGED
    assert reply.token_ids == cold_reply(roomy_model, edited).token_ids


# -- waste -------------------------------------------------------------------------------------------------------------


def test_waste_stays_under_four_percent_from_400_tokens_on(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model)
    for length in range(400, 461, 3):
        frame = 17
        engine.reply(f"c{length}", [user(digits(length - frame, length))], max_new_tokens=1)
        report = engine.report()
        active = row(report, f"c{length}")
        assert active.tokens >= length
        assert active.waste_bytes < 0.04 * active.memory_bytes
        assert report.waste_ratio < 0.04
        for one in report.conversations:
            assert one.memory_bytes <= one.tokens * TOKEN_BYTES / 0.96


@pytest.mark.parametrize("long", [700, 1700])
def test_a_cut_chat_gives_back_what_it_no_longer_needs(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path, long: int
) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(400))]
    engine.reply("a", messages)
    engine.reply("a", [*messages, user(digits(long - 450, 1))])
    assert row(engine.report(), "a").tokens >= long - 50
    engine.reply("a", [*messages, user("short")])
    report = engine.report()
    assert row(report, "a").tokens < 480
    assert row(report, "a").waste_bytes < 0.04 * row(report, "a").memory_bytes
    assert report.waste_ratio < 0.04


# -- pressure ----------------------------------------------------------------------------------------------------------


def set_budget(engine: Engine, nbytes: int) -> None:
    relief = caches_of(engine)._relief
    relief._config = dataclasses.replace(relief._config, memory_budget_bytes=nbytes)


def quantized(engine: Engine, *, is_incognito: bool = False, is_saved: bool = True) -> list[ChatMessage]:
    """Chat "a", quantized because "b" needed its memory."""
    messages = [user(digits(400))]
    engine.reply("a", messages, is_incognito=is_incognito)
    engine.reply("b", [user(digits(400, 1))])
    report = engine.report()
    assert row(report, "a").precision in ("int8", "mixed"), pressure(engine)
    assert row(report, "a").memory_bytes < 0.6 * 400 * TOKEN_BYTES
    return messages


BUDGET = 660_000  # two chats of 400 tokens do not fit, one and a quantized one do


@pytest.mark.usefixtures("no_disk")
def test_quantized_without_a_disk_it_answers_from_eight_bits_says_so_and_is_not_shared(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=BUDGET)
    messages = quantized(engine)
    set_budget(engine, 2 * BUDGET)
    same = [*messages[:1]]
    stranger = engine.reply("c", list(same))
    assert stranger.statistics.reused_tokens < 20  # the template's first words, from "b"
    assert stranger.statistics.cache.precision == "fp32"
    engine.forget("c")
    messages.append(user("go on"))
    if row(engine.report(), "a").precision == "fp32":
        pytest.fail("the chat should have stayed quantized")
    reply = engine.reply("a", list(messages))
    assert reply.statistics.cache.precision == "int8"
    assert reply.statistics.reused_tokens > 400
    assert reply.statistics.miss_code is None
    assert not resident(engine, "a").is_exact
    other = engine.reply("d", [*messages[:1]])
    assert other.statistics.reused_tokens < 20
    assert files_on_disk(tmp_path) == []
    problems = [event for event in engine.events if isinstance(event, SnapshotNotSaved)]
    assert {problem.code for problem in problems} <= {SaveProblem.DISK_FULL, SaveProblem.DISK_ERROR}


def test_a_quantized_chat_with_its_snapshot_on_disk_comes_back_exact(
    start_engine: StartEngine, roomy_model: Path, cold_reply: ColdReply, tmp_path: Path, engine_config: EngineConfig
) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=BUDGET)
    messages = quantized(engine)
    messages.append(user("go on"))
    reply = engine.reply("a", list(messages))
    came_back = [layer.clone() for layer in resident(engine, "a").working.arena.keys]  # type: ignore[union-attr]
    length = resident(engine, "a").length
    assert reply.statistics.cache.precision == "fp32"
    assert reply.statistics.reused_tokens > 400
    assert reply.statistics.miss_code is None
    engine = start_engine(roomy_model, kv_dir=tmp_path / "never-evicted")
    kept = [*messages[:1]]
    engine.reply("a", kept)
    kept.append(user("go on"))
    never_evicted = engine.reply("a", list(kept))
    assert reply.token_ids == never_evicted.token_ids
    working = resident(engine, "a").working
    assert working is not None
    assert all(
        torch.equal(mine[:length], theirs[:length]) for mine, theirs in zip(came_back, working.arena.keys, strict=True)
    )


def test_eight_bits_never_replace_an_exact_snapshot(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold_reply: ColdReply
) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=BUDGET)
    messages = quantized(engine)
    before = {path: path.read_bytes() for path in files_on_disk(tmp_path) if path.stem == "a"}
    messages.append(user("go on"))
    monkeypatch.setattr(MeasuredRates, "load_s", lambda self, nbytes: 1e6)  # the disk is too slow to wait for
    reply = engine.reply("a", list(messages))
    assert reply.statistics.cache.precision == "int8"
    monkeypatch.undo()
    monkeypatch.setattr("engine.model.loader.compute_dtype", lambda device: torch.float32)
    assert {path: path.read_bytes() for path in before} == before
    engine = start_engine(roomy_model)
    resumed = engine.reply("a", list(messages))
    assert resumed.statistics.cache.precision == "fp32"
    assert resumed.statistics.miss_code is None
    assert resumed.token_ids == cold_reply(roomy_model, messages).token_ids


@pytest.mark.usefixtures("no_disk")
def test_an_inexact_chat_that_meets_an_exact_one_is_exact_all_through_or_does_not_pass_for_it(
    start_engine: StartEngine, roomy_model: Path, cold_reply: ColdReply
) -> None:
    """The exact chat holds more of the edited prompt than the quantized one: a mixture must not be called exact."""
    engine = start_engine(roomy_model, memory_budget_bytes=BUDGET)
    messages = quantized(engine)
    set_budget(engine, 1 << 30)
    longer = [*messages, user(digits(100, 7))]
    exact = engine.reply("e", list(longer))
    assert exact.statistics.cache.precision == "fp32"
    assert engine.reply("a", [*messages, user("go on")]).statistics.cache.precision == "int8"
    edited = engine.reply("a", list(longer))
    assert edited.statistics.cache.precision == "fp32"
    assert edited.token_ids == exact.token_ids == cold_reply(roomy_model, longer).token_ids
    working = resident(engine, "a").working
    assert working is not None
    known = 400 + 100
    start = 0
    for block in resident(engine, "e").blocks[: known // BLOCK_TOKENS]:
        for mine, theirs in zip(working.arena.read(start, start + BLOCK_TOKENS), block.tensors, strict=True):
            assert torch.equal(mine, theirs)
        start += BLOCK_TOKENS
    engine.reply("z", [user("the others are parked")])
    assert all(block.encoded is None for block in resident(engine, "a").blocks)
    assert resident(engine, "a").blocks[10] is resident(engine, "e").blocks[10]


def test_a_pinned_chat_gives_way_last(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=1_000_000)
    engine.worker.submit(Pin(frozenset({"a"})))
    for number, name in enumerate("abcde"):
        engine.reply(name, [user(digits(400, number))])
    acted = [event.conversation_id for event in pressure(engine) if event.action in ("quantize", "drop")]
    assert acted
    assert acted[0] == "b"
    report = engine.report()
    assert row(report, "a").is_pinned
    assert row(report, "a").state is CacheState.WARM
    assert row(report, "b").state is CacheState.ON_DISK or row(report, "b").precision == "int8"
    if "a" in acted:
        assert {"b", "c", "d"} <= set(acted[: acted.index("a")])


def test_actions_come_in_order_and_their_bytes_add_up(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=900_000)
    for number, name in enumerate("abcd"):
        engine.events.clear()
        before = engine.report().memory_bytes
        engine.reply(name, [user(digits(400, number))])
        acted = pressure(engine)
        for first, second in itertools.pairwise(acted):
            if second.memory_bytes <= first.memory_bytes:  # of one plan; the next one comes after the new chat
                assert first.memory_bytes - second.bytes_freed == second.memory_bytes
        if acted and not acted[0].bytes_freed:
            assert acted[0].memory_bytes >= before
        for event in acted:
            assert event.budget_bytes == 900_000
            assert (event.bytes_freed > 0) == (event.action in ("quantize", "drop"))
    engine.events.clear()
    engine.reply("e", [user(digits(900, 9))])
    names = [(event.conversation_id, event.action) for event in pressure(engine)]
    dropped = [name for name, action in names if action == "drop"]
    assert dropped == sorted(dropped)  # least recently used first
    for name in dropped:
        saves = [index for index, one in enumerate(names) if one == (name, "save")]
        assert all(index < names.index((name, "drop")) for index in saves)


def test_eight_chats_in_a_tiny_budget_visited_at_random_answer_as_with_a_huge_one(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path
) -> None:
    rng = random.Random(8)
    visits = [rng.randrange(8) for _ in range(60)]

    def run(engine: Engine, budget: int) -> list[Finished]:
        chats = [[user(digits(250 + 20 * number, number))] for number in range(8)]
        replies = []
        for visit in visits:
            replies.append(engine.reply(f"c{visit}", chats[visit], max_new_tokens=4))
            chats[visit].append(user("more"))
            caches = caches_of(engine)
            buffer = max(one.working.held_bytes for one in caches.residents if one.working is not None)
            assert tensor_bytes(caches.residents) <= budget + buffer
        return replies

    tiny = run(start_engine(roomy_model, memory_budget_bytes=800_000), 800_000)
    huge = run(start_engine(roomy_model, kv_dir=tmp_path / "huge"), 1 << 40)
    assert [one.token_ids for one in tiny] == [one.token_ids for one in huge]
    assert {one.statistics.cache.precision for one in tiny} == {"fp32"}
    assert {one.statistics.miss_code for one in tiny} == {None}
    assert [one.statistics.prefilled_tokens for one in tiny] == [one.statistics.prefilled_tokens for one in huge]


@pytest.mark.parametrize("family", ["gemma3_text", "lfm2", "llama4_text"])
def test_chats_that_only_have_checkpoints_are_parked_shared_dropped_and_regenerated_as_well(
    start_engine: StartEngine, tmp_path: Path, family: str
) -> None:
    """Visits, edits and regenerated replies, pairs of chats with one beginning: in a tiny budget, and in a huge one."""
    model = BY_NAME[family].save(tmp_path / family)
    rng = random.Random(4)
    plan = [(rng.randrange(4), rng.choice(["go on", "go on", "regenerate", "edit"])) for _ in range(24)]

    def run(engine: Engine) -> list[Finished]:
        chats = [[system(90, seed // 2), user(digits(20, seed))] for seed in range(4)]
        replies = []
        for visit, action in plan:
            messages = chats[visit]
            if len(messages) > 2:
                match action:
                    case "go on":
                        messages.append(user("more"))
                    case "regenerate":
                        messages.pop()
                    case "edit":
                        messages[-2:] = [user("edited")]
            replies.append(engine.reply(f"c{visit}", messages, max_new_tokens=5))
        return replies

    tiny = start_engine(model, memory_budget_bytes=150_000)
    visited = run(tiny)
    check_sums(tiny, tmp_path)
    assert {"drop"} <= {event.action for event in pressure(tiny)}
    huge = run(start_engine(model, kv_dir=tmp_path / "huge"))
    assert [one.token_ids for one in visited] == [one.token_ids for one in huge]
    fed = [one.statistics.prefilled_tokens for one in visited]
    assert sum(fed) <= sum(one.statistics.prompt_tokens for one in visited) // 3


# -- forgetting, incognito ---------------------------------------------------------------------------------------------


def test_forgetting_a_parked_chat_and_one_that_is_being_saved_leaves_nothing(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(roomy_model)
    engine.reply("parked", [user(digits(300))])
    engine.reply("active", [user(digits(300, 1))])
    engine.forget("parked")
    assert [one.conversation_id for one in check_sums(engine, tmp_path).conversations] == ["active"]
    for number in range(5):
        engine.reply("saving", [user(digits(600, number + 2))], max_new_tokens=2, is_saved=False)
        engine.worker.submit(Forget("saving"))
    engine.forget("active")
    assert check_sums(engine, tmp_path).conversations == ()
    assert files_on_disk(tmp_path) == []


def test_an_incognito_chat_writes_nothing_and_is_not_shared(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(300))]
    engine.reply("secret", messages, is_incognito=True)
    assert {e.code for e in engine.events if isinstance(e, SnapshotNotSaved)} == {SaveProblem.INCOGNITO}
    assert files_on_disk(tmp_path) == []
    assert engine.reply("b", [*messages[:1]]).statistics.reused_tokens == 0  # active
    messages.append(user("go on"))
    reply = engine.reply("secret", list(messages), is_incognito=True)
    assert reply.statistics.miss_code is None
    assert reply.statistics.reused_tokens > 300
    assert reply.token_ids == cold_reply(roomy_model, messages).token_ids
    engine.forget("b")
    engine.reply("park", [user("hello")])
    engine.forget("park")
    assert engine.reply("c", [*messages[:1]]).statistics.reused_tokens < 20  # parked
    engine.forget("c")
    assert files_on_disk(tmp_path) == []
    engine = start_engine(roomy_model)
    assert engine.reply("secret", list(messages), is_incognito=True).statistics.reused_tokens == 0


def test_an_incognito_chat_is_quantized_rather_than_saved(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=BUDGET)
    messages = quantized(engine, is_incognito=True)
    assert [path.stem for path in files_on_disk(tmp_path) if path.suffix == ".json"] == ["b"]
    messages.append(user("go on"))
    reply = engine.reply("a", list(messages), is_incognito=True)
    assert reply.statistics.cache.precision == "int8"
    assert reply.statistics.reused_tokens > 400


def test_eight_bits_that_were_saved_do_not_pass_for_an_exact_snapshot_after_a_restart(
    start_engine: StartEngine, roomy_model: Path, monkeypatch: pytest.MonkeyPatch, cold_reply: ColdReply
) -> None:
    """The disk was full when the chat was quantized, and is not any more."""
    engine = start_engine(roomy_model, memory_budget_bytes=BUDGET)
    with monkeypatch.context() as full:

        def write(self: ScratchFile, data: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(ScratchFile, "write", write)
        messages = quantized(engine)
    messages.append(user("go on"))
    assert engine.reply("a", messages).statistics.cache.precision == "int8"
    messages.append(user("and after a restart"))
    engine = start_engine(roomy_model)
    reply = engine.reply("a", list(messages))
    assert reply.statistics.cache.precision == "int8"  # rather than reading it all again
    assert reply.statistics.reused_tokens > 400
    assert reply.statistics.miss_code is None
    assert not resident(engine, "a").is_exact
    stranger = engine.reply("c", [*messages[:1]])
    assert stranger.statistics.reused_tokens < 20
    assert stranger.statistics.cache.precision == "fp32"
    assert stranger.token_ids == cold_reply(roomy_model, [*messages[:1]]).token_ids


# -- lengths and templates ---------------------------------------------------------------------------------------------

BARE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def with_template(model: Path, folder: Path, template: str) -> Path:
    """The same weights with another chat template."""
    shutil.copytree(model, folder)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("is_closed", [False, True], ids=["parked", "restarted"])
def test_at_the_ends_of_blocks_and_chunks_nothing_is_lost(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path, cold_reply: ColdReply, is_closed: bool
) -> None:
    model = with_template(roomy_model, tmp_path / "bare", BARE)
    ends = (BLOCK_TOKENS, 2 * BLOCK_TOKENS, CHUNK_TOKENS)
    lengths = [1, 2, *(end + more for end in ends for more in (-1, 0, 1))]
    engine = start_engine(model)
    chats = {length: [user(digits(length, length))] for length in lengths}
    for length, messages in chats.items():
        first = engine.reply(str(length), messages, max_new_tokens=1)
        assert first.statistics.prompt_tokens == length
    if is_closed:
        engine = start_engine(model)
    for length, messages in chats.items():
        messages.append(user("7"))
        reply = engine.reply(str(length), list(messages))
        assert reply.statistics.prefilled_tokens <= 2
        assert reply.statistics.miss_code is None
        assert reply.token_ids == cold_reply(model, messages).token_ids


def test_a_prompt_without_a_token_is_no_bug(start_engine: StartEngine, roomy_model: Path, tmp_path: Path) -> None:
    engine = start_engine(with_template(roomy_model, tmp_path / "bare", BARE))
    engine.worker.submit(Generate("a", "empty", (user(""),), GREEDY, 4))
    answer = engine.wait(Finished, Failed, request_id="empty")
    assert not isinstance(answer, Failed) or answer.code != "bug"
    assert engine.reply("a", [user("7")]).token_ids


def test_a_template_that_strips_reasoning_costs_next_to_nothing_from_the_second_turn_on(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path, cold_reply: ColdReply, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_template(roomy_model, tmp_path / "reasoning", REASONING)
    tokenizer = build_tokenizer()
    original, script = Sampler.sample, list[int]()

    def sample(self: Sampler, logits: torch.Tensor) -> int:
        return script.pop(0) if script else original(self, logits)

    monkeypatch.setattr(Sampler, "sample", sample)
    engine = start_engine(model)
    messages: list[ChatMessage] = []
    for turn in range(4):
        messages.append(user(digits(200, turn)))
        thought = f"<think>{digits(80, 100 + turn)}</think>"
        script[:] = [*tokenizer.encode(f"{thought}{digits(60, 50 + turn)}"), tokenizer.eos_token_id]
        reply = engine.reply("a", messages, max_new_tokens=400)
        assert "</think>" in reply.text
        if turn:
            history = reply.statistics.prompt_tokens - 200
            question = len(tokenizer.encode(f"<|start|>user\n{digits(200)}<|end|>\n<|start|>assistant\n"))
            assert reply.statistics.prefilled_tokens <= 0.02 * history + question
            assert reply.statistics.miss_code is None
    messages.append(user("so?"))
    assert engine.reply("a", list(messages)).token_ids == cold_reply(model, messages).token_ids


def test_a_template_that_writes_the_first_token_itself_does_not_get_it_twice(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path
) -> None:
    from tokenizers.processors import TemplateProcessing

    folder = with_template(roomy_model, tmp_path / "bos", "{{ bos_token }}" + TEMPLATE.replace("<|start|>", "/"))
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE.replace("<|start|>", "/")
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", bos)]
    )
    tokenizer.save_pretrained(folder)
    assert tokenizer.encode("x")[0] == bos  # it would add one
    engine = start_engine(folder)
    messages = [user("hello")]
    engine.reply("a", messages)
    messages.append(user("again"))
    ids = prompt_ids(engine, messages)
    assert ids[0] == bos
    assert ids[1:].count(bos) == sum(list(message.token_ids or ()).count(bos) for message in messages)
    assert engine.reply("a", messages).statistics.miss_code is None


def test_a_changed_chat_template_is_named_as_the_reason(
    start_engine: StartEngine, roomy_model: Path, tmp_path: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(300))]
    engine.reply("a", messages)
    changed = with_template(roomy_model, tmp_path / "changed", TEMPLATE.replace("{{ m['role'] }}", "<{{ m['role'] }}>"))
    engine = start_engine(changed)
    messages.append(user("go on"))
    reply = engine.reply("a", list(messages))
    assert reply.statistics.reused_tokens < 20
    assert reply.statistics.miss_code == MissCode.TEMPLATE_CHANGED
    assert reply.token_ids == cold_reply(changed, messages).token_ids


# -- out of memory -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run_out_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any, str, int], list[int]]]:
    """Makes the n-th call of a method fail for want of memory, once; returns the count of calls."""

    def patch(owner: Any, name: str, at: int) -> list[int]:
        original, calls = getattr(owner, name), [0]

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == at:
                raise RuntimeError(OUT_OF_MEMORY)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)
        return calls

    return patch


@pytest.mark.parametrize(
    ("owner", "name", "at"),
    [
        (ContiguousLayer, "update", 2),
        (ContiguousLayer, "update", 29),
        (Resident, "copy_to", 1),
        ("engine.kv.manager.CacheManager", "_new_cache", 1),
    ],
    ids=["prefill", "decode", "copying a prefix", "making the cache"],
)
def test_memory_that_runs_out_once_costs_other_chats_their_place_and_no_wrong_word(
    start_engine: StartEngine,
    roomy_model: Path,
    run_out_once: Callable[[Any, str, int], list[int]],
    cold_reply: ColdReply,
    owner: Any,
    name: str,
    at: int,
) -> None:
    messages = [user(digits(100)), user("go on")]
    expected = cold_reply(roomy_model, messages).token_ids
    engine = start_engine(roomy_model)
    engine.reply("other", [user(digits(100)), user("something else")])
    engine.reply("third", [user(digits(300, 3))])
    calls = run_out_once(CacheManager if isinstance(owner, str) else owner, name, at)
    engine.events.clear()
    reply = engine.reply("a", list(messages))
    assert calls[0] >= at
    assert reply.token_ids == expected
    assert NOTE in reply.notes
    assert {event.action for event in pressure(engine)} <= {"save", "drop"}
    assert pressure(engine)
    assert engine.reply("a", list(messages)).token_ids == expected


def test_memory_that_runs_out_while_a_snapshot_is_restored(
    start_engine: StartEngine,
    roomy_model: Path,
    run_out_once: Callable[[Any, str, int], list[int]],
    cold_reply: ColdReply,
) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(400))]
    engine.reply("a", messages)
    engine = start_engine(roomy_model)
    engine.reply("other", [user(digits(300, 3))])
    calls = run_out_once(StoreReader, "read_chunks", 1)
    messages.append(user("go on"))
    reply = engine.reply("a", list(messages))
    assert calls[0] == 2
    assert reply.statistics.reused_tokens > 400
    assert NOTE in reply.notes
    assert reply.token_ids == cold_reply(roomy_model, messages).token_ids


def test_memory_that_runs_out_while_a_chat_is_quantized_puts_it_away_instead(
    start_engine: StartEngine,
    roomy_model: Path,
    run_out_once: Callable[[Any, str, int], list[int]],
    cold_reply: ColdReply,
) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=BUDGET)
    messages = [user(digits(400))]
    engine.reply("a", messages)
    calls = run_out_once(AffineCodec, "encode", 2)
    other = [user(digits(400, 1))]
    reply = engine.reply("b", list(other))
    assert calls[0] >= 2
    assert reply.token_ids == cold_reply(roomy_model, other).token_ids
    messages.append(user("go on"))
    assert engine.reply("a", list(messages)).token_ids == cold_reply(roomy_model, messages).token_ids


def test_memory_that_runs_out_while_a_model_loads_is_told_and_the_next_load_works(
    start_engine: StartEngine, roomy_model: Path, run_out_once: Callable[[Any, str, int], list[int]]
) -> None:
    engine = start_engine()
    calls = run_out_once(AutoModelForCausalLM, "from_pretrained", 1)
    answer = engine.load(roomy_model)
    if isinstance(answer, Failed):
        assert answer.code != "bug"
        answer = engine.load(roomy_model)
    assert isinstance(answer, ModelLoaded)
    assert calls[0] == 2
    assert engine.reply("a", [user("hello")]).token_ids


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_save_that_is_not_needed_is_answered_too(
    start_engine: StartEngine, roomy_model: Path, monkeypatch: pytest.MonkeyPatch, is_saved: bool
) -> None:
    """The window waits for the end of saving: it has to hear of it after every reply."""
    engine = start_engine(roomy_model, memory_budget_bytes=BUDGET)
    messages = quantized(engine, is_incognito=not is_saved)
    messages.append(user("go on"))
    monkeypatch.setattr(MeasuredRates, "load_s", lambda self, nbytes: 1e6)
    reply = engine.reply("a", messages)
    assert reply.statistics.cache.precision == "int8"
    kind = SnapshotSaved if is_saved else SnapshotNotSaved
    assert [event for event in engine.events if isinstance(event, kind)][-1].conversation_id == "a"


def test_the_pool_counts_what_it_holds(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=BUDGET)
    for number in range(6):
        engine.reply(f"c{number}", [user(digits(200 + 30 * number, number))])
        pool: BlockPool = caches_of(engine).pool
        assert pool.nbytes == tensor_bytes([one.blocks for one in caches_of(engine).residents])
