"""`ember bench heads`: small models of equal width, whose query heads share keys and values not at all, in groups, and
all together.

Their weights are random: measured is what heads cost in memory and time, not what they are worth.
"""

from __future__ import annotations

import statistics
from functools import partial

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.cache_utils import DynamicLayer

from engine.fidelity.divergence import StoppedError
from engine.generation.prefill import prefill
from engine.kv import attention
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.working_cache import WorkingCache
from engine.lab.lab import Lab, Row
from engine.model.forward import ForwardPass

USUAL = 2048
_LEAST, _MOST = 16, 65_536
HEADS, HEAD_DIM, LAYERS, VOCABULARY = 8, 64, 4, 512
SHARED_BY = {"MHA": 1, "GQA": 4, "MQA": 8}  # query heads of one KV head
_STEPS = 25  # the first of which is not counted
_SEED = 20


def heads(lab: Lab, context: int | None) -> dict[str, object]:
    """`context`: tokens cached; the loaded model does not bound it. Raises StoppedError, ContextOverflowError."""
    length = USUAL if context is None else min(max(context, _LEAST), _MOST)
    lab.plan(len(SHARED_BY))
    rows: list[Row] = []
    for kind, shared_by in SHARED_BY.items():
        lab.check()
        rows.append({"kind": kind, **_measure(lab, HEADS // shared_by, length)})
        lab.step(rows[-1])
    return {
        "context": length,
        "rows": rows,
        "heads": HEADS,
        "head_dim": HEAD_DIM,
        "layers": LAYERS,
        "width": HEADS * HEAD_DIM,
        "threads": torch.get_num_threads(),
    }


def _measure(lab: Lab, kv_heads: int, length: int) -> Row:
    forward = _build(lab, kv_heads, length)
    dtype = forward.model.dtype
    geometry = KVGeometry((LayerShape(kv_heads, HEAD_DIM, HEAD_DIM),) * LAYERS, dtype)
    stock = [DynamicLayer() for _ in range(LAYERS)]
    cache = WorkingCache(geometry, stock, length + _STEPS, lab.model.device, length + _STEPS)
    ids = [number * 37 % VOCABULARY for number in range(length)]
    chunk = lab.config.prefill_chunk

    def read() -> None:
        if prefill(forward, cache, ids, chunk, lab.is_cancelled, lambda done, total: None) is None:
            raise StoppedError

    prefill_s = lab.timed(read)
    nbytes = cache.nbytes
    times = [lab.timed(partial(forward, [token_id], cache)) for token_id in ids[:_STEPS]]
    decode_s = statistics.median(times[1:])
    return {
        "kv_heads": kv_heads,
        "bytes_per_token": geometry.bytes_per_token,
        "cache_bytes": nbytes,
        "multiple_of_mqa": kv_heads,
        "prefill_tps": length / prefill_s,
        "decode_ms": decode_s * 1e3,
        "decode_tps": 1 / decode_s,
        "parameters": sum(one.numel() for one in forward.model.parameters()),
    }


def _build(lab: Lab, kv_heads: int, length: int) -> ForwardPass:
    width = HEADS * HEAD_DIM
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=length + _STEPS,
    )
    torch.manual_seed(_SEED)
    model = AutoModelForCausalLM.from_config(
        config, dtype=lab.model.forward.model.dtype, attn_implementation=attention.NAME
    )
    return ForwardPass(model.to(lab.model.device).eval(), lab.model.device)
