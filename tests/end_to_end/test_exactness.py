"""Resumed equals never closed, bit for bit, with the real weights in the type this machine computes in."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
import torch

from engine.kv.geometry import KVGeometry
from engine.kv.manager import CacheManager
from engine.kv.store.writer import SaveResult
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel, load_model, stock_layers
from engine.protocol.config import EngineConfig, Weights
from tests.end_to_end.conftest import long_message


@pytest.fixture(scope="module")
def model(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("engine")
    return load_model(default_model, Weights.BITS_16, EngineConfig(folder, folder), lambda stage: None)


@pytest.fixture(scope="module")
def ids(model: LoadedModel) -> list[int]:
    return list(model.tokenizer.encode(long_message(30), add_special_tokens=False))


def never_closed(model: LoadedModel, cache: WorkingCache, ids: list[int]) -> list[torch.Tensor]:
    """Logits of a turn of 23 tokens after 700, and of twelve more tokens one by one; the cache is cut back after it."""
    steps = [ids[700:723], *[[token] for token in ids[723:735]]]
    logits = [model.forward(step, cache) for step in steps]
    cache.rollback(700)
    return logits


@pytest.mark.parametrize("way", ["from disk", "from blocks", "from another chat's blocks"])
def test_logits_after_coming_back_are_bit_for_bit_those_of_the_cache_never_closed(
    model: LoadedModel, tmp_path: Path, ids: list[int], way: str
) -> None:
    results: queue.Queue[SaveResult] = queue.Queue()
    config = EngineConfig(tmp_path, tmp_path)
    caches = CacheManager(model, config, results.put, lambda event: None)
    cache = caches.activate("a", ids[:701]).cache
    model.forward(ids[:512], cache)
    model.forward(ids[512:700], cache)
    expected = never_closed(model, cache, ids)
    asked = "a"
    if way == "from disk":
        assert caches.save("a", "r") is None
        assert results.get(timeout=60).error is None
        caches.close(60)
        caches = CacheManager(model, config, results.put, lambda event: None)
    else:
        caches.activate("other", ids[40:60])
        caches.park_others("other")
        asked = "a" if way == "from blocks" else "b"
    active = caches.activate(asked, ids[:723])
    assert active.reused == 700
    resumed = [model.forward(ids[700:723], active.cache)]
    resumed += [model.forward([token], active.cache) for token in ids[723:735]]
    caches.close(60)
    for mine, theirs in zip(resumed, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_our_attention_agrees_with_the_stock_forward(model: LoadedModel, default_model: Path) -> None:
    """Chunked, on a cache, against transformers' own SDPA in one pass, both in float32."""
    from transformers import AutoModelForCausalLM

    from engine.kv import attention
    from engine.model.forward import ForwardPass

    ids = model.tokenizer.encode(long_message(8), add_special_tokens=False)[:200]
    stock = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32, attn_implementation="sdpa")
    with torch.inference_mode():
        expected = stock(torch.tensor([ids])).logits[0, -1]
    stock.set_attn_implementation(attention.NAME)
    forward = ForwardPass(stock, torch.device("cpu"))
    geometry = KVGeometry(model.geometry.layers, torch.float32)
    cache = WorkingCache(geometry, stock_layers(model.config, model.num_layers), 512, torch.device("cpu"))
    for start in range(0, 200, 37):
        logits = forward(ids[start : start + 37], cache)
    assert (logits - expected).abs().max() < 1e-3
    assert int(logits.argmax()) == int(expected.argmax())
