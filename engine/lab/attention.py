"""`ember bench attention`: one layer's attention, in the model's shape, by every way there is on this machine.

Random numbers, the model's precision. PyTorch's back ends are asked for one by one; which of them run here is
PyTorch's word.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from engine.fidelity.divergence import is_read_by_step
from engine.kv.attention import attend_causal
from engine.kv.transfer import synchronize
from engine.lab.compiled_attention import CompiledAttention
from engine.lab.lab import CannotMeasureError, Lab, Row
from engine.model.forward import is_out_of_memory

USUAL = 2048
_LEAST = 16
_PARTS = (1 / 16, 1 / 4, 1)
_MOST_CALLS, _MOST_S = 15, 0.3
_MOST_SCORES_BYTES = 2**30  # of a way that writes every score out
_SEED = 20
_NOT_HERE = "No available kernel", "No viable backend"  # what PyTorch says of a back end that does not run
_ON_CUDA_ONLY = "efficient", "cudnn"

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Attend = Callable[[Tensors], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Way:
    """`prefill` and `decode` return `[1, heads, q, head_dim]`; None where there is none. `writes_scores`: needs memory
    for a number for every query and key.
    """

    name: str
    prefill: Attend | None
    decode: Attend | None
    writes_scores: bool = False


def attention(lab: Lab, context: int | None) -> dict[str, object]:
    """Raises ContextOverflowError, CannotMeasureError, StoppedError."""
    lab.need_keys()
    shape = lab.model.geometry.layers[0]
    heads = lab.model.info.num_heads
    if shape.key_dim != shape.value_dim or heads % shape.kv_heads:
        raise CannotMeasureError(
            f"Keys and values of {lab.model.info.name} differ in size; choose another model.",
            lab.model.info.name,
            "uneven_heads",
        )
    context = lab.length(context, USUAL, least=_LEAST, room=0)
    lengths = sorted({max(2, round(part * context)) for part in _PARTS})
    ways = _ways(lab, heads // shape.kv_heads)
    dtype = lab.model.forward.model.dtype
    lab.plan(2 * len(lengths) * len(ways))
    rows: list[Row] = []
    with torch.inference_mode():
        torch.manual_seed(_SEED)
        for length in lengths:
            for phase in ("prefill", "decode"):
                fed = length if phase == "prefill" else 1
                sizes = (1, heads, fed, shape.key_dim), *((1, shape.kv_heads, length, shape.key_dim),) * 2
                numbers = [torch.randn(size, dtype=dtype, device=lab.model.device) for size in sizes]
                tensors = numbers[0], numbers[1], numbers[2]
                expected = _expected(ways[0], tensors, phase)
                for way in ways:
                    lab.check()
                    attend = way.prefill if phase == "prefill" else way.decode
                    row: Row = {"length": length, "phase": phase, "backend": way.name}
                    rows.append(row | _measured(way, attend, tensors, expected, lab))
                    lab.step(rows[-1])
    return {
        "context": context,
        "rows": rows,
        "heads": heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.key_dim,
        **lab.facts(),
        "dtype": str(dtype).removeprefix("torch."),
    }


def _ways(lab: Lab, group: int) -> list[_Way]:
    """The first one, computed in float32, is what all are compared with."""
    backends = [
        ("math", SDPBackend.MATH),
        ("efficient", SDPBackend.EFFICIENT_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
    ]
    ways = [_Way(name, _sdpa(backend, True), _sdpa(backend, False), name == "math") for name, backend in backends]
    ways.append(_Way("eager", lambda tensors: _eager(tensors, group), lambda tensors: _eager(tensors, group), True))
    ways.append(_Way("ember", _ember, _ember))
    cache = lab.model.new_cache()
    if is_read_by_step(lab.model.forward, cache) and lab.model.device.type == "cpu":
        compiled = CompiledAttention.of(lab.model.geometry.layers[0].key_dim, lab.model.forward.model.dtype)
        if compiled is not None:
            ways.append(_Way("ember-compiled", None, compiled))
    return ways


def _sdpa(backend: SDPBackend, is_causal: bool) -> Attend:
    def attend(tensors: Tensors) -> torch.Tensor:
        with sdpa_kernel([backend]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells there why a back end does not run; it raises as well
            out: torch.Tensor = scaled_dot_product_attention(*tensors, is_causal=is_causal, enable_gqa=True)
        return out

    return attend


def _ember(tensors: Tensors) -> torch.Tensor:
    """What replies run where the compiled step does not."""
    query, key, value = tensors
    return attend_causal(query, key, value, None)


def _eager(tensors: Tensors, group: int) -> torch.Tensor:
    """As the formula has it: all scores, their softmax, the weighted values."""
    query, key, value = tensors
    key, value = (side.repeat_interleave(group, dim=1) for side in (key, value))
    scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    if query.shape[2] > 1:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(hidden, -torch.inf)
    out: torch.Tensor = scores.softmax(-1).to(value.dtype) @ value
    return out


def _expected(way: _Way, tensors: Tensors, phase: str) -> torch.Tensor | None:
    attend = way.prefill if phase == "prefill" else way.decode
    if attend is None or _scores_bytes(tensors) > _MOST_SCORES_BYTES:
        return None
    query, key, value = tensors
    return attend((query.float(), key.float(), value.float()))


def _measured(way: _Way, attend: Attend | None, tensors: Tensors, expected: torch.Tensor | None, lab: Lab) -> Row:
    """`max_difference`: the largest one from the math back end in float32. `error`: why there are no numbers."""
    row: Row = {"ms": None, "max_difference": None, "error": None, "threads": torch.get_num_threads()}
    if isinstance(attend, CompiledAttention):
        row["threads"] = 1
    if attend is None:
        return row | {"error": "not used for reading"}
    if way.writes_scores and _scores_bytes(tensors) > _MOST_SCORES_BYTES:
        return row | {"error": "the scores take too much memory"}
    try:
        out = attend(tensors)
        if expected is not None:
            row["max_difference"] = float((out.float() - expected).abs().max())
        row["ms"] = _median_s(lambda: attend(tensors), lab) * 1e3
    except (RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return row | {"ms": None, "max_difference": None, "error": _reason(way.name, error, tensors[0].device)}
    return row


def _median_s(action: Callable[[], object], lab: Lab) -> float:
    times: list[float] = []
    until = time.perf_counter() + _MOST_S
    while len(times) < _MOST_CALLS and (len(times) < 2 or time.perf_counter() < until):
        synchronize(lab.model.device)
        started = time.perf_counter()
        action()
        synchronize(lab.model.device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _reason(name: str, error: Exception, device: torch.device) -> str:
    """Why a way does not run, in words that the lab knows, else PyTorch's own."""
    words = str(error).strip()
    if any(sign in words for sign in _NOT_HERE):
        return "needs CUDA" if name in _ON_CUDA_ONLY and device.type == "cpu" else "not for this shape and precision"
    return words.splitlines()[0][:160] if words else type(error).__name__


def _scores_bytes(tensors: Tensors) -> int:
    query, key, _ = tensors
    return 4 * query.shape[1] * query.shape[2] * key.shape[2]
