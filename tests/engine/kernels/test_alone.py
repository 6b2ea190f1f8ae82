"""One thread in place of several, amid a chat: the same bits, and the others come back in step."""

from __future__ import annotations

import pytest
import torch

from engine.model.lean import LeanStep
from engine.model.lean_weights import describe
from tests.engine import lean_models

pytestmark = [pytest.mark.native_dtype, pytest.mark.usefixtures("compiled_kernels")]


class Alternating:
    """A pace that changes its mind every three steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.alone = 0

    @property
    def is_alone(self) -> bool:
        return self.steps % 6 >= 3

    def took(self, num_fed: int, length: int, seconds: float) -> None:
        self.alone += self.is_alone
        self.steps += 1


def test_steps_alone_and_together_give_the_same_bits() -> None:
    model = lean_models.BY_NAME["qwen3"].build().bfloat16()
    weights = describe(model)
    assert weights is not None
    logits = []
    for pace in (None, Alternating()):
        step = LeanStep(weights, 512, 2)
        if pace is not None:
            step._team._pace = pace  # type: ignore[assignment]
        cache = lean_models.new_cache(model)
        rows = []
        for token_id in range(5, 45):
            rows.append(step.feed([token_id], cache).clone())
            cache.append_ids([token_id])
        step.close()
        logits.append(torch.cat(rows))
        assert pace is None or pace.alone > 15
    assert torch.equal(*logits)
