"""Puts a quicker step behind a model's forward pass, if the model is one it knows and proves to compute the same.

On CUDA that is the step in plain torch, as a recorded graph, from the start. On the CPU it is the compiled step: while
its kernels are being compiled (once, in a process of its own), and where they cannot be, the model runs as it is.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Mapping

import torch
from transformers import PreTrainedModel

from engine.kernels.compile import BUSY, has_numba, is_compiled, start_compiling
from engine.kernels.packing import Matrix
from engine.kv.geometry import KVGeometry
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass, Step
from engine.model.fused_projections import fuse_projections, fusible_nbytes
from engine.model.lean_weights import LeanWeights, describe
from engine.model.torch_step import TorchStep

_log = logging.getLogger(__name__)
_PROBE_IDS = (3, 17, 5, 101, 64, 29, 7, 77, 11, 2, 53, 41)
_PROBE_FED = 4, 4, 3, 1
_TOLERANCE = 0.1  # of the logits' spread; a wrong part gives 0.3 and more, bfloat16 rounding 0.01 to 0.03
_LEAN_TOKENS = 32  # up to here, the compiled step is quicker than one pass of the model
_TORCH_TOKENS = 8


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
        self._compiling: subprocess.Popen[bytes] | None = None
        self._is_settled = False
        self.poll()

    def poll(self) -> None:
        """Take the compiled step into use as soon as there is one."""
        if self._is_settled:
            return
        if _is_cuda(self._weights.embedding.words.device):
            self._is_settled = True
            self._adopt(TorchStep(self._weights, self._context_length), _TORCH_TOKENS)
        elif is_compiled():
            self._is_settled = True
            self._adopt_compiled()
        elif self._compiling is None:
            self._compiling = start_compiling()
            self._is_settled = self._compiling is None
        elif self._compiling.poll() == BUSY:
            self._compiling = start_compiling()
        elif self._compiling.poll() is not None:  # it ended and left nothing
            _log.warning("the kernels could not be compiled; replies are slower (status %s)", self._compiling.poll())
            self._is_settled = True

    def close(self) -> None:
        """End the step's threads, free its graphs; a compiling process is left to finish, the next start needs it."""
        self._is_settled = True
        self._use(None)

    def _adopt_compiled(self) -> None:
        from engine.model.lean import LeanStep  # noqa: PLC0415 - imports numba

        step = LeanStep(self._weights, self._context_length, torch.get_num_threads())
        self._forward.multi_token_is_exact = self._adopt(step, _LEAN_TOKENS)

    def _adopt(self, step: Step, up_to_tokens: int) -> bool:
        """Use the step from now on, if it proves itself; whether it does."""
        name = type(step).__name__
        try:
            difference = self._difference(step)
        except RuntimeError as error:
            step.close()
            _log.warning("%s is set aside: %s", name, error)
            return False
        if not difference <= _TOLERANCE:  # NaN is not
            step.close()
            _log.warning("%s is set aside: it differs from the model by %.2f", name, difference)
            return False
        self._use(step)
        self._forward.step_tokens = up_to_tokens
        _log.info("%s is in use (%.3f from the model's own)", name, difference)
        return True

    def _use(self, step: Step | None) -> None:
        if self._forward.step is not None:
            self._forward.step.close()
        self._forward.step = step

    @torch.inference_mode()
    def _difference(self, step: Step) -> float:
        """How far the step's logits are from the model's after a few tokens, relative to their spread."""
        ids = [number % self._weights.embedding.rows for number in _PROBE_IDS]
        in_use, self._forward.step = self._forward.step, None
        try:
            expected = self._forward(ids, self._new_cache())
        finally:
            self._forward.step = in_use
        cache = self._new_cache()
        logits = expected
        for count in _PROBE_FED:
            fed = ids[cache.length : cache.length + count]
            logits = step.feed(fed, cache)[0]
            cache.append_ids(fed)
        return float((logits - expected).norm() / (expected - expected.mean()).norm())


def keeps_bfloat16(model: PreTrainedModel, packed: Mapping[str, Matrix], geometry: KVGeometry) -> bool:
    """Whether a model that computes in float32, on a processor without bfloat16, keeps its cache in bfloat16.

    The compiled step reads that on any processor: half the memory, and several times the speed.
    """
    weights = describe(model, packed) if geometry.dtype is torch.float32 else None
    return weights is not None and has_numba() and model.device.type == "cpu"


def accelerate(
    forward: ForwardPass,
    model: PreTrainedModel,
    packed: Mapping[str, Matrix],
    geometry: KVGeometry,
    context_length: int,
    new_cache: Callable[[], WorkingCache],
) -> Acceleration | None:
    """The acceleration of a model, or None where there can be none."""
    on_cuda = _is_cuda(model.device)
    is_possible = (
        (on_cuda or has_numba())
        and geometry.dtype is torch.bfloat16
        and len(geometry.layers) == model.config.get_text_config(decoder=True).num_hidden_layers
    )
    weights = describe(model, packed) if is_possible else None
    if weights is not None and on_cuda:
        weights = None  # it would keep what is moved
        _fuse_where_memory_allows(model)
        weights = describe(model, packed)
    return None if weights is None else Acceleration(forward, weights, context_length, new_cache)


def _is_cuda(device: torch.device) -> bool:
    return device.type == "cuda"


def _fuse_where_memory_allows(model: PreTrainedModel) -> None:
    """Fewer and larger multiplications: what a GPU gains by. Fragments may hold as much as was moved, for a while."""
    free, _ = torch.cuda.mem_get_info(model.device)
    if free > 2 * fusible_nbytes(model):
        fuse_projections(model)
        torch.cuda.empty_cache()
