"""`ember bench prefill-decode`: reading many tokens at once against writing one at a time, and what bounds each.

Work: two operations a weight and token, four a query head's number and cached token. Bytes: every weight once a pass,
and the cache. Their quotient is the arithmetic intensity; a machine bound by memory does the same bytes in the same
time, however little is computed with them.
"""

from __future__ import annotations

import statistics

import torch

from engine.fidelity.divergence import is_read_by_step
from engine.lab.lab import Lab, Row

USUAL = 1024
_LEAST = 16
_PARTS = (1 / 4, 1 / 2, 1)
_STEPS = 17  # the first of which is not counted
_ROOM = _STEPS


def prefill_decode(lab: Lab, context: int | None) -> dict[str, object]:
    """Raises ContextOverflowError, StoppedError."""
    context = lab.length(context, USUAL, least=_LEAST, room=_ROOM)
    lengths = sorted({max(1, round(part * context)) for part in _PARTS})
    lab.plan(len(lengths) + 1)
    lab.read(lab.ids(min(64, context)), lab.model.new_cache(context))  # what is made at the first pass
    lab.step()
    rows: list[Row] = []
    for length in lengths:
        rows.append(_measure(lab, length))
        lab.step(rows[-1])
    parameters = num_parameters(lab)
    return {"context": context, "rows": rows, "parameters": parameters, **lab.facts()}


def _measure(lab: Lab, length: int) -> Row:
    cache = lab.model.new_cache(length + _STEPS)
    ids = lab.ids(length)
    prefill_s = lab.timed(lambda: lab.read(ids, cache))
    kv_bytes = cache.nbytes
    is_compiled = is_read_by_step(lab.model.forward, cache)
    decode_s = statistics.median(lab.decode_s(cache, lab.ids(_STEPS, length))[1:])
    passes = -(-length // lab.config.prefill_chunk)
    prefill = _limits(lab, length, length, passes, prefill_s, kv_bytes, is_compiled=False)
    decode = _limits(lab, 1, length + 1, 1, decode_s, kv_bytes, is_compiled=is_compiled)
    return {
        "length": length,
        "prefill_tps": length / prefill_s,
        "decode_tps": 1 / decode_s,
        "ratio": length / prefill_s * decode_s,
        "prefill_s": prefill_s,
        "decode_ms": decode_s * 1e3,
        "kv_bytes": kv_bytes,
        "is_decode_compiled": is_compiled,
        **{f"prefill_{name}": value for name, value in prefill.items()},
        **{f"decode_{name}": value for name, value in decode.items()},
    }


def _limits(
    lab: Lab, fed: int, length: int, passes: int, seconds: float, kv_bytes: int, *, is_compiled: bool
) -> dict[str, float | None]:
    """Operations, bytes, and both a second. None where the weights cannot be counted."""
    parameters = num_parameters(lab)
    info = lab.model.info
    weights = info.second_copy_bytes if is_compiled and info.second_copy_bytes else None
    weights = weights or info.weights_bytes - info.second_copy_bytes
    pairs = fed * (length - (fed - 1) / 2)  # each token sees itself and all before it
    if parameters is None:
        return dict.fromkeys(("gflops", "gb", "intensity", "gflops_per_s", "gb_per_s"))
    operations = 2 * parameters * fed + 4 * info.num_layers * info.num_heads * info.head_dim * pairs
    nbytes = passes * weights + kv_bytes
    return {
        "gflops": operations / 1e9,
        "gb": nbytes / 1e9,
        "intensity": operations / nbytes,
        "gflops_per_s": operations / 1e9 / seconds,
        "gb_per_s": nbytes / 1e9 / seconds,
    }


def num_parameters(lab: Lab) -> int | None:
    """Of the model; None where weights are packed, so that a number is no element of a tensor any more."""
    tensors = [*lab.model.forward.model.parameters(), *lab.model.forward.model.buffers()]
    if any(tensor.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32) and tensor.ndim for tensor in tensors):
        return None
    return sum(tensor.numel() for tensor in lab.model.forward.model.parameters()) or None
