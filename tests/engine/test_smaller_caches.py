"""Chats in fewer bits from outside: under pressure, by the settings, refused where they cost too much; their memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch

from engine.kv import codec_choice
from engine.kv.blocks import BlockPool
from engine.kv.codec_choice import CodecChoice
from engine.kv.codecs.registry import LADDER, NAMES, codec_named
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.resident import Resident
from engine.memory import return_freed_memory
from engine.protocol.events import CodecsProbed, PressureActed, StatisticsChanged
from tests.engine.conftest import Engine, user
from tests.engine.random_caches import new_cache
from tests.engine.test_paged_cache import (
    TOKEN_BYTES,
    caches_of,
    digits,
    resident,
    roomy_model,
    row,
    set_budget,
)

StartEngine = Callable[..., Engine]
__all__ = ["roomy_model"]
SMOLLM2 = KVGeometry((LayerShape(3, 64, 64),) * 30, torch.bfloat16)


@pytest.fixture
def any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is random: whatever a codec costs it is accepted."""
    monkeypatch.setattr(codec_choice, "MOST_KL", dict.fromkeys(NAMES, 100.0))


def quantized_to(engine: Engine) -> list[str]:
    return [
        event.precision for event in engine.events if isinstance(event, PressureActed) and event.action == "quantize"
    ]


# -- a chat larger than the budget -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_price")
@pytest.mark.parametrize(("budget_tokens", "rung"), [(900, "int8"), (650, "balanced"), (520, "compact")])
def test_a_chat_that_does_not_fit_is_encoded_as_it_grows(
    start_engine: StartEngine, roomy_model: Path, budget_tokens: int, rung: str
) -> None:
    budget = budget_tokens * TOKEN_BYTES
    engine = start_engine(roomy_model, memory_budget_bytes=budget)
    messages = [user(digits(1500))]
    first = engine.reply("a", messages)
    readings = [event for event in engine.events if isinstance(event, StatisticsChanged)]
    assert max(reading.all_caches_bytes for reading in readings) <= budget * 1.05
    assert first.statistics.cache.tokens > 1500
    assert first.statistics.prefilled_tokens == first.statistics.prompt_tokens
    assert set(quantized_to(engine)) <= {codec.name for codec in LADDER[: [c.name for c in LADDER].index(rung) + 1]}
    assert quantized_to(engine)[0] == "int8"
    assert first.statistics.cache.precision in (rung, "mixed")
    messages.append(user("go on"))
    second = engine.reply("a", messages)
    assert second.statistics.reused_tokens > 1500
    assert second.statistics.miss_code is None
    report = engine.report()
    assert report.memory_bytes <= budget * 1.05
    assert row(report, "a").tokens > 1500


@pytest.mark.usefixtures("any_price")
def test_idle_chats_give_way_before_the_active_one(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=1000 * TOKEN_BYTES)
    engine.reply("idle", [user(digits(500))])
    engine.reply("active", [user(digits(700, 1))])
    assert row(engine.report(), "active").precision == "fp32"
    assert row(engine.report(), "idle").precision != "fp32" or row(engine.report(), "idle").memory_bytes == 0


@pytest.mark.usefixtures("any_price")
def test_with_memory_again_it_comes_back_in_full(start_engine: StartEngine, roomy_model: Path) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(600))]
    engine.reply("a", messages)
    set_budget(engine, 400 * TOKEN_BYTES)
    messages.append(user(digits(60, 1)))
    engine.reply("a", messages)
    assert row(engine.report(), "a").precision == "int8"
    set_budget(engine, 1 << 30)
    messages.append(user("go on"))
    reply = engine.reply("a", messages)
    assert reply.statistics.cache.precision == "fp32"
    assert reply.statistics.reused_tokens > 600
    assert resident(engine, "a").is_exact


