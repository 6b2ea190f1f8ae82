"""Logits of a tiny model by the kernels as numba compiles them under this process's settings; for `test_generic.py`.

python -m tests.engine.kernels.generic_logits FAMILY RESULT: `[tokens, vocab]` for each format and way of feeding.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from engine.kernels.packing import Format
from engine.kernels.simd import HAS_BF16_DOT
from engine.model.forward import ForwardPass
from engine.model.lean import LeanStep
from engine.model.lean_weights import describe
from tests.engine import lean_models

IDS = [int(number) for number in torch.randint(2, lean_models.VOCABULARY, (140,), generator=torch.manual_seed(5))]
AT_ONCE = (1, 8)


def logits(family: str, target: Format, at_once: int, num_threads: int = 2) -> torch.Tensor:
    model = lean_models.BY_NAME[family].build().bfloat16()
    weights = describe(model, lean_models.packed(model, target))
    assert weights is not None
    forward = ForwardPass(model, torch.device("cpu"))
    forward.step = LeanStep(weights, len(IDS), num_threads)
    cache = lean_models.new_cache(model)
    pieces = [IDS[start : start + at_once] for start in range(0, len(IDS), at_once)]
    rows = [forward.all_logits(piece, cache) for piece in pieces]
    forward.step.close()
    return torch.cat(rows)


def main(family: str, result: Path) -> None:
    found = {(target.name, at_once): logits(family, target, at_once) for target in Format for at_once in AT_ONCE}
    torch.save({"has_bf16_dot": HAS_BF16_DOT, "logits": found}, result)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
