"""The compiled step in trouble: input and weights that are wrong, and what its threads do when nobody asks for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from engine.model.forward import ForwardPass
from engine.model.loader import LoadedModel
from tests.engine import lean_models

IDS = [30, 40, 50, 60, 7, 8, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lean_models.BY_NAME["qwen3"].save(tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture
def load(
    compiled_kernels: None, folder: Path, load_in_bfloat16: Callable[[Path], LoadedModel]
) -> Callable[[], LoadedModel]:
    return lambda: load_in_bfloat16(folder)


def logits(model: LoadedModel) -> torch.Tensor:
    return model.forward.all_logits(IDS, model.new_cache())


def all_helpers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("ember-step-")}


OTHERS: set[threading.Thread] = set()  # helpers of models that other files still hold


@pytest.fixture(autouse=True)
def only_helpers_of_this_test() -> None:
    OTHERS.clear()
    OTHERS.update(all_helpers())


def helpers() -> list[threading.Thread]:
    return list(all_helpers() - OTHERS)


# bad input


@pytest.mark.parametrize("wrong", [-1, lean_models.VOCABULARY, 2**40])
def test_an_id_outside_the_vocabulary_is_refused_and_nothing_lost(load: Callable[[], LoadedModel], wrong: int) -> None:
    model = load()
    expected = logits(model)
    cache = model.new_cache()
    model.forward.all_logits(IDS[:4], cache)
    for ids in ([wrong], [*IDS, wrong], [5] * 20 + [wrong]):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            model.forward(ids, cache)
        assert cache.token_ids == IDS[:4]
    assert torch.equal(model.forward.all_logits(IDS[4:], cache), expected[4:])


def test_too_many_ids_or_none_are_refused(load: Callable[[], LoadedModel]) -> None:
    model = load()
    step, cache = model.forward.step, model.new_cache()
    assert step is not None
    for ids in ([], [5] * 9):
        with pytest.raises(ValueError, match="cannot be fed at once"):
            step.feed(ids, cache)
    assert torch.isfinite(step.feed([5] * 8, cache)).all()


MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [*MATRICES, "input_layernorm", "k_norm", "model.norm", "lm_head"])
def test_weights_that_are_no_numbers_show_in_the_logits(
    lean_step: Callable[..., ForwardPass], name: str, value: float
) -> None:
    network = lean_models.BY_NAME["qwen3"].build().bfloat16()
    damaged = [weight for at, weight in network.named_parameters() if f"{name}.weight" in at]
    with torch.no_grad():
        damaged[-1].view(-1)[5] = value
    forward = lean_step(network)
    logits = forward.all_logits(IDS, lean_models.new_cache(network))
    assert not torch.isfinite(logits).all(dim=1).any()


# threads


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_helpers_end_with_the_model(load: Callable[[], LoadedModel]) -> None:
    model = load()
    logits(model)
    assert len(helpers()) == 2
    other = load()
    logits(other)
    assert len(helpers()) == 4
    model.close()
    assert len(helpers()) == 2
    other.close()
    other.close()
    assert helpers() == []


@pytest.mark.usefixtures("three_threads")
def test_an_idle_helper_uses_no_processor(load: Callable[[], LoadedModel]) -> None:
    model = load()
    expected = logits(model)
    deadline = time.monotonic() + 30
    while is_working(0.5) and time.monotonic() < deadline:
        pass
    assert not is_working(0.5)
    assert torch.equal(logits(model), expected)  # and it wakes up again


def is_working(seconds: float) -> bool:
    """Whether a helper uses more than a hundredth of a processor."""
    numbers = {thread.native_id for thread in helpers()}
    assert numbers

    def used_s() -> float:
        times = psutil.Process().threads()
        return float(sum(one.user_time + one.system_time for one in times if one.id in numbers))

    before = used_s()
    threading.Event().wait(seconds)
    return used_s() - before > seconds / 100
