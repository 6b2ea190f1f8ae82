"""The calculator's shapes against the caches that transformers really fills, family by family."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicCache

from app.cache_config import ShapeUnknownError, shape_of_config
from app.cache_shape import HeadKind, LayerKind
from app.cache_size import cache_bytes
from engine.kv import layer_kinds
from tests.engine.families import BY_NAME, FAMILIES, WINDOW, Family

REFUSED = ("recurrent_gemma", "rwkv", "deepseek_v4", "deepseek_v32")
TOKENS = 42


@pytest.mark.parametrize("family", [one for one in FAMILIES if one.name not in REFUSED], ids=lambda one: one.name)
@torch.inference_mode()
def test_the_bytes_of_a_shape_are_those_of_the_tensors(family: Family) -> None:
    model = family.build().to(torch.bfloat16)
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.arange(TOKENS)[None], cache=cache, use_cache=True)
    tensors = [layer_kinds.tensors(layer) for layer in cache.layers]
    actual = sum(tensor.nbytes for layer in tensors for tensor in layer.values())
    shape = shape_of_config(model.config.to_dict())
    # After a pass, a sliding layer keeps one token less than it attends to.
    slack = sum(
        2 * group.num_layers * group.numbers_per_token
        for group in shape.groups
        if group.kind in (LayerKind.SLIDING, LayerKind.CHUNKED)
    )
    assert cache_bytes(shape, TOKENS).total_bytes - slack == actual


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_configuration_does_not_tell_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(ShapeUnknownError, match=r"--layers, --kv-heads and --head-dim\.$"):
        shape_of_config(BY_NAME[name].config().to_dict())


def test_kinds_of_layers_are_told_apart() -> None:
    shape = shape_of_config(BY_NAME["gemma3n_text"].config().to_dict())
    assert [(group.kind, group.num_layers, group.window) for group in shape.groups] == [
        (LayerKind.SLIDING, 1, WINDOW),
        (LayerKind.FULL, 1, None),
        (LayerKind.SHARED, 2, None),
    ]
    kinds = {name: shape_of_config(BY_NAME[name].config().to_dict()).kind for name in ("gpt2", "llama", "falcon")}
    assert kinds == {"gpt2": HeadKind.MHA, "llama": HeadKind.GQA, "falcon": HeadKind.MQA}
    assert shape_of_config(BY_NAME["deepseek_v3"].config().to_dict()).kind is HeadKind.MLA
    assert shape_of_config(BY_NAME["mamba"].config().to_dict()).kind is None