# -- the last rung, and the end ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_price")
@pytest.mark.parametrize("allows", [True, False])
def test_where_the_settings_allow_it_the_last_rung_compresses(
    start_engine: StartEngine, roomy_model: Path, allows: bool
) -> None:
    engine = start_engine(roomy_model, allows_compression=allows, memory_budget_bytes=390 * TOKEN_BYTES)
    messages = [user(digits(1200))]
    if not allows:
        assert engine.fail("a", messages).code == "memory_budget"
        return
    engine.reply("a", messages)
    engine.report()
    compressed = [event for event in engine.events if isinstance(event, PressureActed) and event.action == "compress"]
    assert compressed
    assert compressed[0].precision in ("kvzip-int8", "mixed")
    assert row(engine.report(), "a").kept < 1.0
    messages.append(user("and on"))
    reply = engine.reply("a", messages)
    assert reply.statistics.reused_tokens > 1000
    assert reply.statistics.cache.kept < 1.0


@pytest.mark.usefixtures("any_price")
def test_a_chat_that_fits_in_no_precision_is_refused_with_the_numbers(
    start_engine: StartEngine, roomy_model: Path
) -> None:
    engine = start_engine(roomy_model, memory_budget_bytes=150 * TOKEN_BYTES)
    failed = engine.fail("a", [user(digits(1500))])
    assert failed.code == "memory_budget"
    assert set(failed.params) == {"needed_mb", "budget_mb"}
    assert engine.reply("b", [user("a short one is fine")]).token_ids


# -- what the settings ask for -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_price")
@pytest.mark.parametrize("name", NAMES)
def test_all_chats_are_kept_as_the_settings_say(start_engine: StartEngine, roomy_model: Path, name: str) -> None:
    engine = start_engine(roomy_model, kv_precision=name)
    messages = [user(digits(700))]
    engine.reply("a", messages)
    engine.reply("b", [user(digits(700, 1))])
    idle = row(engine.report(), "a")
    assert idle.precision == name
    assert idle.memory_bytes < (0.45 if name != "compact" else 0.55) * 700 * TOKEN_BYTES  # the numbers are float32
    messages.append(user("go on"))
    reply = engine.reply("a", messages)
    assert reply.statistics.reused_tokens > 700
    assert reply.statistics.cache.precision == name
    if codec_named(name).is_read_in_place:
        assert row(engine.report(), "a").memory_bytes < 0.6 * 700 * TOKEN_BYTES
    messages.append(user("and on"))
    assert engine.reply("a", messages).statistics.reused_tokens > 700


def test_a_codec_that_costs_too_much_is_replaced_by_the_next_safer_one(
    start_engine: StartEngine, roomy_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_choice, "MOST_KL", {**dict.fromkeys(NAMES, 100.0), "compact": 0.0, "balanced": 0.0})
    engine = start_engine(roomy_model, kv_precision="compact")
    engine.reply("a", [user(digits(400))])
    probed = [event for event in engine.events if isinstance(event, CodecsProbed)]
    if not probed:
        probed = [engine.wait(CodecsProbed)]  # type: ignore[list-item]
    assert {"compact", "balanced"} <= set(probed[-1].refused)
    engine.reply("b", [user(digits(400, 1))])
    engine.reply("c", [user(digits(400, 2))])
    assert row(engine.report(), "b").precision == "int8"


