"""What a turn would cost: the numbers are those of the turn that follows, and asking changes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.kv.persistence import Persistence
from engine.kv.prefill_speed import FEW_TOKENS, PrefillSpeed, Reading
from engine.kv.rates import MeasuredRates
from engine.kv.rates_moves import Move, MoveSpeed
from engine.model.chat_template import ChatTemplate
from engine.model.pieces import Pieces
from engine.model.tokens import HistoryTokens
from engine.protocol.commands import ChatMessage, Compress, CountTokens, Estimate, Generate, Role
from engine.protocol.config import GREEDY, EngineConfig
from engine.protocol.events import (
    Compressed,
    Estimated,
    Failed,
    Finished,
    ModelLoaded,
    SnapshotSaved,
    TextArrived,
    TokensCounted,
)
from engine.protocol.misses import MissCode
from tests.engine.conftest import Engine, build_model, build_tokenizer, user

StartEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "roomy", max_position_embeddings=2048)


def digits(num_tokens: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice("0123456789") for _ in range(num_tokens))


def turn(engine: Engine, conversation: str, messages: list[ChatMessage]) -> tuple[Estimated, Finished]:
    """Ask what the turn will cost, then take it, and see that it did."""
    told = engine.estimate(conversation, messages)
    finished = engine.reply(conversation, messages)
    statistics = finished.statistics
    assert told.prompt_tokens == statistics.prompt_tokens
    assert told.new_tokens == statistics.prefilled_tokens
    assert (told.miss_code, told.miss_params) == (statistics.miss_code, statistics.miss_params)
    return told, finished


# -- the numbers -------------------------------------------------------------------------------------------------------


def test_a_chat_from_its_first_message_to_a_restart(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user("a first message of some length")]
    first, _ = turn(engine, "a", messages)
    assert first.new_tokens == first.prompt_tokens
    assert first.from_disk_tokens == 0
    messages.append(user("go on"))
    warm, _ = turn(engine, "a", messages)
    assert warm.new_tokens < 24
    assert warm.from_disk_tokens == 0
    turn(engine, "b", [user("something else")])
    messages.append(user("now parked"))
    parked, _ = turn(engine, "a", messages)
    assert parked.new_tokens < 24
    engine = start_engine(tiny_model)
    messages.append(user("after a restart"))
    stored, finished = turn(engine, "a", messages)
    assert stored.from_disk_tokens == finished.statistics.reused_tokens > 60
    assert stored.new_tokens < 40


def test_what_another_chat_has_read_is_not_read_again(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    system = ChatMessage(Role.SYSTEM, digits(120))
    turn(engine, "a", [system, user("one")])
    shared, _ = turn(engine, "b", [system, user("two")])
    assert shared.new_tokens < 40
    engine = start_engine(tiny_model)
    from_disk, _ = turn(engine, "c", [system, user("three")])
    assert from_disk.from_disk_tokens > 100


def test_an_edited_history_says_why_it_is_read_again(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user("one")]
    for word in ("two", "three"):
        turn(engine, "a", messages)
        messages.append(user(word))
    turn(engine, "a", messages)
    edited = [messages[0], messages[1], user("other words altogether"), *messages[3:], user("more")]
    told, _ = turn(engine, "a", edited)
    assert told.miss_code == MissCode.HISTORY_CHANGED
    engine = start_engine(tiny_model)
    edited[2] = user("and once more edited")
    told, _ = turn(engine, "a", [*edited, user("after a restart")])
    assert told.miss_code == MissCode.HISTORY_CHANGED


def test_replies_made_with_another_tokenizer_are_tokenized(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user("one")]
    turn(engine, "a", messages)
    messages[1] = dataclasses.replace(messages[1], token_ids=None)
    turn(engine, "a", [*messages, user("two")])


def test_another_model_s_cache_is_of_no_use(start_engine: StartEngine, tiny_model: Path, tmp_path: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user("one")]
    turn(engine, "a", messages)
    assert isinstance(engine.load(build_model(tmp_path / "twin", seed=1)), ModelLoaded)
    messages.append(user("two"))
    told, _ = turn(engine, "a", messages)
    assert told.miss_code == MissCode.MODEL_CHANGED


def test_models_that_cannot_crop(start_engine: StartEngine, window_model: Path) -> None:
    engine = start_engine(window_model)
    messages = [user("one " * 12)]
    for word in ("two", "three", "four"):
        turn(engine, "a", messages)
        messages.append(user(word))
    turn(engine, "b", [user("between")])
    turn(engine, "a", messages)
    edited = [*messages[:2], user("two, edited")]
    turn(engine, "a", list(edited))
    told, _ = turn(engine, "a", list(edited))  # from the checkpoint where the reply begins
    assert told.new_tokens < 24
    engine = start_engine(window_model)
    messages.append(user("after a restart"))
    turn(engine, "a", messages)


@pytest.mark.parametrize("kv_precision", ["int8", "balanced", "bnb-8bit"])
def test_quantized_caches(start_engine: StartEngine, roomy_model: Path, kv_precision: str) -> None:
    engine = start_engine(roomy_model, kv_precision=kv_precision)
    messages = [user(digits(500))]
    turn(engine, "a", messages)
    messages.append(user("warm"))
    turn(engine, "a", messages)
    turn(engine, "b", [user("another chat")])
    messages.append(user("parked"))
    told, _ = turn(engine, "a", messages)
    assert told.new_tokens < 24
    engine = start_engine(roomy_model, kv_precision=kv_precision)
    messages.append(user("restored"))
    told, _ = turn(engine, "a", messages)
    assert told.from_disk_tokens > 500
    messages[2] = user("edited")
    turn(engine, "a", messages[:3])


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("keep", ["end", 700, 300])
def test_compressed_caches(start_engine: StartEngine, roomy_model: Path, keep: str | int, is_restarted: bool) -> None:
    """Going on at the end, and with an edit in the part that was kept whole, and in the part that was not."""
    engine = start_engine(roomy_model)
    messages = [user(digits(400, 1)), ChatMessage(Role.ASSISTANT, digits(300, 2)), user(digits(200, 3))]
    turn(engine, "a", messages)
    engine.worker.submit(Compress("a", "c", tuple(messages), 0.3))
    assert isinstance(engine.wait(Compressed, Failed), Compressed)
    engine.wait(SnapshotSaved)
    if is_restarted:
        engine = start_engine(roomy_model)
    if keep == 700:
        messages = [messages[0], messages[1], user(messages[2].text[:150] + " and other words")]
    elif keep == 300:
        messages = [user(messages[0].text[:300] + "x"), messages[1], user("y")]
    else:
        messages.append(user("go on"))
    told, _ = turn(engine, "a", messages)
    assert (told.from_disk_tokens > 0) == is_restarted


def test_asking_restores_and_changes_nothing(
    start_engine: StartEngine, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine(tiny_model)
    messages = [user("one " * 40)]
    engine.reply("a", messages)
    engine = start_engine(tiny_model)
    messages.append(user("two"))

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("an estimate read a snapshot")

    monkeypatch.setattr(Persistence, "restore", refuse)
    before = engine.report()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "kv").rglob("*") if path.is_file()}
    assert engine.estimate("a", messages).from_disk_tokens > 100
    assert engine.estimate("", [user("of no chat yet")]).new_tokens > 0
    after = engine.report()
    assert after.conversations == before.conversations
    assert (after.memory_bytes, after.disk_bytes) == (before.memory_bytes, before.disk_bytes)
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "kv").rglob("*") if path.is_file()}


def test_a_prompt_that_does_not_fit(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    told = engine.estimate("a", [user(digits(600))])
    assert not told.fits
    assert told.prompt_tokens > told.context_length == 512


def test_texts_are_counted(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    engine.worker.submit(CountTokens("count", ("", "the quick", digits(7))))
    counted = engine.wait(TokensCounted, Failed)
    assert isinstance(counted, TokensCounted)
    tokenizer = build_tokenizer()
    assert counted.counts == (0, len(tokenizer.encode("the quick")), 7)
    assert counted.context_length == 512


def test_without_a_model_there_is_no_answer(start_engine: StartEngine) -> None:
    engine = start_engine()
    engine.worker.submit(Estimate("a", "e", (user("hello"),)))
    engine.worker.submit(CountTokens("c", ("hello",)))
    for request in ("e", "c"):
        failed = engine.wait(Failed, Estimated, TokensCounted, request_id=request)
        assert isinstance(failed, Failed)
        assert failed.code == "no_model_loaded"


# -- the time ----------------------------------------------------------------------------------------------------------


def test_seconds_are_told_once_reading_was_measured_and_after_a_restart(
    start_engine: StartEngine, roomy_model: Path
) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(600))]
    assert engine.estimate("a", messages).seconds is None
    engine.reply("a", messages)
    long, short = (engine.estimate("b", [user(digits(count, 1))]).seconds for count in (1500, 200))
    assert long is not None
    assert short is not None
    assert 0 < short < long
    engine = start_engine(roomy_model)
    again = engine.estimate("b", [user(digits(1500, 1))]).seconds
    assert again == pytest.approx(long, rel=0.5)


def test_the_speed_is_fitted_to_what_was_measured() -> None:
    def cost(tokens: int, cached: int) -> float:
        return 0.01 + tokens * (2e-3 + 3e-7 * (cached + tokens / 2))

    speed = PrefillSpeed(pair_share=1 / 3456)
    assert speed.seconds(500, 0) is None
    for tokens, cached in [(900, 0), (60, 1000), (300, 2000), (2000, 0), (100, 5000)]:
        speed.add(Reading(tokens, cached, cost(tokens, cached)))
    for tokens, cached in [(50, 100), (700, 1500), (4000, 0), (200, 7000)]:
        assert speed.seconds(tokens, cached) == pytest.approx(cost(tokens, cached), rel=0.2)


def test_one_measurement_is_stretched_by_the_model_s_sizes() -> None:
    speed = PrefillSpeed(pair_share=1e-3)
    speed.add(Reading(1000, 0, 1000 * (1e-3 + 1e-6 * 500)))
    assert speed.seconds(1000, 4000) == pytest.approx(1000 * (1e-3 + 1e-6 * 4500), rel=0.2)
    assert speed.seconds(5, 0) is not None  # of a few tokens an upper bound


@pytest.mark.parametrize(
    "content", ["", "{}", '{"format": 3, "machine": "", "readings": [[1, 2]], "moves": []}', "[1]", "null", "{", "\0"]
)
def test_a_damaged_file_of_rates_is_no_obstacle(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.rates.json").write_text(content)
    monkeypatch.setattr("engine.kv.rates._machine", str)
    rates = MeasuredRates(tmp_path / "model")
    assert rates.first_token_s(10, 0, 0, 0) is None
    rates.prefilled(100, 1.0)
    rates.write()
    assert MeasuredRates(tmp_path / "model").first_token_s(100, 0, 0, 0) == pytest.approx(1.0, rel=0.1)


# -- the time, on machines made up for it ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Machine:
    """Seconds of `few` tokens (up to 32) and of `many`: start, a token, a pair."""

    few: tuple[float, float, float]
    many: tuple[float, float, float]

    def cost(self, tokens: int, cached: int) -> float:
        start, token, pair = self.few if tokens <= FEW_TOKENS else self.many
        return start + tokens * (token + pair * (cached + tokens / 2))


MACHINES = {
    "the default model on two cores": Machine((6e-3, 2.9e-3, 2.6e-6), (0.09, 3.5e-3, 7e-7)),
    "a graphics card": Machine((3e-3, 2e-4, 1e-8), (1.2e-2, 4e-5, 4e-9)),
    "no start, no pairs": Machine((0.0, 2e-3, 0.0), (0.0, 2e-3, 0.0)),
    "pairs cost most": Machine((0.0, 1e-3, 2e-6), (0.0, 1e-3, 2e-6)),
    "a large model": Machine((0.1, 2e-2, 1e-6), (0.5, 2e-2, 1e-6)),
}
SHAPES = [(8, 0), (8, 4000), (25, 1000), (40, 0), (40, 3000), (150, 600), (500, 2000), (1500, 0), (3000, 0)]


def readings_of(
    machine: Machine, num_turns: int, seed: int, *, noise: float = 0.0, odd: float = 0.0, stretch: float = 1.0
) -> list[Reading]:
    """Turns as people take them; `odd` of them took two to four times as long as they should."""
    rng = random.Random(seed)
    found: list[Reading] = []
    cached = 0
    for number in range(num_turns):
        if rng.random() < 0.3:
            cached = rng.choice((0, 500, 2000, 4000))
        sizes = [rng.choice((5, 15, 40, 100, 300, 900, 2000)) if number else 60, rng.randint(2, 12)]
        for tokens in sizes:  # what is written, and what is read ahead after the reply
            seconds = machine.cost(tokens, cached) * stretch * math.exp(rng.gauss(0, noise))
            found.append(Reading(tokens, cached, seconds * (rng.uniform(2, 4) if rng.random() < odd else 1)))
            cached += tokens
    return found


def share_told_right(
    speed: PrefillSpeed, machine: Machine, shapes: list[tuple[int, int]], stretch: float = 1.0
) -> float:
    ratios = [(speed.seconds(*shape) or math.inf) / (machine.cost(*shape) * stretch) for shape in shapes]
    return sum(abs(ratio - 1) <= 0.2 for ratio in ratios) / len(shapes)


def speed_after(readings: list[Reading]) -> PrefillSpeed:
    speed = PrefillSpeed(pair_share=1 / 3456)
    for one in readings:
        speed.add(one)
    return speed


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("seed", range(5))
def test_a_quiet_machine_is_known_after_a_few_turns(name: str, seed: int) -> None:
    speed = speed_after(readings_of(MACHINES[name], 8, seed))
    assert share_told_right(speed, MACHINES[name], SHAPES) == 1.0


@pytest.mark.parametrize("name", MACHINES)
def test_noise_and_odd_ones_lead_nobody_astray(name: str) -> None:
    """Measurements are 10 % off, and one in fifteen is far off."""
    shares = [
        share_told_right(
            speed_after(readings_of(MACHINES[name], 20, seed, noise=0.1, odd=1 / 15)), MACHINES[name], SHAPES
        )
        for seed in range(20)
    ]
    assert sum(shares) / len(shares) >= 0.9


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("stretch", [0.5, 2.0])
def test_another_load_is_known_after_three_turns(name: str, stretch: float) -> None:
    machine = MACHINES[name]
    shares = []
    for seed in range(8):
        speed = speed_after(readings_of(machine, 15, seed))
        assert share_told_right(speed, machine, SHAPES, stretch) < 0.5
        for one in readings_of(machine, 3, seed + 100, stretch=stretch):
            speed.add(one)
        shares.append(share_told_right(speed, machine, SHAPES, stretch))
    assert sum(shares) / len(shares) >= 0.9


def test_what_starts_slowly_is_not_taken_for_odd() -> None:
    """Forty tokens cost more than twice as much a token as a thousand do, wherever a pass has a start."""
    machine = Machine((0.0, 1e-3, 0.0), (0.1, 2e-3, 0.0))
    speed = speed_after([Reading(n, 0, machine.cost(n, 0)) for n in (1000, 600, 900, 40, 1200)])
    assert share_told_right(speed, machine, [(40, 0), (60, 0), (2000, 0)]) == 1.0


def test_caches_come_back_as_they_did() -> None:
    def cost(restored: int, copied: int) -> float:
        return 0.004 + restored / 9e8 + copied / 4e9

    moves = MoveSpeed()
    assert moves.seconds(0, 0) == 0.0
    assert moves.seconds(10**8, 0) is None  # not a number made up
    assert moves.seconds(0, 10**8) is None
    moves.add(Move(10**8, 0, cost(10**8, 0)))
    assert moves.seconds(2 * 10**8, 0) == pytest.approx(cost(2 * 10**8, 0), rel=0.2)
    assert moves.seconds(0, 10**8) is None
    for restored, copied in ((3 * 10**7, 0), (0, 10**8), (10**8, 4 * 10**7), (2 * 10**8, 0)):
        moves.add(Move(restored, copied, cost(restored, copied)))
    moves.add(Move(10**8, 0, 5 * cost(10**8, 0)))  # another program read the disk as well
    for restored, copied in ((2 * 10**7, 0), (4 * 10**8, 0), (0, 2 * 10**8), (5 * 10**7, 5 * 10**7)):
        assert moves.seconds(restored, copied) == pytest.approx(cost(restored, copied), rel=0.2)


def test_what_comes_from_disk_is_told_from_what_is_copied() -> None:
    class Parked:
        place = "cpu"
        is_exact = True

    rates = MeasuredRates()
    rates.prefilled(100, 1.0)
    rates.memory_read(40_000_000, time.perf_counter(), Parked())  # type: ignore[arg-type]
    rates.activated(40_000_000, 0.01, is_from_disk=False)
    rates.activated(90_000_000, 0.3, is_from_disk=True)
    reading_s = rates.first_token_s(100, 0, 0, 0)
    assert reading_s is not None
    for restored, copied, seconds in ((90_000_000, 0, 0.3), (0, 40_000_000, 0.01), (45_000_000, 0, 0.15)):
        told = rates.first_token_s(100, 0, restored, copied)
        assert told is not None
        assert told - reading_s == pytest.approx(seconds, rel=0.2)


def test_what_a_turn_takes_beside_reading_is_told_as_well() -> None:
    rates = MeasuredRates()
    rates.prefilled(100, 1.0)
    before = rates.first_token_s(100, 0, 0, 0)
    assert before is not None
    for beside_s in (0.02, 0.5, 0.02, -0.001, 0.02):  # odd ones change nothing, nor clocks that disagree
        rates.begun(beside_s)
    assert rates.first_token_s(100, 0, 0, 0) == pytest.approx(before + 0.02)


def test_reading_after_an_encoded_cache_is_measured_apart(tmp_path: Path) -> None:
    rates = MeasuredRates(tmp_path / "model")
    for _ in range(3):
        rates.prefilled(100, 1.0, 500)
    exact_s = rates.first_token_s(100, 500, 0, 0)
    assert rates.first_token_s(100, 500, 0, 0, is_exact=False) == exact_s, "all that is known"
    for _ in range(3):
        rates.prefilled(100, 3.0, 500, is_exact=False)
    rates.write()
    for one in (rates, MeasuredRates(tmp_path / "model")):
        assert one.first_token_s(100, 500, 0, 0) == pytest.approx(1.0, rel=0.05)
        assert one.first_token_s(100, 500, 0, 0, is_exact=False) == pytest.approx(3.0, rel=0.05)


def test_what_an_incognito_chat_took_reaches_no_file(
    start_engine: StartEngine, tiny_model: Path, engine_config: EngineConfig
) -> None:
    engine = start_engine(tiny_model)
    engine.reply("secret", [user("hush")], is_incognito=True)
    engine.report()
    assert list(engine_config.kv_dir.rglob("*.rates.json")) == []
    engine = start_engine(tiny_model)
    engine.reply("open", [user("hello")])
    engine.reply("secret", [user("hush"), user("again")], is_incognito=True)
    engine.reply("open", [user("hello")])
    assert engine.runtime._caches is not None
    told = [one.is_private for one in engine.runtime._caches.rates._speed[True].readings()]
    assert True in told, "it is learned from meanwhile"
    engine.report()
    (file,) = engine_config.kv_dir.rglob("*.rates.json")
    assert len(json.loads(file.read_text())["readings"]) == told.count(False)


@pytest.mark.parametrize(
    "reading", [[5, 100, 1e-320, True], [10**160, 0, 1.0, True], [1, 0, 1e308, True], [5, 0, 1e10, False]]
)
def test_unlikely_numbers_in_the_file_of_rates_are_left_out(
    tmp_path: Path, reading: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kv.rates._machine", str)
    content = {"format": 3, "machine": "", "readings": [reading, [100, 0, 1.0, True]], "moves": [[0, 10**21, 1e-9]]}
    (tmp_path / "model.rates.json").write_text(json.dumps(content))
    rates = MeasuredRates(tmp_path / "model")
    for is_exact in (True, False):
        assert rates.first_token_s(100, 0, 0, 0, is_exact=is_exact) == pytest.approx(1.0, rel=0.1)
    assert rates.first_token_s(100, 0, 0, 10**8) is None


def test_rates_of_another_machine_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = MeasuredRates(tmp_path / "model")
    rates.prefilled(100, 1.0)
    rates.write()
    assert MeasuredRates(tmp_path / "model").first_token_s(100, 0, 0, 0) == pytest.approx(1.0, rel=0.1)
    monkeypatch.setattr("engine.kv.rates.torch.get_num_threads", lambda: 64)
    assert MeasuredRates(tmp_path / "model").first_token_s(100, 0, 0, 0) is None


def test_what_is_told_is_the_forecast_at_the_rates_that_were_measured(
    start_engine: StartEngine, roomy_model: Path
) -> None:
    engine = start_engine(roomy_model)
    messages = [user(digits(600))]
    turn(engine, "a", messages)
    for _ in range(2):  # a restore has to be measured before its time is told
        engine = start_engine(roomy_model)
        messages.append(user(digits(60)))
        told, _ = turn(engine, "a", messages)
    engine = start_engine(roomy_model)
    messages.append(user(digits(60)))
    told = engine.estimate("a", messages)
    caches = engine.runtime._caches
    assert caches is not None
    per_token = caches.model.geometry.bytes_per_token
    assert told.from_disk_tokens > 600
    assert told.seconds == caches.rates.first_token_s(
        told.new_tokens, told.prompt_tokens - told.new_tokens, told.from_disk_tokens * per_token, 0
    )


# -- among other work --------------------------------------------------------------------------------------------------


def test_a_newer_estimate_takes_the_place_of_an_older_one(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    engine.worker.submit(Generate("a", "r", (user("talk"),), GREEDY, 200))
    engine.wait(TextArrived)
    for number in range(5):
        engine.worker.submit(Estimate("a", f"e{number}", (user("x" * number),)))
    engine.wait(Estimated, request_id="e4")
    engine.report()
    answered = [event.request_id for event in engine.events if isinstance(event, Estimated)]
    assert answered == ["e4"]
    kinds = [type(event) for event in engine.events]
    assert kinds.index(Finished) < kinds.index(Estimated)  # the chat itself was in the middle of a change


def test_other_chats_are_told_while_one_replies(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    alone = engine.reply("b", [user("talk")], max_new_tokens=300)
    engine.forget("b")
    engine.events.clear()
    engine.worker.submit(Generate("a", "r", (user("talk"),), GREEDY, 300))
    engine.wait(TextArrived)
    engine.worker.submit(Estimate("other", "e", (user("how long?"),)))
    engine.worker.submit(CountTokens("c", ("some words",)))
    engine.wait(Estimated, request_id="e")
    engine.wait(TokensCounted, request_id="c")
    finished = engine.wait(Finished)
    assert isinstance(finished, Finished)
    assert finished.token_ids == alone.token_ids


def test_what_is_asked_before_the_end_is_dropped(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    engine.worker.submit(Generate("a", "r", (user("talk"),), GREEDY, 400))
    engine.wait(TextArrived)
    engine.worker.submit(Estimate("a", "e", (user("x"),)))
    start_engine()
    assert not any(isinstance(event, Estimated | Failed) for event in engine.events)


# -- tokenizing once ---------------------------------------------------------------------------------------------------


def long_history(num_turns: int) -> list[ChatMessage]:
    rng = random.Random(0)
    words = ("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "tells", "a", "story")
    return [
        ChatMessage(role, " ".join(rng.choices(words, k=90)))
        for _ in range(num_turns)
        for role in (Role.USER, Role.ASSISTANT)
    ]


def test_typing_tokenizes_only_the_message_that_is_typed(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    history = HistoryTokens(tokenizer, ChatTemplate(tokenizer))
    messages = long_history(10)
    history.ids([*messages, user("h")])
    tokenized: list[int] = []
    encode = Pieces._encode

    def counting(self: Pieces, text: str) -> list[int]:
        tokenized.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(Pieces, "_encode", counting)
    ids = history.ids([*messages, user("hello")])
    assert sum(tokenized) < 40
    monkeypatch.undo()
    whole = history.template.render([*messages, user("hello")], add_generation_prompt=True, started_on=None)
    assert ids == tokenizer.encode(whole, add_special_tokens=False)


def test_pieces_are_only_cut_where_the_ids_stay_the_same() -> None:
    tokenizer = build_tokenizer()
    texts = [
        "<|start|>user\n hi<|end|>\n<|start|>",
        "<|<|end|>end|>  <|end|><|end|> 안녕<|start|>",
        "no token at all",
        "",
    ]
    pieces = Pieces(tokenizer, ["<|start|> <|end|>"])
    for text in texts:
        assert pieces.ids(text) == tokenizer.encode(text, add_special_tokens=False)
    tokenizer.add_tokens(["<|end|>\n"])  # takes a part of what would be cut at
    pieces = Pieces(tokenizer, ["<|start|> <|end|>"])
    for text in [*texts, "a<|end|>\nb<|start|>"]:
        assert pieces.ids(text) == tokenizer.encode(text, add_special_tokens=False)


def test_an_estimate_takes_a_few_milliseconds(start_engine: StartEngine, tmp_path: Path) -> None:
    model = build_model(tmp_path / "long", max_position_embeddings=16384, num_hidden_layers=1)
    engine = start_engine(model)
    messages: list[ChatMessage] = long_history(12)
    while engine.estimate("a", [*messages, user("x")]).prompt_tokens < 8000:
        messages += long_history(4)
    took: list[float] = []
    for number in range(9):
        started = time.perf_counter()
        engine.worker.submit(Estimate("a", f"q{number}", (*messages, user("x" * number))))
        engine.wait(Estimated, request_id=f"q{number}")
        took.append(time.perf_counter() - started)
    assert sorted(took)[4] < 0.05  # about 3 ms on a quiet machine
