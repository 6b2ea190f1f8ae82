"""A conversation after a restart: exact, or read again with the reason; never wrong."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.kv.block_keys import CHUNK_TOKENS
from engine.kv.store.manifest import read_manifest
from engine.kv.store.records import Manifest
from engine.protocol.commands import ChatMessage, Role, Verify
from engine.protocol.config import Weights
from engine.protocol.events import Finished, ModelLoaded, Verified
from engine.protocol.misses import MissCode
from tests.engine.conftest import ColdReply, Engine, build_model, user

StartEngine = Callable[..., Engine]
LONG = "the quick brown fox " * 75  # a little more than one chunk on disk


def manifest_file(root: Path, conversation: str = "a") -> Path:
    return next((root / "kv").glob(f"*/conversations/{conversation}.json"))


def manifest_of(root: Path, conversation: str = "a") -> Manifest:
    path = manifest_file(root, conversation)
    digest = hashlib.sha256((path.parents[1] / "fingerprint.json").read_bytes()).hexdigest()
    return read_manifest(path, digest)[0]


def data_file(root: Path, kind: str, key: str) -> Path:
    return next((root / "kv").glob(f"*/{kind}/{key[:2]}/{key}.safetensors"))


def all_files(root: Path) -> list[Path]:
    """All chunks, states and manifests on disk."""
    return [path for kind in ("chunks", "states", "conversations") for path in (root / "kv").glob(f"*/{kind}/**/*.*")]


def two_turns(start_engine: StartEngine, model: Path, between: Callable[[], None]) -> tuple[Finished, Finished]:
    """Turn 2 after `between` happened to the closed program, and turn 2 of the same chat never closed."""
    engine = start_engine(model)
    messages = [user(LONG)]
    engine.reply("a", messages)
    messages.append(user("and then?"))
    never_closed = engine.reply("a", list(messages))
    engine.forget("a")
    assert engine.reply("a", messages[:1]).statistics.reused_tokens == 0
    start_engine()
    between()
    engine = start_engine(model)
    return engine.reply("a", messages), never_closed


@pytest.mark.native_dtype
def test_resumed_equals_never_closed_token_for_token_and_feeds_only_the_new_ones(
    start_engine: StartEngine, tiny_model: Path
) -> None:
    resumed, never_closed = two_turns(start_engine, tiny_model, lambda: None)
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.prefilled_tokens == never_closed.statistics.prefilled_tokens
    assert resumed.statistics.miss_code is None
    assert resumed.statistics.restore_s > 0


def damage(kind: str, path: Path, seed: int) -> None:
    """Change a file in one of the ways disks and hands do."""
    data = bytearray(path.read_bytes())
    rng = random.Random(seed)
    header = 8 + int.from_bytes(data[:8], "little")
    match kind:
        case "header":
            data[rng.randrange(8, min(len(data), header))] ^= 1 << rng.randrange(8)
        case "length":
            data[rng.randrange(0, 8)] ^= 0xFF
        case "ids":
            data[header + rng.randrange(0, 64)] ^= 1 << rng.randrange(8)
        case "body":
            data[rng.randrange(len(data) // 2, len(data))] ^= 1 << rng.randrange(8)
        case "zeros":
            data[header + 2048 :] = bytes(len(data) - header - 2048)
        case "truncated":
            del data[rng.randrange(1, len(data)) :]
        case "empty":
            data.clear()
        case "longer":
            data += b"\0" * 7
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(bytes(data))


KINDS = ["header", "length", "ids", "body", "zeros", "truncated", "empty", "longer", "missing"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [0, 1])
def test_a_damaged_chunk_is_read_again_from_there_with_the_reason_and_the_right_reply(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, kind: str, chunk: int
) -> None:
    def between() -> None:
        damage(kind, data_file(tmp_path, "chunks", manifest_of(tmp_path).chunks[chunk].key), seed=chunk)

    resumed, never_closed = two_turns(start_engine, tiny_model, between)
    statistics = resumed.statistics
    assert resumed.token_ids == never_closed.token_ids
    assert statistics.reused_tokens == chunk * CHUNK_TOKENS
    assert statistics.prefilled_tokens == statistics.prompt_tokens - statistics.reused_tokens
    expected = MissCode.FILE_MISSING if kind == "missing" else MissCode.FILE_DAMAGED
    assert statistics.miss_code == expected
    assert statistics.miss_reason


@pytest.mark.parametrize("kind", ["body", "zeros", "truncated", "empty"])
def test_every_chat_that_shares_a_damaged_chunk_is_told_so(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    """The first one to read it drops it from the disk; the other one has lost what came after it."""
    engine = start_engine(tiny_model)
    document = "the quick brown fox " * 70
    chats = {name: [user(document + f"{name} " * 60)] for name in ("a", "b")}
    for name, messages in chats.items():
        engine.reply(name, messages)
        messages.append(user("and then?"))
    start_engine()
    shared = manifest_of(tmp_path).chunks[0]
    assert shared == manifest_of(tmp_path, "b").chunks[0]
    damage(kind, data_file(tmp_path, "chunks", shared.key), seed=1)
    engine = start_engine(tiny_model)
    codes = [engine.reply(name, messages).statistics.miss_code for name, messages in chats.items()]
    assert codes == [MissCode.FILE_DAMAGED, MissCode.FILE_DAMAGED]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_state_goes_back_to_the_checkpoint_before_it(
    start_engine: StartEngine, window_model: Path, tmp_path: Path, kind: str
) -> None:
    before: list[int] = []

    def between() -> None:
        states = sorted(manifest_of(tmp_path).states, key=lambda state: state.position)
        before.append(states[-2].position)
        damage(kind, data_file(tmp_path, "states", states[-1].key), seed=1)

    resumed, never_closed = two_turns(start_engine, window_model, between)
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.reused_tokens == before[0]
    assert resumed.statistics.miss_code == (MissCode.FILE_MISSING if kind == "missing" else MissCode.FILE_DAMAGED)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("length", "ids", "zeros")])
def test_a_damaged_manifest_is_as_good_as_none_and_the_reason_is_told(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    resumed, never_closed = two_turns(start_engine, tiny_model, lambda: damage(kind, manifest_file(tmp_path), 0))
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.reused_tokens == 0
    assert resumed.statistics.prefilled_tokens == resumed.statistics.prompt_tokens
    assert resumed.statistics.miss_code == (MissCode.NOT_SAVED if kind == "missing" else MissCode.FILE_DAMAGED)


def test_a_damaged_chunk_spoils_nothing_that_came_from_memory(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, cold_reply: ColdReply
) -> None:
    """Part of the chunk is known already, from another chat in memory: reading the file must not write over it."""
    engine = start_engine(tiny_model)
    first = [user(LONG)]
    engine.reply("a", first)
    first.append(user("and then?"))
    path = data_file(tmp_path, "chunks", manifest_of(tmp_path).chunks[0].key)
    engine = start_engine(tiny_model)
    second = [user(LONG[:400] + "another story")]
    engine.reply("b", second)
    assert manifest_of(tmp_path).chunks[0].key == path.stem
    damage("zeros", path, 3)
    resumed = engine.reply("a", list(first))
    assert 0 < resumed.statistics.reused_tokens < CHUNK_TOKENS
    assert resumed.statistics.miss_code == MissCode.FILE_DAMAGED
    assert resumed.token_ids == cold_reply(tiny_model, first).token_ids
    second.append(user("go on"))
    assert engine.reply("b", list(second)).token_ids == cold_reply(tiny_model, second).token_ids


@pytest.mark.parametrize("field", ["shape", "data_offsets"])
def test_absurd_sizes_in_a_header_are_refused_before_anything_is_allocated(
    start_engine: StartEngine, window_model: Path, tmp_path: Path, field: str
) -> None:
    """In a state file, whose shapes are not known beforehand."""

    def between() -> None:
        for state in manifest_of(tmp_path).states:
            path = data_file(tmp_path, "states", state.key)
            data = path.read_bytes()
            size = int.from_bytes(data[:8], "little")
            header = data[8 : 8 + size].replace(f'"{field}":['.encode(), f'"{field}":[99999999'.encode())
            assert header != data[8 : 8 + size]
            path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])

    resumed, never_closed = two_turns(start_engine, window_model, between)
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.reused_tokens == 0
    assert resumed.statistics.miss_code == MissCode.FILE_DAMAGED


@pytest.mark.parametrize("what", ["chunk", "manifest"])
def test_files_of_another_conversation_in_their_place_are_not_used_beyond_what_is_shared(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, cold_reply: ColdReply, what: str
) -> None:
    engine = start_engine(tiny_model)
    first, second = [user("alpha " * 20)], [user("beta " * 30)]
    engine.reply("a", first)
    engine.reply("b", second)
    start_engine()
    if what == "manifest":
        shutil.copyfile(manifest_file(tmp_path, "b"), manifest_file(tmp_path, "a"))
    else:
        mine, theirs = (data_file(tmp_path, "chunks", manifest_of(tmp_path, one).chunks[0].key) for one in "ab")
        shutil.copyfile(theirs, mine)
    engine = start_engine(tiny_model)
    first.append(user("go on"))
    swapped = engine.reply("a", list(first))
    assert swapped.token_ids == cold_reply(tiny_model, first).token_ids
    assert swapped.statistics.miss_code is not None
    second.append(user("go on"))
    assert engine.reply("b", list(second)).token_ids == cold_reply(tiny_model, second).token_ids


def test_another_model_of_the_same_shape_misses_and_says_that_the_model_changed(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, cold_reply: ColdReply
) -> None:
    twin = build_model(tmp_path / "twin", seed=1)
    engine = start_engine(tiny_model)
    messages = [user("whose cache is this?")]
    engine.reply("a", messages)
    messages.append(user("mine?"))
    engine = start_engine(twin)
    other = engine.reply("a", list(messages))
    assert other.statistics.reused_tokens == 0
    assert other.statistics.miss_reason == "the model changed"
    assert other.statistics.miss_code == MissCode.MODEL_CHANGED
    assert other.token_ids == cold_reply(twin, messages).token_ids


def test_changing_the_model_in_a_running_engine_never_mixes_caches(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, cold_reply: ColdReply
) -> None:
    twin = build_model(tmp_path / "twin", seed=1)
    engine = start_engine(tiny_model)
    messages = [user("first")]
    engine.reply("a", messages)
    messages.append(user("second"))
    assert isinstance(engine.load(twin), ModelLoaded)
    mixed = engine.reply("a", list(messages))
    assert mixed.statistics.miss_code == MissCode.MODEL_CHANGED
    assert mixed.token_ids == cold_reply(twin, messages).token_ids
    assert isinstance(engine.load(tiny_model), ModelLoaded)
    back = engine.reply("a", list(messages))
    assert back.statistics.reused_tokens > 0
    assert back.token_ids == cold_reply(tiny_model, messages).token_ids


def test_other_weight_precision_misses_and_names_both(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(tiny_model)
    messages = [user("sixteen bits")]
    engine.reply("a", messages)
    messages.append(user("and four?"))
    engine = start_engine(tiny_model, Weights.BITS_4)
    quantized = engine.reply("a", list(messages))
    assert quantized.statistics.miss_reason == "weights changed: saved with 16bit, now 4bit"
    assert quantized.statistics.miss_code == MissCode.SETTINGS_CHANGED
    report = engine.report()
    both = sum(file.stat().st_size for file in all_files(tmp_path))
    assert report.disk_bytes == report.conversations[0].disk_bytes == both
    engine = start_engine(tiny_model)
    assert engine.reply("a", list(messages)).statistics.miss_code is None


def test_a_rope_change_misses(start_engine: StartEngine, tiny_model: Path, tmp_path: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user("turn around")]
    engine.reply("a", messages)
    start_engine()
    changed = tmp_path / "changed"
    shutil.copytree(tiny_model, changed)
    config = (changed / "config.json").read_text()
    assert "10000.0" in config
    (changed / "config.json").write_text(config.replace("10000.0", "20000.0"))
    messages.append(user("again"))
    engine = start_engine(changed)
    statistics = engine.reply("a", messages).statistics
    assert statistics.reused_tokens == 0
    assert statistics.miss_code == MissCode.SETTINGS_CHANGED
    assert statistics.miss_params["field"] == "rope"


def test_switching_between_a_larger_and_a_smaller_chat_restores_both_exactly(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    chats = {"large": [user("large " * 50)], "small": [user("s")]}
    for name, messages in chats.items():
        engine.reply(name, messages)
        messages.append(user("next"))
    expected = {name: cold_reply(tiny_model, messages).token_ids for name, messages in chats.items()}
    for order in (("large", "small"), ("small", "large")):
        engine = start_engine(tiny_model)
        for name in order:
            reply = engine.reply(name, list(chats[name]))
            assert reply.token_ids == expected[name]
            assert reply.statistics.miss_code is None


def test_verify_says_equal_and_counts_its_tokens(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user("prove it")]
    engine.reply("a", messages)
    engine = start_engine(tiny_model)
    engine.worker.submit(Verify("a", "v", tuple(messages)))
    verified = engine.wait(Verified)
    assert isinstance(verified, Verified)
    assert verified.equal
    assert verified.tokens_compared == 32
    assert verified.max_logit_error < 1e-3


def test_verify_notices_a_wrong_cache(start_engine: StartEngine, tiny_model: Path) -> None:
    """The proof must be able to fail: keys are changed behind the checksums' back, in memory."""
    engine = start_engine(tiny_model)
    messages = [user("prove it, again and again and again")]
    engine.reply("a", messages)
    caches = engine.runtime._caches
    assert caches is not None
    cache = caches.active_cache("a")
    assert cache is not None
    with torch.inference_mode():
        cache.arena.keys[1][3:9] += 4.0
    engine.worker.submit(Verify("a", "v", tuple(messages)))
    verified = engine.wait(Verified)
    assert isinstance(verified, Verified)
    assert not verified.equal
    assert verified.max_logit_error > verified.noise_floor


def test_an_assistant_message_made_elsewhere_is_tokenized_and_still_right(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    imported = [user("q"), ChatMessage(Role.ASSISTANT, "an imported answer"), user("q2")]
    first = engine.reply("a", list(imported))
    assert engine.reply("b", list(imported)).token_ids == first.token_ids
    assert cold_reply(tiny_model, imported).token_ids == first.token_ids
