"""The cache lab's experiments on tiny random models: what they measure is what is there, and they end when asked to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from app.commands.bench_tables import bench_lines
from app.experiments import ROOM
from engine import bench
from engine.fidelity import recall
from engine.fidelity.divergence import StoppedError
from engine.kv.arena import KVArena
from engine.lab import heads as heads_experiment
from engine.lab.fit import fit_line
from engine.lab.lab import CannotMeasureError, NoScratchError, Why, finite
from engine.lab.memory import chat_lengths
from engine.model.loader import LoadedModel, load_model
from engine.one_thread import one_thread
from engine.protocol.commands import BenchName, RunBench
from engine.protocol.config import EngineConfig, Weights
from engine.protocol.errors import ContextOverflowError
from engine.protocol.events import Failed
from tests.engine.conftest import build_model
from tests.engine.families import BY_NAME
from tests.engine.lab_speed import measure_briefly
from ui.lab.run_words import failure_words

BYTES_PER_TOKEN = 2 * 3 * 2 * 16 * 4  # of the tiny model: layers, KV heads, head_dim, float32
ROWS = 5


@dataclass
class Measured:
    """What an experiment returned, and the progress it told on the way."""

    result: dict[str, Any]
    told: list[tuple[int, int, dict[str, Any] | None]] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows = self.result["rows"]
        assert isinstance(rows, list)
        return rows


Measure = Callable[..., Measured]


@pytest.fixture
def load(engine_config: EngineConfig) -> Iterator[Callable[[Path], LoadedModel]]:
    loaded: list[LoadedModel] = []

    def load(folder: Path) -> LoadedModel:
        loaded.append(load_model(folder, Weights.BITS_16, engine_config, lambda stage: None))
        return loaded[-1]

    with one_thread():
        yield load
    for model in loaded:
        model.close()


@pytest.fixture
def measure(engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> Measure:
    measure_briefly(monkeypatch)

    def measure(name: BenchName, model: LoadedModel, context: int | None = None) -> Measured:
        told: list[tuple[int, int, dict[str, Any] | None]] = []

        def tell(done: int, total: int, row: dict[str, Any] | None) -> None:
            told.append((done, total, row))

        before = torch.random.get_rng_state()
        result = bench.run(RunBench("", name, context), model, engine_config, lambda: False, tell)
        assert torch.equal(torch.random.get_rng_state(), before), "random numbers go on as they would have"
        measured = Measured(result, told)
        assert told[0][0] == 0
        assert all(done <= total for done, total, _ in told)
        assert told[-1][0] == told[-1][1], "it ends at its last step"
        assert [row for _, _, row in told if row is not None] == result.get("rows", [])
        assert all_finite(result)
        check_words(name, measured)
        return measured

    return measure


def check_words(name: BenchName, measured: Measured) -> None:
    """It can be shown to a person: a table with a line a row, numbers that are none as "-"."""
    lines = list(bench_lines(name, measured.result))
    if "rows" in measured.result:
        shown = [row for row in measured.rows if not row.get("error")]
        assert len(lines) > len(shown) + 1
    assert not {"nan", "inf", "None"} & {word for line in lines for word in line.split()}, lines


def all_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(all_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(all_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


# use-cache


def test_with_and_without_a_cache_the_same_is_said_and_only_one_feeds_everything_again(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path
) -> None:
    found = measure(BenchName.USE_CACHE, load(tiny_model), 256)
    assert [row["length"] for row in found.rows] == [32, 64, 128, 192, 256]
    assert [row["without_fed"] for row in found.rows] == [33, 65, 129, 193, 257]
    assert {row["with_fed"] for row in found.rows} == {1}
    assert [row["kv_bytes"] for row in found.rows] == [row["length"] * BYTES_PER_TOKEN for row in found.rows]
    assert all(row["factor"] == row["without_ms"] / row["with_ms"] for row in found.rows)
    same = found.result["same_tokens"]
    assert (same["equal"], same["tokens_compared"], same["first_difference"]) == (True, 16, None)
    assert (same["arithmetic"], same["max_logit_error"] < 1e-3) == ("float32", True)
    table = {row["what"]: (row["without"], row["with"]) for row in found.result["table"]}
    assert table["work_per_token"] == (257, 1)
    assert table["memory_kept"] == (0, 256 * BYTES_PER_TOKEN)
    assert table["scores_per_token"] == (sum(range(1, 258)), 257)
    assert found.result["factor"] == found.rows[-1]["factor"]
    assert found.result["fits"]["as_replies_run"] is None


def test_lengths_close_together_are_measured_as_exactly(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path
) -> None:
    found = measure(BenchName.USE_CACHE, load(tiny_model), 16)
    assert [row["length"] for row in found.rows] == [2, 4, 8, 12, 16]
    assert [row["kv_bytes"] for row in found.rows] == [row["length"] * BYTES_PER_TOKEN for row in found.rows]


def test_without_a_cache_the_model_is_given_none(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny_model)
    fed: list[tuple[int, bool]] = []
    run = model.forward.model.forward

    def forward(*given: Any, **named: Any) -> Any:
        fed.append((named["input_ids"].shape[1], named.get("cache") is not None))
        assert named["use_cache"] is (named.get("cache") is not None)
        return run(*given, **named)

    forward.__signature__ = __import__("inspect").signature(run)  # type: ignore[attr-defined]
    monkeypatch.setattr(model.forward.model, "forward", forward)
    measure(BenchName.USE_CACHE, model, 64)
    lengths = [length for length, has_cache in fed if not has_cache]
    assert {8 + 1, 16 + 1, 32 + 1, 48 + 1, 64 + 1} <= set(lengths)
    assert (1, True) in fed
    assert (1, False) not in fed


@pytest.mark.parametrize("family", ["gemma3_text", "mamba2", "jamba", "qwen3_next"])
def test_every_kind_of_cache_can_be_compared_with_none(
    load: Callable[[Path], LoadedModel], measure: Measure, tmp_path: Path, family: str
) -> None:
    found = measure(BenchName.USE_CACHE, load(BY_NAME[family].save(tmp_path / family)), 32)
    assert len(found.rows) == ROWS
    assert found.result["same_tokens"]["equal"], found.result["same_tokens"]


def test_what_keeps_no_cache_cannot_be_compared(
    load: Callable[[Path], LoadedModel], engine_config: EngineConfig, tmp_path: Path
) -> None:
    with pytest.raises(CannotMeasureError, match="keeps no cache") as refused:
        bench.run(
            RunBench("", BenchName.USE_CACHE),
            load(BY_NAME["rwkv"].save(tmp_path / "rwkv")),
            engine_config,
            lambda: False,
        )
    assert refused.value.params == {"model": "rwkv", "why": "no_cache"}


def test_a_line_is_fitted_as_by_hand() -> None:
    line = fit_line([1, 2, 3], [3.0, 5.0, 7.0])
    assert line is not None
    assert (line.slope, line.intercept, line.r2, line.spread, line.growth) == (2.0, 1.0, 1.0, 0.0, 7 / 3)
    flat = fit_line([1, 2, 3], [4.0, 4.0, 4.0])
    assert flat is not None
    assert (flat.slope, flat.r2, flat.growth) == (0.0, None, 1.0)
    noisy = fit_line([0, 1, 2, 3], [0.0, 1.0, 0.0, 1.0])
    assert noisy is not None
    assert noisy.r2 == pytest.approx(0.2)
    assert fit_line([5, 5], [1.0, 2.0]) is None


# memory


def test_blocks_waste_less_than_four_percent_of_a_real_mix(
    load: Callable[[Path], LoadedModel], measure: Measure, tmp_path: Path
) -> None:
    model = load(build_model(tmp_path / "long", max_position_embeddings=8192))
    found = measure(BenchName.MEMORY, model)
    rows = {row["scheme"]: row for row in found.rows}
    used = sum(chat_lengths(8192)) * BYTES_PER_TOKEN
    assert {row["used_bytes"] for row in found.rows} == {used}
    assert all(row["is_measured"] and row["allocated_bytes"] >= used for row in found.rows)
    assert rows["contiguous-whole"]["allocated_bytes"] == 50 * 8192 * BYTES_PER_TOKEN
    assert 0.2 < rows["contiguous-doubling"]["waste_ratio"] < 0.5 < rows["contiguous-whole"]["waste_ratio"]
    for size in (16, 32, 64):
        blocks = sum(-(-length // size) for length in found.result["lengths"])
        assert rows[f"paged-{size}"]["allocated_bytes"] == blocks * size * BYTES_PER_TOKEN
        assert rows[f"paged-{size}"]["waste_ratio"] < 0.04
    assert rows["ember-active"]["waste_ratio"] < 0.04
    assert rows["ember-parked"]["waste_bytes"] == 0


def test_what_is_too_large_to_be_allocated_is_computed_and_says_so(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny_model)
    real = {row["scheme"]: row for row in measure(BenchName.MEMORY, model).rows}
    capacities: list[int] = []
    build = KVArena.__init__

    def counted(arena: KVArena, geometry: Any, capacity: int, *given: Any, **named: Any) -> None:
        capacities.append(capacity)
        build(arena, geometry, capacity, *given, **named)

    monkeypatch.setattr(KVArena, "__init__", counted)
    monkeypatch.setattr("engine.lab.memory._MOST_BYTES", 300 * BYTES_PER_TOKEN)
    computed = {row["scheme"]: row for row in measure(BenchName.MEMORY, model).rows}
    assert max(capacities) < 512
    assert computed["contiguous-whole"]["computed_chats"] == 50
    assert not computed["contiguous-whole"]["is_measured"]
    for scheme, row in computed.items():
        slack = 0.04 if scheme == "ember-active" else 0  # whose slack depends on how it grew
        assert row["allocated_bytes"] == pytest.approx(real[scheme]["allocated_bytes"], rel=slack), scheme


def test_the_mix_of_chats_is_always_the_same_and_fits_the_model() -> None:
    lengths = chat_lengths(8192)
    assert lengths == chat_lengths(8192)
    assert len(lengths) == 50
    assert sorted(lengths)[24] <= 640 <= sorted(lengths)[25]
    assert max(lengths) > 10 * 640
    assert max(chat_lengths(512)) <= 512
    assert min(chat_lengths(64)) >= 1


# loop


def test_the_loop_feeds_one_token_a_step_and_the_cache_grows_by_one(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path
) -> None:
    model = load(tiny_model)
    found = measure(BenchName.LOOP, model)
    prompt = found.result["context"]
    assert [row["fed"] for row in found.rows] == [prompt, *[1] * (len(found.rows) - 1)]
    for number, row in enumerate(found.rows):
        assert row["cache_tokens"] == prompt + number
        assert row["cache_bytes"] == row["cache_tokens"] * BYTES_PER_TOKEN
        assert [row["id"], row["text"]] == [row["best"][0]["id"], row["best"][0]["text"]]
        logits = [one["logit"] for one in row["best"]]
        assert len(logits) == 5
        assert logits == sorted(logits, reverse=True)
        assert 0 < sum(one["probability"] for one in row["best"]) <= 1 + 1e-9
    cache = model.new_cache()
    ids = found.result["prompt"]
    assert "lighthouse" in ids
    logits = model.forward(model.tokenizer.encode(ids), cache)
    assert int(logits.argmax()) == found.rows[0]["id"]
    assert measure(BenchName.LOOP, model, 20).result["context"] == 20


# precisions


def test_every_codec_is_smaller_and_its_reply_stands_beside_the_full_one(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path
) -> None:
    found = measure(BenchName.PRECISIONS, load(tiny_model), 256)
    rows = {row["scheme"]: row for row in found.rows}
    assert list(rows) == ["full", "int8", "balanced", "compact", "bnb-8bit", "bnb-nf4"]
    assert not any(row.get("error") for row in found.rows)
    full = rows["full"]
    assert (full["ratio"], full["kl"], full["first_difference"], full["different_text"]) == (1, 0, None, "")
    assert full["bytes_per_token"] == BYTES_PER_TOKEN
    sizes = [rows[name]["bytes_per_token"] for name in ("full", "int8", "balanced", "compact")]
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < rows["int8"]["kl"] < rows["bnb-nf4"]["kl"]
    for row in found.rows:
        first = row["first_difference"]
        if first is None:
            assert row["reply_ids"] == full["reply_ids"]
        else:
            assert row["reply_ids"][:first] == full["reply_ids"][:first]
            assert row["reply_ids"][first : first + 1] != full["reply_ids"][first : first + 1]
        assert row["decode_tps"] > 0


# attention


def test_every_way_of_attending_computes_the_same(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path
) -> None:
    found = measure(BenchName.ATTENTION, load(tiny_model), 128)
    assert {row["length"] for row in found.rows} == {8, 32, 128}
    assert {row["backend"] for row in found.rows} == {"math", "efficient", "flash", "cudnn", "eager", "ember"}
    here = [row for row in found.rows if row["error"] is None]
    assert {"math", "eager", "ember"} <= {row["backend"] for row in here}
    assert all(row["ms"] > 0 and row["max_difference"] < 1e-5 for row in here)
    missing = [row for row in found.rows if row["error"] is not None]
    assert all((row["ms"], row["max_difference"]) == (None, None) for row in missing)
    if not torch.cuda.is_available():
        told = {(row["backend"], row["error"]) for row in missing}
        assert told >= {("cudnn", "needs CUDA"), ("efficient", "needs CUDA")}


@pytest.mark.native_dtype
def test_the_compiled_attention_is_that_of_the_formula(compiled_kernels: None) -> None:
    from engine.lab.attention import _eager
    from engine.lab.compiled_attention import CompiledAttention

    attend = CompiledAttention.of(64, torch.bfloat16)
    assert attend is not None
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, n, 64).bfloat16() for heads, n in ((6, 1), (2, 300), (2, 300)))
    expected = _eager((query.float(), key.float(), value.float()), 3)
    torch.testing.assert_close(attend((query, key, value)), expected, rtol=1e-4, atol=1e-5)
    assert CompiledAttention.of(64, torch.float32) is None
    assert CompiledAttention.of(40, torch.bfloat16) is None


# shared prefix


def test_what_chats_share_is_fed_once_and_kept_once(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path, engine_config: EngineConfig
) -> None:
    found = measure(BenchName.SHARED_PREFIX, load(tiny_model), 256)
    apart = [row for row in found.rows if not row["sharing"]]
    shared = [row for row in found.rows if row["sharing"]]
    whole = 256 + 64
    assert [row["tokens_fed"] for row in apart] == [whole] * 4
    assert [row["tokens_fed"] for row in shared] == [whole, 64, 64, 64]
    assert [row["memory_bytes"] for row in apart] == [n * whole * BYTES_PER_TOKEN for n in (1, 2, 3, 4)]
    assert [row["memory_bytes"] for row in shared] == [(256 + n * 64) * BYTES_PER_TOKEN for n in (1, 2, 3, 4)]
    assert found.result["totals"]["shared"]["tokens_fed"] == whole + 3 * 64
    assert list(engine_config.kv_dir.glob("bench-*")) == []


def test_a_prefix_is_shared_up_to_a_checkpoint_where_caches_cannot_be_cut(
    load: Callable[[Path], LoadedModel], measure: Measure, window_model: Path
) -> None:
    found = measure(BenchName.SHARED_PREFIX, load(window_model), 128)
    assert [row["tokens_fed"] for row in found.rows if row["sharing"]] == [192, 64, 64, 64]


# heads


def test_fewer_key_value_heads_take_less_in_proportion(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads_experiment, "_ROUNDS", 1)
    found = measure(BenchName.HEADS, load(tiny_model), 64)
    assert [(row["kind"], row["kv_heads"]) for row in found.rows] == [("MHA", 8), ("GQA", 2), ("MQA", 1)]
    least = found.rows[-1]["bytes_per_token"]
    assert [row["bytes_per_token"] for row in found.rows] == [8 * least, 2 * least, least]
    assert [row["cache_bytes"] for row in found.rows] == [64 * row["bytes_per_token"] for row in found.rows]


# kvzip


def test_the_less_is_kept_the_fewer_bytes_there_are(
    load: Callable[[Path], LoadedModel], measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "MOST_ANSWER_TOKENS", 2)
    model = load(build_model(tmp_path / "long", max_position_embeddings=2048))
    found = measure(BenchName.KVZIP, model, 700)
    assert [row["keep_percent"] for row in found.rows] == [100, 70, 50, 30, 20, 10]
    sizes = [row["bytes"] for row in found.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == found.result["context"] * BYTES_PER_TOKEN
    for row in found.rows:
        assert row["asked"] == 5
        assert row["recalled"] == sum(row["facts_recalled"])
        assert row["kept"] >= row["keep_percent"] / 100 - 1e-3  # the end of the chat is kept whole


# prefill and decode


def test_reading_does_many_operations_a_byte_and_writing_few(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path
) -> None:
    model = load(tiny_model)
    found = measure(BenchName.PREFILL_DECODE, model, 256)
    assert [row["length"] for row in found.rows] == [64, 128, 256]
    assert found.result["parameters"] == sum(one.numel() for one in model.forward.model.parameters())
    for row in found.rows:
        assert row["prefill_intensity"] > 5 * row["decode_intensity"] > 0
        assert row["ratio"] == pytest.approx(row["prefill_tps"] / row["decode_tps"])
        assert row["kv_bytes"] == row["length"] * BYTES_PER_TOKEN


# all of them


def test_decode_prefill_and_resume_tell_how_far_they_are(
    load: Callable[[Path], LoadedModel], measure: Measure, tiny_model: Path
) -> None:
    model = load(tiny_model)
    assert measure(BenchName.DECODE, model, 64).result["decode_tps"] > 0
    assert measure(BenchName.PREFILL, model, 64).result["prefill_tps"] > 0
    resumed = measure(BenchName.RESUME, model, 128).result
    assert (resumed["context"], resumed["reused_tokens"] >= 96) == (128, True)


LAB = [name for name in BenchName if name is not BenchName.FIDELITY]


@pytest.mark.parametrize("name", LAB)
def test_each_ends_at_once_when_cancelled(
    load: Callable[[Path], LoadedModel], engine_config: EngineConfig, tmp_path: Path, name: BenchName
) -> None:
    model = load(build_model(tmp_path / "long", max_position_embeddings=2048))
    in_use = model.forward.on_out_of_memory
    calls = 0

    def is_cancelled() -> bool:
        nonlocal calls
        calls += 1
        return calls > 2

    if name is BenchName.PREFILL:
        calls = 2
    with pytest.raises(StoppedError, match="stopped"):
        bench.run(RunBench("", name), model, engine_config, is_cancelled)
    assert calls == 3, "it is asked no more"
    assert model.forward.on_out_of_memory is in_use
    assert [*engine_config.kv_dir.glob("bench-*")] == []


@pytest.mark.parametrize(
    "name", [name for name in LAB if name not in (BenchName.HEADS, BenchName.LOOP, BenchName.KVZIP)]
)
@pytest.mark.parametrize("context", [1_000_000, 511 + 2])
def test_a_context_that_does_not_fit_is_refused_in_a_sentence(
    load: Callable[[Path], LoadedModel], engine_config: EngineConfig, tiny_model: Path, name: BenchName, context: int
) -> None:
    with pytest.raises(ContextOverflowError, match=r"^--context must be between \d+ and [\d,]+ for tiny\.$") as refused:
        bench.run(RunBench("", name, context), load(tiny_model), engine_config, lambda: False)
    most = int(refused.value.params["most"])
    assert int(refused.value.params["least"]) < most <= 512
    assert 512 - most <= ROOM.get(name, 512), "the window offers no length that is refused"


@pytest.mark.parametrize(
    "name", [BenchName.PRECISIONS, BenchName.SHARED_PREFIX, BenchName.KVZIP, BenchName.MEMORY, BenchName.ATTENTION]
)
@pytest.mark.parametrize("family", ["mamba2", "rwkv"])
def test_a_model_without_such_a_cache_is_refused_in_a_sentence(
    load: Callable[[Path], LoadedModel], engine_config: EngineConfig, tmp_path: Path, name: BenchName, family: str
) -> None:
    with pytest.raises(CannotMeasureError) as refused:
        bench.run(RunBench("", name), load(BY_NAME[family].save(tmp_path / family)), engine_config, lambda: False)
    assert str(refused.value).endswith(".")
    assert "choose another model" in str(refused.value)


def test_kvzip_is_refused_where_layers_do_not_see_the_whole_chat(
    load: Callable[[Path], LoadedModel], engine_config: EngineConfig, window_model: Path
) -> None:
    with pytest.raises(CannotMeasureError, match="see the whole chat") as refused:
        bench.run(RunBench("", BenchName.KVZIP), load(window_model), engine_config, lambda: False)
    assert refused.value.params["why"] == "windowed"


def test_why_a_model_cannot_be_measured_is_said_in_the_windows_words() -> None:
    told = {"model": "tiny", "context_length": "64", "tokens": "9", "why": ""}
    unknown = failure_words(Failed("", None, CannotMeasureError.code, "", told))
    for why in get_args(Why):
        words = failure_words(Failed("", None, CannotMeasureError.code, "", told | {"why": why}))
        assert words != unknown, why
        assert words.endswith(".")
        assert "choose another" in words


def test_a_folder_that_cannot_be_written_is_a_sentence(
    load: Callable[[Path], LoadedModel], engine_config: EngineConfig, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    config = replace(engine_config, kv_dir=tmp_path / "file" / "kv")
    for name in (BenchName.SHARED_PREFIX, BenchName.RESUME):
        with pytest.raises(NoScratchError, match=r"^Ember cannot write to .*; free some space") as refused:
            bench.run(RunBench("", name, 64), load(tiny_model), config, lambda: False)
        assert set(refused.value.params) == {"path", "reason"}


def test_a_number_that_is_none_is_told_as_none() -> None:
    assert finite({"a": [math.inf, 1.0], "b": (math.nan,), "c": "x"}) == {"a": [None, 1.0], "b": [None], "c": "x"}
