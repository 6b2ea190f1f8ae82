"""The default model in each precision: what its weights say, in less memory, and figures to compare."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.kernels.compile import has_numba
from engine.kernels.packing import Format, unpack
from engine.kv.fingerprint import hash_weights
from engine.model import packed_file
from engine.model.model_files import OWN_NUMBERS, check_weights
from engine.model.packed_weights import load_packed
from engine.protocol.config import Weights
from tests.end_to_end.conftest import Ember

QUESTION = "What is the capital of France?"
needs_numba = pytest.mark.skipif(not has_numba(), reason="needs numba")


@pytest.mark.parametrize("weights", ["16bit", "8bit", "4bit"])
def test_every_precision_knows_the_capital_of_france(ember: Ember, weights: str) -> None:
    assert "Paris" in ember.ask(QUESTION, "--new", "--weights", weights)["reply"]
    loads = ember.json("models")["models"][0]["loads"]
    assert loads.keys() == {weights}
    assert loads[weights]["load_s"] > 0
    assert loads[weights]["weights_bytes"] > (80e6 if weights == "4bit" else 95e6)
    assert f"{weights} " in ember.run("models")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("weights", ["4bit", "8bit"])
def test_quantized_weights_load_reply_and_resume_and_never_take_a_16_bit_snapshot(ember: Ember, weights: str) -> None:
    sixteen = ember.ask("Name three harbours.", "--new")
    chat = sixteen["conversation_id"]
    quantized = ember.ask("And three rivers.", "--conversation", chat, "--weights", weights, tokens=4)
    assert quantized["miss_reason"] == f"weights changed: saved with 16bit, now {weights}"
    assert quantized["reused_tokens"] == 0
    resumed = ember.ask("And a lake.", "--conversation", chat, "--weights", weights, tokens=4)
    assert resumed["miss_reason"] is None
    assert resumed["prefilled_tokens"] < 20


@pytest.fixture(scope="module")
def exact(default_model) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32).eval()


@needs_numba
def test_its_own_numbers_are_the_weights_to_the_last_bit(default_model, exact) -> None:
    own = packed_file.read(default_model / OWN_NUMBERS, hash_weights(check_weights(default_model), None))
    if own is None:
        pytest.skip("the set-up could not keep them")
    assert len(own) == 211
    assert {matrix.format for name, matrix in own.items() if ".layers." in name} == {Format.Q4}
    for name, matrix in own.items():
        assert torch.equal(unpack(matrix), exact.get_submodule(name).weight.bfloat16()), name


@needs_numba
@pytest.mark.parametrize(("weights", "most"), [(Weights.BITS_8, 0.15), (Weights.BITS_4, 0.15)])
@pytest.mark.parametrize("has_own_numbers", [True, False])
def test_logits_stay_near_those_of_float32(default_model, exact, tmp_path, weights, most, has_own_numbers) -> None:
    files = check_weights(default_model)
    identity = hash_weights(files, None) if has_own_numbers else "weights that no numbers belong to"
    loaded = load_packed(default_model, files, identity, weights, torch.float32, tmp_path, lambda: None)
    assert loaded is not None
    ids = torch.tensor([[1, 504, 3575, 282, 4649, 314, 260, 2240, 28, 357, 665, 260, 4092, 282, 5181, 30]])
    with torch.inference_mode():
        expected, found = exact(ids).logits[0], loaded.model(ids).logits[0]
    assert (found - expected).norm() < most * (expected - expected.mean(-1, keepdim=True)).norm()
