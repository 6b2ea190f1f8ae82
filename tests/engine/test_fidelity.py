"""What `ember bench fidelity` measures, on tiny random models: rows, orders of size, and what outlier channels do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import bench
from engine.fidelity import measure, recall, speed
from engine.fidelity.divergence import Divergence, StoppedError
from engine.fidelity.schemes import SCHEMES, Scheme
from engine.fidelity.texts import NAMES, Texts, read_text
from engine.model.loader import LoadedModel, load_model
from engine.one_thread import one_thread
from engine.protocol.commands import BenchName, RunBench
from engine.protocol.config import EngineConfig, Weights
from engine.protocol.errors import ContextOverflowError
from tests.engine.conftest import build_model, build_tokenizer

CONTEXT, SCORED = 384, 12
HEAD_DIM = 16
NUMBERS = (
    "ratio",
    "ratio_whole",
    "kl",
    "top1",
    "ppl_delta",
    "decode_tps",
    "decode_ratio",
    "steady_bytes",
    "peak_bytes",
)


@pytest.fixture
def load(engine_config: EngineConfig) -> Iterator[Callable[[Path], LoadedModel]]:
    loaded: list[LoadedModel] = []

    def load(folder: Path) -> LoadedModel:
        loaded.append(load_model(folder, Weights.BITS_16, engine_config, lambda stage: None))
        return loaded[-1]

    yield load
    for model in loaded:
        model.close()


def run(model: LoadedModel, schemes: tuple[Scheme, ...] = SCHEMES, context: int = CONTEXT) -> dict[str, Any]:
    return measure.run(model, context, 128, lambda: False, scored=SCORED, schemes=schemes)


def rows(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["scheme"]: row for row in result["rows"]}


def named(*names: str) -> tuple[Scheme, ...]:
    return tuple(scheme for scheme in SCHEMES if scheme.name in names)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything as it is, but less of it, and on one thread, as more only wait for one another."""
    monkeypatch.setattr(measure, "NAMES", NAMES[:2])
    monkeypatch.setattr(measure, "_SHORT_RECALL", 600)
    monkeypatch.setattr(measure, "_LONG_CONTEXT", 700)
    monkeypatch.setattr(recall, "MOST_ANSWER_TOKENS", 2)
    monkeypatch.setattr(speed, "STEPS", 2)
    monkeypatch.setattr(speed, "MOST_STEPS", 4)
    with one_thread():
        yield


def test_every_scheme_has_finite_numbers(small: None, load: Callable[[Path], LoadedModel], tmp_path: Path) -> None:
    result = run(load(build_model(tmp_path / "long", max_position_embeddings=2048)))
    found = rows(result)
    assert list(found) == [scheme.name for scheme in SCHEMES]
    for row in found.values():
        assert "error" not in row, row
        assert all(math.isfinite(row[name]) for name in NUMBERS), row
        assert row["kl"] >= -1e-12
        assert row["peak_bytes"] >= row["steady_bytes"] > 0
        assert set(row["texts"]) == set(NAMES[:2])
    full = found["full"]
    assert (full["kl"], full["top1"], full["ppl_delta"], full["ratio"], full["ratio_whole"]) == (0, 1, 0, 1, 1)
    assert 0 < found["int8"]["kl"] < found["compact"]["kl"] < found["compact-no-ends"]["kl"]
    assert found["kvzip-70"]["kl"] < found["kvzip-30"]["kl"]
    assert found["kvzip-30-int8"]["ratio"] < 0.6 * found["kvzip-30"]["ratio"] < 0.2
    assert (result["context"], result["scored_tokens"], result["texts"]) == (CONTEXT, SCORED, list(NAMES[:2]))
    assert len(result["recall_contexts"]) == 2
    assert result["noise_floor_kl"] < 1e-6


def test_a_short_context_has_no_facts_but_speed(
    small: None, load: Callable[[Path], LoadedModel], tiny_model: Path
) -> None:
    told: list[tuple[int, int]] = []
    schemes = named("full", "int8")
    found = rows(
        measure.run(
            load(tiny_model),
            CONTEXT,
            128,
            lambda: False,
            scored=SCORED,
            schemes=schemes,
            on_progress=lambda done, total: told.append((done, total)),
        )
    )
    assert told == [(done, 6) for done in range(7)], "two texts and the speed, two schemes each"
    assert found["int8"]["recall"] is None
    assert found["int8"]["decode_tps"] > 0
    assert found["int8"]["ratio"] < 0.4  # of float32


def test_what_a_model_cannot_do_is_told_in_its_row(
    small: None, load: Callable[[Path], LoadedModel], window_model: Path
) -> None:
    found = rows(run(load(window_model), named("full", "int8", "kvzip-30")))
    assert (found["full"]["kl"], found["full"]["ratio"]) == (0, 1)
    assert found["int8"]["kl"] > 0
    assert "attend to the whole chat" in found["kvzip-30"]["error"]
    assert found["kvzip-30"]["kl"] is None


