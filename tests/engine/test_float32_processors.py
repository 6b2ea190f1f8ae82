"""Processors that do not multiply bfloat16: the model computes in float32, and what it keeps is bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.kv.working_cache import ContiguousLayer, WorkingCache
from engine.protocol.commands import ChatMessage, Role
from engine.protocol.config import Weights
from tests.engine import lean_models
from tests.engine.conftest import Engine, user

StartEngine = Callable[..., Engine]
pytestmark = pytest.mark.usefixtures("compiled_kernels")  # float32 is what tests compute in


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lean_models.BY_NAME["qwen3"].save(tmp_path_factory.mktemp("models") / "qwen3")


def load(start_engine: StartEngine, path: Path, weights: Weights) -> tuple[Engine, torch.dtype, object]:
    engine = start_engine()
    engine.load(path, weights)
    model = engine.runtime._model
    assert model is not None
    assert model.info.dtype == "float32"
    return engine, model.geometry.dtype, model.forward.step


@pytest.mark.parametrize("weights", [Weights.BITS_8, Weights.BITS_4])
def test_packed_weights_get_the_compiled_step_and_a_bfloat16_cache(
    start_engine: StartEngine, chat_model: Path, weights: Weights
) -> None:
    _, dtype, step = load(start_engine, chat_model, weights)
    assert dtype is torch.bfloat16
    assert type(step).__name__ == "LeanStep"


def test_plain_weights_are_float32_and_stay_with_the_model_itself(start_engine: StartEngine, chat_model: Path) -> None:
    _, dtype, step = load(start_engine, chat_model, Weights.BITS_16)
    assert dtype is torch.float32
    assert step is None


def test_a_chat_resumed_after_a_restart_goes_on_with_the_same_tokens(
    start_engine: StartEngine, chat_model: Path
) -> None:
    first = user("the quick brown fox jumps over the lazy dog " * 4)
    replies = []
    for restarts in (False, True):
        engine, _, _ = load(start_engine, chat_model, Weights.BITS_4)
        one = engine.reply("a" if restarts else "b", [first], max_new_tokens=24)
        if restarts:
            engine, _, _ = load(start_engine, chat_model, Weights.BITS_4)
        history = [first, ChatMessage(Role.ASSISTANT, one.text, one.token_ids), user("and then?")]
        two = engine.reply("a" if restarts else "b", history, max_new_tokens=24)
        assert two.statistics.reused_tokens > 60
        replies.append((one.token_ids, two.token_ids))
    assert replies[0] == replies[1]


def test_a_layer_keeps_bfloat16_and_hands_out_what_the_model_computes_in() -> None:
    cache: WorkingCache = lean_models.new_cache(lean_models.BY_NAME["llama"].build().bfloat16(), 8)
    layer = cache.layers[0]
    assert isinstance(layer, ContiguousLayer)
    keys = torch.randn(1, 3, 5, cache.geometry.layers[0].key_dim)
    kept, _ = layer.update(keys, keys)
    assert cache.arena.keys[0].dtype is torch.bfloat16
    assert kept.dtype is torch.float32
    assert torch.equal(kept, keys.bfloat16().float())
