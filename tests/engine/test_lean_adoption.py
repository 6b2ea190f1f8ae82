"""When the compiled step is taken into use, and when it is set aside: then the model answers as it would without."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.kernels.compile import BUSY
from engine.model import acceleration
from engine.model.lean_weights import LeanWeights, describe
from engine.model.loader import LoadedModel
from tests.engine import lean_models

IDS = [30, 40, 50, 60, 7, 8, 9]


@pytest.fixture(autouse=True)
def no_other_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes the compiled step's place but the model's own pass."""
    monkeypatch.setattr(acceleration, "can_multiply", lambda weights: False, raising=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def name() -> str:
    """The family that is loaded."""
    return "qwen3"


@pytest.fixture
def folder(name: str, root: Path) -> Path:
    return root / name if (root / name).is_dir() else lean_models.BY_NAME[name].save(root / name)


@pytest.fixture
def load(folder: Path, load_in_bfloat16: Callable[[Path], LoadedModel]) -> Callable[[], LoadedModel]:
    return lambda: load_in_bfloat16(folder)


@pytest.fixture
def expected(load: Callable[[], LoadedModel], monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Logits of the model's own pass."""
    with monkeypatch.context() as patch:
        patch.setattr("engine.model.loader.accelerate", lambda *arguments: None)
        return logits(load())


def logits(model: LoadedModel) -> torch.Tensor:
    return model.forward.all_logits(IDS, model.new_cache())


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ember-step-")]


def check_own_pass(model: LoadedModel, expected: torch.Tensor) -> None:
    assert model.forward.step is None
    assert not model.forward.multi_token_is_exact
    assert torch.equal(logits(model), expected)
    assert helpers() == []


# described wrongly


WRONG: dict[str, Callable[[LeanWeights], object]] = {
    "epsilon": lambda one: 1.0,
    "attention_scale": lambda one: 4 * one.attention_scale,
    "residual_scale": lambda one: 2 * one.residual_scale,
    "embedding_scale": lambda one: one.embedding_scale / 4,
    "logits_scale": lambda one: one.logits_scale / 2,
    "activation": lambda one: "gelu_tanh",
    "qk_norm": lambda one: "full_width",
    "rope_dim": lambda one: 32,
    "rotary": lambda one: lambda x, positions: one.rotary(x, -positions),
    "final_norm": lambda one: torch.ones_like(one.final_norm),
    "head": lambda one: one.embedding,
    "layers": lambda one: one.layers[::-1],
}


OF_GRANITE = ("residual_scale", "embedding_scale", "logits_scale")


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize(("part", "name"), [(part, "granite" if part in OF_GRANITE else "qwen3") for part in WRONG])
def test_a_model_described_wrongly_runs_by_its_own_pass(
    load: Callable[[], LoadedModel], expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def describe_wrongly(*arguments: Any) -> LeanWeights:
        described: Any = describe(*arguments)
        fields = {name: getattr(described, name) for name in LeanWeights.__dataclass_fields__}
        return LeanWeights(**{**fields, part: WRONG[part](described)})

    monkeypatch.setattr(acceleration, "describe", describe_wrongly)
    model = load()
    assert model.acceleration is not None
    check_own_pass(model, expected)


# compiled or not


class Compiling:
    """The process that compiles: `poll` tells its exit status, or None while it runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status: int | None = None
        self.num_started = 0
        self.is_compiled = False
        self.can_start = True
        monkeypatch.setattr(acceleration, "is_compiled", lambda: self.is_compiled)
        monkeypatch.setattr(acceleration, "start_compiling", self._start)

    def _start(self) -> SimpleNamespace | None:
        self.num_started += 1
        self.status = None
        return SimpleNamespace(poll=lambda: self.status) if self.can_start else None


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(monkeypatch)


@pytest.mark.usefixtures("compiled_kernels")
def test_the_step_is_taken_into_use_once_compiled(
    load: Callable[[], LoadedModel], expected: torch.Tensor, compiling: Compiling
) -> None:
    model = load()
    for _ in range(3):
        check_own_pass(model, expected)
        model.poll()
    assert compiling.num_started == 1
    compiling.is_compiled = True
    compiling.status = 0
    model.poll()
    assert model.forward.step is not None
    assert model.forward.multi_token_is_exact
    torch.testing.assert_close(logits(model), expected, rtol=0.1, atol=0.1 * float(expected.std()))
    step = model.forward.step
    model.poll()
    assert model.forward.step is step


def test_a_compiling_that_fails_is_not_tried_again(
    load: Callable[[], LoadedModel], expected: torch.Tensor, compiling: Compiling
) -> None:
    model = load()
    compiling.status = 1
    for _ in range(3):
        model.poll()
    assert compiling.num_started == 1
    check_own_pass(model, expected)


def test_while_another_program_compiles_it_is_asked_again(
    load: Callable[[], LoadedModel], expected: torch.Tensor, compiling: Compiling
) -> None:
    model = load()
    for asked in (2, 3):
        compiling.status = BUSY
        model.poll()
        assert compiling.num_started == asked
    check_own_pass(model, expected)


def test_where_no_process_can_be_started_the_model_runs_as_it_is(
    load: Callable[[], LoadedModel], expected: torch.Tensor, compiling: Compiling
) -> None:
    compiling.can_start = False
    model = load()
    model.poll()
    assert compiling.num_started == 1
    check_own_pass(model, expected)


def test_without_numba_the_model_runs_as_it_is(
    load: Callable[[], LoadedModel], expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceleration, "has_numba", lambda: False)
    model = load()
    assert model.acceleration is None
    check_own_pass(model, expected)