def test_a_scheme_that_leaves_so_short_a_text_alone_says_so(
    small: None, load: Callable[[Path], LoadedModel], tiny_model: Path
) -> None:
    found = rows(run(load(tiny_model), named("full", "compact", "int8"), context=100))
    assert "too few" in found["compact"]["error"]
    assert found["int8"]["kl"] > 0


def test_a_codec_that_fails_does_not_end_the_measurement(
    small: None, load: Callable[[Path], LoadedModel], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("engine.kv.codecs.blockwise._functional", fail)
    found = rows(run(load(tiny_model), named("full", "bnb-nf4", "int8")))
    assert found["bnb-nf4"]["error"] == "no such kernel"
    assert found["int8"]["kl"] > 0


def test_it_ends_when_cancelled(load: Callable[[Path], LoadedModel], tiny_model: Path) -> None:
    model = load(tiny_model)
    calls = 0

    def is_cancelled() -> bool:
        nonlocal calls
        calls += 1
        return calls > 40

    with pytest.raises(StoppedError, match="stopped"):
        measure.run(model, CONTEXT, 128, is_cancelled, scored=SCORED)
    assert calls == 41


@pytest.mark.parametrize("context", [1, 500, 100_000])
def test_a_context_that_does_not_fit_is_refused(
    load: Callable[[Path], LoadedModel], tiny_model: Path, engine_config: EngineConfig, context: int
) -> None:
    with pytest.raises(ContextOverflowError, match=r"between 64 and 261 ") as caught:
        bench.run(RunBench("", BenchName.FIDELITY, context), load(tiny_model), engine_config, lambda: False)
    assert str(caught.value).count(".") == 1


def test_outlier_channels_break_naive_4_bits_and_not_compact(
    small: None, load: Callable[[Path], LoadedModel], tmp_path: Path
) -> None:
    """Two channels of every key 50 times as large, and of every query as much smaller: the same function."""
    schemes = named("full", "compact-no-ends", "naive-int4")
    kl = {}
    for factor in (1.0, 50.0):
        folder = build_model(tmp_path / f"{factor}")
        file = folder / "model.safetensors"
        tensors = load_file(file)
        tensors["lm_head.weight"] *= 0.2  # predictions less sure of themselves than those of random weights
        for name, tensor in tensors.items():
            if scale := {"k_proj": factor, "q_proj": 1 / factor}.get(name.split(".")[-2]):
                heads = tensor.view(-1, HEAD_DIM, tensor.shape[1])
                heads[:, [3, 3 + HEAD_DIM // 2]] *= scale  # what the rotation turns into one another
        save_file(tensors, file, metadata={"format": "pt"})
        found = rows(run(load(folder), schemes))
        kl[factor] = {name: row["kl"] for name, row in found.items()}
        assert kl[factor]["full"] == 0
    assert kl[50.0]["compact-no-ends"] < 2 * kl[1.0]["compact-no-ends"] < 0.05
    assert kl[50.0]["naive-int4"] > 10 * kl[1.0]["naive-int4"]
    assert kl[50.0]["naive-int4"] > 10 * kl[50.0]["compact-no-ends"]


def test_divergence_is_that_of_the_definition() -> None:
    found = Divergence()
    full, other = torch.tensor([2.0, 0.0, -1.0]), torch.tensor([0.0, 1.0, -torch.inf])
    found.add(full, full, 0)
    found.add(full, torch.tensor([0.0, 2.0, -1.0]), 1)
    p, q = full.double().softmax(0), torch.tensor([0.0, 2.0, -1.0]).double().softmax(0)
    assert found.kl == [0.0, pytest.approx(float((p * (p / q).log()).sum()), rel=1e-12)]
    assert found.agrees == [True, False]
    assert found.figures()["top1"] == 0.5
    found.add(full, other, 1)
    assert found.kl[-1] == math.inf


def test_every_fact_stands_once_near_its_depth() -> None:
    text = read_text("dialogue-en") + read_text("prose-en")
    planted = recall.with_facts(text)
    shorter = planted
    for depth, fact in zip(recall.DEPTHS, recall.FACTS, strict=True):
        assert planted.count(fact.value) == 1
        assert planted.index(fact.sentence) / len(planted) == pytest.approx(depth, abs=0.02)
        shorter = shorter.replace(fact.sentence, "")
    assert shorter.split() == text.split()


def test_a_window_is_the_text_itself_or_ends_with_it() -> None:
    texts = Texts(build_tokenizer())
    tokenizer = build_tokenizer()
    own = tokenizer.encode(read_text("code-en"), add_special_tokens=False)
    assert texts.window("code-en", 100) == own[:100]
    longer = texts.window("code-en", len(own) + 50)
    assert longer[50:] == own
    assert tokenizer.decode(longer[:50]) in read_text("dialogue-ko")
    with pytest.raises(ValueError, match="tokens"):
        texts.window("code-en", texts.num_tokens + 1)


def test_no_text_repeats_itself() -> None:
    for name in NAMES:
        paragraphs = [part for part in read_text(name).split("\n\n") if len(part) > 60]
        assert len(paragraphs) == len(set(paragraphs)) > 5
