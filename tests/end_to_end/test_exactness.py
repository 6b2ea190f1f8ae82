"""Resumed equals never closed, bit for bit, with the real weights in the type this machine computes in."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
import torch

from engine.kv.restorer import SnapshotRestorer
from engine.kv.saver import SaveResult, SnapshotSaver
from engine.kv.snapshot_tensors import cache_bytes
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel, load_model
from engine.protocol.config import EngineConfig, Weights
from tests.end_to_end.conftest import long_message


@pytest.fixture(scope="module")
def model(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("engine")
    return load_model(default_model, Weights.BITS_16, EngineConfig(folder, folder), lambda stage: None)


def test_logits_after_a_restore_are_bit_for_bit_those_of_the_cache_never_closed(
    model: LoadedModel, tmp_path: Path
) -> None:
    ids = model.tokenizer.encode(long_message(30), add_special_tokens=False)
    head, turn = ids[:700], ids[700:723]
    cache = model.new_cache(len(ids))
    model.forward(head[:512], cache)
    model.forward(head[512:], cache)
    assert isinstance(cache, WorkingCache)
    results: queue.Queue[SaveResult] = queue.Queue()
    saver = SnapshotSaver(results.put)
    path = tmp_path / "c.safetensors"
    saver.save("c", "r", path, model.fingerprint.digest, cache_bytes(cache))
    assert results.get(timeout=60).error is None
    assert saver.close(60)
    assert model.geometry is not None
    restorer = SnapshotRestorer(model.fingerprint.digest, model.geometry)
    resumed = model.new_cache(10)
    assert isinstance(resumed, WorkingCache)
    restorer.restore(path, resumed, restorer.token_ids(path))
    restorer.close()
    steps = [turn, *[[token] for token in ids[723:735]]]
    for step in steps:
        assert torch.equal(model.forward(step, cache), model.forward(step, resumed))


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
    assert model.geometry is not None
    from engine.kv.arena import KVGeometry

    cache = WorkingCache(KVGeometry(model.geometry.layers, torch.float32), 512, torch.device("cpu"))
    for start in range(0, 200, 37):
        logits = forward(ids[start : start + 37], cache)
    assert (logits - expected).abs().max() < 1e-3
    assert int(logits.argmax()) == int(expected.argmax())
