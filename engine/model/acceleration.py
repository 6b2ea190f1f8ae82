"""Puts the compiled step behind a model's forward pass, if the model is one it knows and proves to compute the same.

While the kernels are being compiled (once, in a process of its own), and where they cannot be, the model runs as it is.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from engine.kernels.compile import BUSY, has_numba, is_compiled, start_compiling
from engine.kernels.packing import Matrix
from engine.kv.geometry import KVGeometry
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass
from engine.model.lean_weights import LeanWeights, describe

if TYPE_CHECKING:  # it imports numba, which a machine may lack
    from engine.model.lean import LeanStep

_log = logging.getLogger(__name__)
_PROBE_IDS = (3, 17, 5, 101, 64, 29, 7, 77, 11, 2, 53, 41)
_TOLERANCE = 0.1  # of the logits' spread; a wrong part gives 0.3 and more, bfloat16 rounding 0.01 to 0.03


class Acceleration:
    """Belongs to one loaded model; `poll` between commands, `close` with the model."""

    def __init__(
        self,
        forward: ForwardPass,
        weights: LeanWeights,
        context_length: int,
        new_cache: Callable[[], WorkingCache],
    ) -> None:
        self._forward = forward
        self._weights = weights
        self._context_length = context_length
        self._new_cache = new_cache
        self._is_settled = False
        self._compiling: subprocess.Popen[bytes] | None = None
        self.poll()

    def poll(self) -> None:
        """Take the compiled step into use as soon as there is one."""
        if self._is_settled:
            return
        if is_compiled():
            self._is_settled = True
            self._adopt()
        elif self._compiling is None:
            self._compiling = start_compiling()
            self._is_settled = self._compiling is None
        elif self._compiling.poll() == BUSY:
            self._compiling = start_compiling()
        elif self._compiling.poll() is not None:  # it ended and left nothing
            _log.warning("the kernels could not be compiled; replies are slower (status %s)", self._compiling.poll())
            self._is_settled = True

    def close(self) -> None:
        """End the step's threads; a compiling process is left to finish, the next start needs it."""
        self._is_settled = True
        if self._forward.step is not None:
            self._forward.step.close()
            self._forward.step = None

    def _adopt(self) -> None:
        from engine.model.lean import LeanStep  # noqa: PLC0415 - imports numba

        step = LeanStep(self._weights, self._context_length, torch.get_num_threads())
        difference = self._difference(step)
        if difference <= _TOLERANCE:
            self._forward.step = step
            self._forward.multi_token_is_exact = True
            _log.info("the compiled step is in use (%.3f from the model's own)", difference)
        else:
            step.close()
            _log.warning("the compiled step is set aside: it differs from the model by %.2f", difference)

    @torch.inference_mode()
    def _difference(self, step: LeanStep) -> float:
        """How far the step's logits are from the model's after a few tokens, relative to their spread."""
        ids = [number % self._weights.embedding.rows for number in _PROBE_IDS]
        expected = self._forward(ids, self._new_cache())
        cache = self._new_cache()
        logits = expected
        for start in range(0, len(ids), 4):
            logits = step.feed(ids[start : start + 4], cache)[0]
            cache.append_ids(ids[start : start + 4])
        return float((logits - expected).norm() / (expected - expected.mean()).norm())


def accelerate(
    forward: ForwardPass,
    model: PreTrainedModel,
    packed: Mapping[str, Matrix],
    geometry: KVGeometry,
    context_length: int,
    new_cache: Callable[[], WorkingCache],
) -> Acceleration | None:
    """The acceleration of a model on the CPU, or None where there can be none."""
    is_possible = (
        has_numba()
        and geometry.dtype is torch.bfloat16
        and len(geometry.layers) == model.config.get_text_config(decoder=True).num_hidden_layers
    )
    weights = describe(model, packed) if is_possible else None
    return None if weights is None else Acceleration(forward, weights, context_length, new_cache)
