"""The loaded model in float32, over the same caches: what a scheme loses shows unmixed with 16-bit rounding.

Two 16-bit computations of the same thing differ by more than an 8-bit cache costs (measured: a KL divergence of 2e-4
when one number in a hundred of a cache changes in its last bit), so they cannot tell good codecs apart.
"""

from __future__ import annotations

import copy
from typing import Any

import psutil
import torch

from engine.model.forward import ForwardPass
from engine.model.loader import LoadedModel
from engine.model.weights import weights_nbytes

_HALVES = torch.bfloat16, torch.float16


def exact_forward(model: LoadedModel) -> ForwardPass | None:
    """The model's own pass in float32; None where its weights are not plain 16-bit numbers, or memory is short.

    The caches stay as they are: keys and values are kept in the model's own type.
    """
    source: Any = model.forward.model
    weights = [*source.parameters(), *source.buffers()]
    is_plain = all(not x.is_floating_point() or x.dtype in (*_HALVES, torch.float32) for x in weights)
    is_packed = any(x.dtype in (torch.uint8, torch.int8, torch.int16) for x in weights)
    needed = 3 * weights_nbytes(source)
    if not is_plain or is_packed or needed > psutil.virtual_memory().available or not model.forward.takes_chunks:
        return None
    if not any(x.dtype in _HALVES for x in weights):
        return model.forward if model.forward.step is None else None
    return ForwardPass(copy.deepcopy(source).float(), model.device)
