"""A conversation after a restart: exact, or read again with the reason; never wrong."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.protocol.commands import ChatMessage, ReportCache, Role, Verify
from engine.protocol.config import Weights
from engine.protocol.events import CacheReported, Finished, ModelLoaded, Verified
from tests.engine.conftest import Engine, build_model, user

StartEngine = Callable[..., Engine]


def snapshot_file(root: Path, conversation: str = "a") -> Path:
    return next((root / "kv").glob(f"*/conversations/{conversation}.safetensors"))


def two_turns(start_engine: StartEngine, model: Path, between: Callable[[], None]) -> tuple[Finished, Finished]:
    """Turn 2 after `between` happened to the closed program, and turn 2 of the same chat never closed."""
    engine = start_engine(model)
    messages = [user("the quick brown fox " * 12)]
    engine.reply("a", messages)
    messages.append(user("and then?"))
    kept = list(messages)
    never_closed = engine.reply("a", list(messages))
    shutil.rmtree(engine_dir := Path(engine.worker._config.kv_dir))
    engine = start_engine(model)
    engine.reply("a", messages[:1])
    start_engine()
    assert engine_dir.exists()
    between()
    engine = start_engine(model)
    return engine.reply("a", kept), never_closed


@pytest.mark.native_dtype
def test_resumed_equals_never_closed_token_for_token_and_feeds_only_the_new_ones(
    start_engine: StartEngine, tiny_model: Path
) -> None:
    resumed, never_closed = two_turns(start_engine, tiny_model, lambda: None)
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.prefilled_tokens == never_closed.statistics.prefilled_tokens
    assert resumed.statistics.miss_reason is None
    assert resumed.statistics.restore_s > 0


def damage(kind: str, path: Path, seed: int) -> None:
    data = bytearray(path.read_bytes())
    rng = random.Random(seed)
    match kind:
        case "header":
            data[rng.randrange(8, 400)] ^= 1 << rng.randrange(8)
        case "length":
            data[rng.randrange(0, 8)] ^= 0xFF
        case "ids":
            start = 8 + int.from_bytes(data[:8], "little")
            data[start + rng.randrange(0, 64)] ^= 1 << rng.randrange(8)
        case "body":
            data[rng.randrange(len(data) // 2, len(data))] ^= 1 << rng.randrange(8)
        case "truncated":
            del data[rng.randrange(1, len(data)) :]
        case "empty":
            data.clear()
        case "longer":
            data += b"\0" * 7
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("kind", ["header", "length", "ids", "body", "truncated", "empty", "longer", "missing"])
@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_snapshot_is_read_again_with_the_reason_and_the_right_reply(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, kind: str, seed: int
) -> None:
    def between() -> None:
        path = snapshot_file(tmp_path)
        if kind == "missing":
            path.unlink()
        else:
            damage(kind, path, seed)

    resumed, never_closed = two_turns(start_engine, tiny_model, between)
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.reused_tokens == 0
    assert resumed.statistics.prefilled_tokens == resumed.statistics.prompt_tokens
    assert resumed.statistics.miss_reason == (
        "no snapshot was kept" if kind == "missing" else resumed.statistics.miss_reason
    )
    assert resumed.statistics.miss_reason is not None


def test_absurd_sizes_in_a_header_are_refused_before_anything_is_allocated(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path
) -> None:
    def between() -> None:
        path = snapshot_file(tmp_path)
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = data[8 : 8 + size].replace(b'"tokens":"', b'"tokens":"99999999', 1)
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])

    resumed, never_closed = two_turns(start_engine, tiny_model, between)
    assert resumed.token_ids == never_closed.token_ids
    assert "size is wrong" in (resumed.statistics.miss_reason or "")


def test_a_snapshot_of_another_conversation_in_its_place_is_not_used_beyond_what_is_shared(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path
) -> None:
    engine = start_engine(tiny_model)
    first, second = [user("alpha " * 20)], [user("beta " * 30)]
    engine.reply("a", first)
    engine.reply("b", second)
    start_engine()
    shutil.copyfile(snapshot_file(tmp_path, "b"), snapshot_file(tmp_path, "a"))
    engine = start_engine(tiny_model)
    first.append(user("go on"))
    swapped = engine.reply("a", first)
    cold = engine.reply("cold", first[:-1])
    assert swapped.token_ids == cold.token_ids
    assert swapped.statistics.miss_reason is not None


def test_another_model_of_the_same_shape_misses_and_says_that_the_model_changed(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path
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
    assert other.token_ids == engine.reply("cold", list(messages)).token_ids


def test_changing_the_model_in_a_running_engine_never_mixes_caches(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path
) -> None:
    twin = build_model(tmp_path / "twin", seed=1)
    engine = start_engine(tiny_model)
    messages = [user("first")]
    engine.reply("a", messages)
    messages.append(user("second"))
    assert isinstance(engine.load(twin), ModelLoaded)
    mixed = engine.reply("a", list(messages))
    assert mixed.statistics.miss_reason == "the model changed"
    assert isinstance(engine.load(tiny_model), ModelLoaded)
    back = engine.reply("a", list(messages))
    assert back.statistics.reused_tokens > 0
    assert back.token_ids == engine.reply("cold", list(messages)).token_ids


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
    engine.worker.submit(ReportCache("r"))
    report = engine.wait(CacheReported)
    assert isinstance(report, CacheReported)
    both = sum(file.stat().st_size for file in (tmp_path / "kv").glob("*/conversations/*"))
    assert report.disk_bytes == report.conversations[0].disk_bytes == both
    engine = start_engine(tiny_model)
    assert engine.reply("a", list(messages)).statistics.miss_reason is None


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
    assert engine.reply("a", messages).statistics.miss_reason == "rope changed"


def test_switching_between_a_larger_and_a_smaller_chat_restores_both_exactly(
    start_engine: StartEngine, tiny_model: Path
) -> None:
    engine = start_engine(tiny_model)
    chats = {"large": [user("large " * 50)], "small": [user("s")]}
    for name, messages in chats.items():
        engine.reply(name, messages)
        messages.append(user("next"))
    expected = {name: engine.reply(f"cold-{name}", list(messages)).token_ids for name, messages in chats.items()}
    for order in (("large", "small"), ("small", "large")):
        engine = start_engine(tiny_model)
        for name in order:
            reply = engine.reply(name, list(chats[name]))
            assert reply.token_ids == expected[name]
            assert reply.statistics.miss_reason is None


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
    import threading

    engine = start_engine(tiny_model)
    messages = [user("prove it, again and again and again")]
    engine.reply("a", messages)
    runtime = None
    for thread in threading.enumerate():
        if thread.name == "ember-engine":
            frame = __import__("sys")._current_frames()[thread.ident]
            while frame is not None and runtime is None:
                runtime = frame.f_locals.get("runtime")
                frame = frame.f_back
    assert runtime is not None
    cache = runtime._caches._caches["a"]
    cache.arena.keys[1][:, 3:9] += 4.0
    engine.worker.submit(Verify("a", "v", tuple(messages)))
    verified = engine.wait(Verified)
    assert isinstance(verified, Verified)
    assert not verified.equal
    assert verified.max_logit_error > verified.noise_floor


def test_an_assistant_message_made_elsewhere_is_tokenized_and_still_right(
    start_engine: StartEngine, tiny_model: Path
) -> None:
    engine = start_engine(tiny_model)
    imported = [user("q"), ChatMessage(Role.ASSISTANT, "an imported answer"), user("q2")]
    first = engine.reply("a", list(imported))
    assert engine.reply("b", list(imported)).token_ids == first.token_ids


@pytest.mark.parametrize(
    ("family", "overrides", "can_resume"),
    [
        ("llama", {}, True),
        ("qwen2", {"num_key_value_heads": 1}, True),
        ("qwen3", {}, True),
        ("olmo2", {}, True),
        ("granite", {}, True),
        ("gpt_neox", {"rotary_pct": 0.5}, True),
        ("mistral", {"sliding_window": 48}, False),
        ("gemma2", {"sliding_window": 48, "query_pre_attn_scalar": 16}, False),
    ],
)
def test_every_family_resumes_exactly_or_says_why_not_and_still_answers_right(
    start_engine: StartEngine, tmp_path: Path, family: str, overrides: dict[str, object], can_resume: bool
) -> None:
    model = build_model(tmp_path / family, family, **overrides)
    engine = start_engine(model)
    messages = [user("the lazy dog " * 8)]
    engine.reply("a", messages)
    messages.append(user("go on"))
    never_closed = engine.reply("a", list(messages))
    cold = engine.reply("cold", list(messages))
    assert never_closed.token_ids == cold.token_ids
    loaded = [event for event in engine.events if isinstance(event, ModelLoaded)][-1]
    assert (loaded.model.cannot_resume_reason is None) == can_resume
    engine = start_engine(model)
    resumed = engine.reply("a", list(messages))
    assert resumed.token_ids == cold.token_ids
    if can_resume:
        assert resumed.statistics.prefilled_tokens == 1
    else:
        assert "cannot resume" in (resumed.statistics.miss_reason or "")
