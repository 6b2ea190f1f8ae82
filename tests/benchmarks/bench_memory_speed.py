"""How near decoding comes to the speed of the memory: a random model of Llama-3.2-1B's shape with 4-bit weights.

What a token must read are all weights and the cache; how fast memory is read is measured beside it, by as many
threads. Also how the time of a token grows with what is cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from transformers.cache_utils import DynamicLayer

from engine.kernels.packing import Format, Matrix
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.working_cache import WorkingCache
from engine.model.lean import LeanStep
from engine.model.lean_weights import PROJECTIONS, LeanLayer, LeanWeights

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 16, 2048, 32, 8, 64, 8192, 128_256
CONTEXT = 8192
ROUNDS = 9
ROWS = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": HIDDEN, "down": HIDDEN}
COLUMNS = {"o": HEADS * HEAD_DIM, "down": INTERMEDIATE}


class Rotary(torch.nn.Module):
    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = (positions[..., None] * frequencies).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def random_matrix(format_: Format, rows: int, columns: int) -> Matrix:
    per_word = 8 if format_ is Format.Q4 else 4
    words = torch.randint(-(2**15), 2**15, (rows // 16, columns // per_word, 16, 2), dtype=torch.int16)
    scales = torch.full((rows // 16, columns // 32, 16), 1e-3, dtype=torch.float16)
    minima = torch.full_like(scales, -7.5e-3) if format_ is Format.Q4 else None
    return Matrix(format_, rows, columns, words, scales, minima)


def random_model(head: Format) -> LeanWeights:
    layers = [
        LeanLayer(
            {
                name: random_matrix(Format.Q4, ROWS.get(name, INTERMEDIATE), COLUMNS.get(name, HIDDEN))
                for name in PROJECTIONS
            },
            {},
            {"attention": torch.ones(HIDDEN), "mlp": torch.ones(HIDDEN)},
            has_rope=True,
        )
        for _ in range(LAYERS)
    ]
    matrix = random_matrix(head, VOCABULARY, HIDDEN)
    return LeanWeights(
        layers=layers,
        embedding=matrix,
        head=matrix,
        final_norm=torch.ones(HIDDEN),
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rope_dim=HEAD_DIM,
        hidden=HIDDEN,
        intermediate=INTERMEDIATE,
        qk_norm=None,
        activation="silu",
        epsilon=1e-5,
        attention_scale=HEAD_DIM**-0.5,
        residual_scale=1.0,
        embedding_scale=1.0,
        logits_scale=1.0,
        rotary=Rotary(),
        compute_dtype=torch.bfloat16,
    )


def median_s(run: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return sorted(times)[ROUNDS // 2]


@pytest.mark.parametrize("head", [Format.Q4, Format.Q8])
def test_a_1b_model_decodes_at_the_speed_of_memory(head: Format) -> None:
    weights = random_model(head)
    weight_bytes = sum({id(matrix): matrix.nbytes for matrix in weights.matrices}.values())
    geometry = KVGeometry((LayerShape(KV_HEADS, HEAD_DIM, HEAD_DIM),) * LAYERS, torch.bfloat16)
    step = LeanStep(weights, CONTEXT, torch.get_num_threads())
    memory = torch.ones(weight_bytes // 4)
    print(f"\n{weight_bytes / 1e6:.0f} MB of weights, the head in {head.name}")
    try:
        for cached in (64, 2048, 6144):
            cache = WorkingCache(
                geometry, [DynamicLayer() for _ in range(LAYERS)], CONTEXT, torch.device("cpu"), cached + 8
            )
            for tensor in cache.arena.groups:
                tensor.normal_().mul_(0.3)
            cache.publish([1] * cached)
            for _ in range(2):
                step.feed([5], cache)
            token_s = median_s(lambda: step.feed([5], cache))  # noqa: B023 - called at once
            read_s = median_s(memory.sum)
            nbytes = weight_bytes + cached * geometry.bytes_per_token
            limit_s = read_s * nbytes / weight_bytes
            print(
                f"{cached:5,} cached: {token_s * 1e3:5.1f} ms a token, {nbytes / token_s / 1e9:4.1f} GB/s;"
                f" memory is read at {weight_bytes / read_s / 1e9:4.1f} GB/s: {token_s / limit_s:.2f} times its time"
            )
    finally:
        step.close()