def test_what_was_measured_is_remembered(
    start_engine: StartEngine, roomy_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine(roomy_model)
    engine.reply("a", [user(digits(400))])
    engine.report()
    first = next(event for event in engine.events if isinstance(event, CodecsProbed))
    assert set(first.kl) == {codec.name for codec in LADDER}
    assert all(0 <= kl < 1 for kl in first.kl.values())
    assert first.kl["int8"] < first.kl["compact"]
    monkeypatch.setattr(CodecChoice, "_measure", lambda *args: pytest.fail("measured again"))
    again = start_engine(roomy_model)
    again.reply("b", [user("hello")])
    again.report()
    second = next(event for event in again.events if isinstance(event, CodecsProbed))
    assert second == first
    file = next(caches_of(again)._files.kv_dir.glob("*/codecs.json"))
    for damaged in ("", "{", '{"format":1,"kl":{"int8":"x"}}', '{"format":1,"kl":[1]}', "[]"):
        file.write_text(damaged)
        monkeypatch.setattr(CodecChoice, "_measure", lambda *args: {"int8": 0.0})
        start_engine(roomy_model).reply("c", [user("hello")])


@pytest.mark.usefixtures("any_price")
@pytest.mark.parametrize("name", ["int8", "bnb-nf4"])
def test_layers_that_cannot_be_cut_stay_as_they_are(start_engine: StartEngine, window_model: Path, name: str) -> None:
    engine = start_engine(window_model, kv_precision=name)
    messages = [user("the quick brown fox " * 12)]
    engine.reply("a", messages)
    engine.reply("b", [user("hello")])
    assert row(engine.report(), "a").precision == "fp32"
    messages.append(user("go on"))
    assert engine.reply("a", messages).statistics.reused_tokens > 0


@pytest.mark.usefixtures("any_price")
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_an_early_message_of_an_encoded_chat_can_be_edited(
    start_engine: StartEngine, roomy_model: Path, name: str, is_restarted: bool
) -> None:
    engine = start_engine(roomy_model, kv_precision=name)
    messages = [user("short")]
    engine.reply("a", messages)
    first = list(messages)
    messages.append(user(digits(900)))
    engine.reply("a", messages)
    engine.reply("b", [user("something else")])
    if is_restarted:
        engine = start_engine(roomy_model, kv_precision=name)
    edited = engine.reply("a", [*first, user("shorter")])
    assert edited.token_ids
    assert edited.statistics.prompt_tokens < 100
    assert engine.reply("a", [user("other")]).token_ids


@pytest.mark.usefixtures("any_price")
def test_a_chat_goes_on_in_the_precision_that_is_wanted_now(start_engine: StartEngine, roomy_model: Path) -> None:
    messages = [user(digits(700))]
    start_engine(roomy_model, kv_precision="int8").reply("a", messages)
    messages.append(user("go on"))
    reply = start_engine(roomy_model, kv_precision="balanced").reply("a", messages)
    assert reply.statistics.reused_tokens > 700
    assert reply.statistics.cache.precision == "balanced"


# -- peak memory -------------------------------------------------------------------------------------------------------


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """Samples of this process's resident memory, in bytes."""
    samples: list[int] = []
    is_done = threading.Event()
    process = psutil.Process()

    def watch() -> None:
        while not is_done.wait(0.0005):
            samples.append(process.memory_info().rss)

    samples.append(process.memory_info().rss)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        is_done.set()
        thread.join()
        samples.append(process.memory_info().rss)


@pytest.mark.skipif(sys.platform != "linux", reason="single pages are given back on Linux")
@pytest.mark.parametrize("is_active", [True, False], ids=["active", "parked"])
@pytest.mark.parametrize("name", [codec.name for codec in LADDER])
def test_encoding_a_chat_never_takes_more_memory_than_it_had(name: str, is_active: bool) -> None:
    tokens = 4000
    codec = codec_named(name)
    codec.encode([torch.randn(group.shape(64)).bfloat16() for group in SMOLLM2.groups], SMOLLM2)  # torch's own pools
    resident = Resident("chat", BlockPool(b"", SMOLLM2))
    resident.working = cache = new_cache(tokens, geometry=SMOLLM2)
    cache.reserve(tokens)
    for tensor in cache.arena.groups:
        tensor[:, :tokens].normal_()
    cache.publish(list(range(tokens)))
    if not is_active:
        resident.park(codec=None)
    before = resident.own_bytes
    with watched_memory() as samples:
        freed = resident.encode_cold(codec, 128) if is_active else resident.quantize(codec)
        return_freed_memory()
    full = tokens * SMOLLM2.bytes_per_token
    assert freed > 0.4 * full
    assert before - resident.own_bytes == freed
    assert max(samples) - samples[0] < 0.25 * full, "the peak"
    assert samples[-1] - samples[0] < -0.35 * full, "the end"
