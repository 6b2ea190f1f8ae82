"""The compiled step computes what the model computes, for every family that it is used with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.kernels.packing import Format, unpack
from engine.model import lean_weights
from engine.model.forward import ForwardPass
from engine.model.lean_weights import describe
from engine.model.loader import LoadedModel
from engine.protocol.config import Weights
from tests.engine import lean_models
from tests.engine.families import BY_NAME as TINY
from tests.engine.lean_models import LEAN_FAMILIES, LeanFamily

IDS = [int(number) for number in torch.randint(2, lean_models.VOCABULARY, (48,), generator=torch.manual_seed(5))]
MOST_WORSE = 1.5
"""Both errors are those of rounding to bfloat16 on the way, in other places."""


@pytest.fixture
def load(
    compiled_kernels: None, tmp_path: Path, load_in_bfloat16: Callable[..., LoadedModel]
) -> Callable[..., LoadedModel]:
    return lambda family, *weights: load_in_bfloat16(family.save(tmp_path / family.name), *weights)


def logits_of(model: LoadedModel, at_once: int) -> torch.Tensor:
    cache = model.new_cache()
    pieces = [IDS[start : start + at_once] for start in range(0, len(IDS), at_once)]
    return torch.cat([model.forward.all_logits(piece, cache) for piece in pieces])


@torch.inference_mode()
def exact_logits(model: PreTrainedModel) -> torch.Tensor:
    logits: torch.Tensor = model.float()(torch.tensor([IDS])).logits[0]
    return logits


def error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative to the spread of the logits."""
    return float((logits - exact).norm() / (exact - exact.mean()).norm())


@pytest.mark.parametrize("family", LEAN_FAMILIES, ids=lambda family: family.name)
def test_logits_are_as_near_to_float32_as_the_models_own(load: Callable[..., LoadedModel], family: LeanFamily) -> None:
    model = load(family)
    exact = exact_logits(family.build())
    assert model.forward.step is not None
    assert model.forward.multi_token_is_exact
    errors = [error(logits_of(model, at_once), exact) for at_once in (1, 3, 8)]
    step, model.forward.step = model.forward.step, None
    own = error(logits_of(model, 1), exact)
    model.forward.step = step
    assert 0 < own < 0.05
    assert max(errors) < MOST_WORSE * own


@pytest.mark.parametrize("target", [Format.Q4, Format.Q8])
@pytest.mark.parametrize("name", ["llama", "phi3", "qwen3", "gemma"])
def test_packed_weights_count_as_the_numbers_they_stand_for(
    load: Callable[..., LoadedModel], name: str, target: Format, lean_step: Callable[..., ForwardPass]
) -> None:
    family = lean_models.BY_NAME[name]
    model = family.build().bfloat16()
    packed = lean_models.packed(model, target)
    forward = lean_step(model, packed)
    cache = lean_models.new_cache(model)
    logits = torch.cat([forward.all_logits(IDS[start : start + 4], cache) for start in range(0, len(IDS), 4)])
    rounded = family.build()
    for module_name, module in lean_models.matrices(rounded):
        module.weight.data = unpack(packed[module_name], torch.float32)
    assert error(logits, exact_logits(rounded)) < 0.03


@pytest.mark.parametrize("weights", [Weights.BITS_8, Weights.BITS_4])
@pytest.mark.parametrize("name", ["llama_biased", "phi3", "qwen2"])
def test_models_that_are_packed_as_they_load_run_by_the_step_too(
    load: Callable[..., LoadedModel], name: str, weights: Weights
) -> None:
    model = load(lean_models.BY_NAME[name], weights)
    assert model.forward.step is not None
    logits = logits_of(model, 8)
    assert torch.equal(logits, logits_of(model, 1))
    model.forward.step, step = None, model.forward.step
    own = logits_of(model, 1)
    model.forward.step = step
    assert error(logits, own) < 0.04


def test_every_family_is_tried_here() -> None:
    assert {family.model_type for family in LEAN_FAMILIES} == lean_weights.FAMILIES


# what it leaves alone


def describe_family(family: LeanFamily) -> lean_weights.LeanWeights | None:
    return describe(family.build().bfloat16())


@pytest.mark.parametrize("name", ["gpt2", "cohere", "mixtral", "deepseek_v3", "gemma2", "lfm2", "stablelm", "glm4"])
def test_other_families_are_left_to_their_own_pass(name: str) -> None:
    assert describe(TINY[name].build().bfloat16()) is None


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"head_dim": 16}, id="narrow heads"),
        pytest.param({"intermediate_size": 80}, id="an MLP of half groups"),
        pytest.param({"vocab_size": 377}, id="a vocabulary of odd size"),
        pytest.param({"hidden_act": "relu"}, id="another activation"),
        pytest.param(
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, id="dynamic rope"
        ),
    ],
)
def test_unfamiliar_parts_are_left_to_the_models_own_pass(overrides: dict[str, object]) -> None:
    assert describe_family(LeanFamily("llama", "llama")) is not None
    assert describe_family(LeanFamily("other", "llama", overrides)) is None


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("qwen3", {"attention_bias": True}),
        ("olmo2", {"attention_bias": True}),
        ("hyperclovax", {"use_post_norm": True, "mlp_bias": True}),
    ],
)
def test_a_norm_of_biased_numbers_is_left_to_the_models_own_pass(model_type: str, overrides: dict[str, object]) -> None:
    assert describe_family(LeanFamily("plain", model_type)) is not None
    assert describe_family(LeanFamily("biased", model_type, overrides)) is None


def test_sliding_layers_are_left_to_the_models_own_pass(load: Callable[..., LoadedModel]) -> None:
    assert load(LeanFamily("window", "mistral", {"sliding_window": 16})).acceleration is None


def test_weights_in_float32_are_left_to_the_models_own_pass() -> None:
    assert describe(lean_models.BY_NAME["llama"].build()) is None
