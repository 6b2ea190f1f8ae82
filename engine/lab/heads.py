"""`ember bench heads`: small models of equal width, whose query heads share keys and values not at all, in groups, and
all together.

Their weights are random: measured is what heads cost in memory and time, not what they are worth.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.cache_utils import DynamicLayer

from engine.kv import attention
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.working_cache import WorkingCache
from engine.lab.lab import Lab, Row
from engine.model.forward import ForwardPass
from engine.protocol.errors import ContextOverflowError

USUAL = 4096
_LEAST, _MOST = 16, 65_536
HEADS, HEAD_DIM, LAYERS, VOCABULARY = 8, 64, 4, 512
SHARED_BY = {"MHA": 1, "GQA": 4, "MQA": 8}  # query heads of one KV head
_ROUNDS, _STEPS = 6, 8  # of decoding, one model after the other; the first token of each round is not counted
_DECODED = _ROUNDS * _STEPS
_SEED = 20


def heads(lab: Lab, context: int | None) -> dict[str, object]:
    """`context`: tokens cached; the loaded model does not bound it. Raises StoppedError, ContextOverflowError."""
    length = USUAL if context is None else context
    if not _LEAST <= length <= _MOST:
        raise ContextOverflowError(
            f"--context must be between {_LEAST:,} and {_MOST:,} for models with other heads.",
            prompt_tokens=str(length),
            context_length=str(_MOST),
            least=str(_LEAST),
            most=str(_MOST),
        )
    lab.plan(2 * len(SHARED_BY) + _ROUNDS)
    small = {kind: _read(lab, HEADS // shared_by, length) for kind, shared_by in SHARED_BY.items()}
    for _ in range(_ROUNDS):
        for one in small.values():
            one.decode_s += lab.decode_with(one.forward, one.cache, one.ids(_STEPS))[1:]
        lab.step()
    rows: list[Row] = []
    for kind, one in small.items():
        rows.append({"kind": kind, **one.figures()})
        lab.step(rows[-1])
    return {
        "context": length,
        "rows": rows,
        "heads": HEADS,
        "head_dim": HEAD_DIM,
        "layers": LAYERS,
        "width": HEADS * HEAD_DIM,
        **lab.facts(),
    }


@dataclass(slots=True)
class _Small:
    """One of the models, and its cache of `length` tokens; `decode_s`: seconds a token."""

    forward: ForwardPass
    cache: WorkingCache
    length: int
    prefill_s: float = 0.0
    decode_s: list[float] = field(default_factory=list)

    def ids(self, count: int) -> list[int]:
        return [number * 37 % VOCABULARY for number in range(count)]

    def figures(self) -> Row:
        per_token = self.cache.geometry.bytes_per_token
        seconds = statistics.median(self.decode_s)
        return {
            "kv_heads": self.cache.geometry.layers[0].kv_heads,
            "bytes_per_token": per_token,
            "cache_bytes": self.length * per_token,
            "multiple_of_mqa": self.cache.geometry.layers[0].kv_heads,
            "prefill_tps": self.length / self.prefill_s,
            "decode_ms": seconds * 1e3,
            "decode_tps": 1 / seconds,
            "parameters": sum(one.numel() for one in self.forward.model.parameters()),
        }


def _read(lab: Lab, kv_heads: int, length: int) -> _Small:
    forward = _build(lab, kv_heads, length)
    geometry = KVGeometry((LayerShape(kv_heads, HEAD_DIM, HEAD_DIM),) * LAYERS, forward.model.dtype)
    stock = [DynamicLayer() for _ in range(LAYERS)]
    cache = WorkingCache(geometry, stock, length + _DECODED, lab.model.device, length + _DECODED)
    one = _Small(forward, cache, length)
    one.prefill_s = lab.timed(lambda: lab.read_with(forward, one.ids(length), cache))
    assert cache.nbytes == length * geometry.bytes_per_token
    lab.step()
    return one


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
        max_position_embeddings=length + _DECODED,
    )
    torch.manual_seed(_SEED)
    model = AutoModelForCausalLM.from_config(
        config, dtype=lab.model.forward.model.dtype, attn_implementation=attention.NAME
    )
    return ForwardPass(model.to(lab.model.device).eval(), lab.model.device)
