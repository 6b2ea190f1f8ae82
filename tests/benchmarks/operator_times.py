"""Where the time of torch operators goes, by what they are for: labels around a model's parts, and torch's profiler.

An operator counts for the innermost label around it. Parts that are modules are told by the names of their classes, so
any family will do; those that are plain functions are in `FUNCTIONS`, to which a new one is one more line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile
from transformers import AttentionInterface, PreTrainedModel

from engine.kv.working_cache import ContiguousLayer

FUNCTIONS: list[tuple[object, str, str]] = [(ContiguousLayer, "update", "cache write")]  # owner, its function, label
_PREFIX = "part: "
_ELSEWHERE = "embedding, masks, the rest"
# What a module does by itself, outside of the modules in it; the first fragment found in the name of its class counts.
_CLASSES = {
    "Linear": "linear",
    "Norm": "norm",
    "Rotary": "rope",
    "Attention": "rope",  # what is left of it: turning queries and keys, and shapes
    "MLP": "activation",
    "DecoderLayer": "residual",
}


@dataclass(frozen=True, slots=True)
class PartTime:
    """Of one step, all layers together. `self_ms`: inside operators; `python_ms`: between those of the same part, as
    the profiler sees it, which makes it longer than it is."""

    part: str
    operators: int
    self_ms: float
    python_ms: float


def measure(model: PreTrainedModel, step: Callable[[], None], steps: int) -> list[PartTime]:
    """Run `step` that often under the profiler; the longest part first."""
    with _labelled(model), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            with record_function(_PREFIX + _ELSEWHERE):
                step()
    operators: dict[str, int] = defaultdict(int)
    self_us: dict[str, float] = defaultdict(float)
    python_us: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        part = _part_of(event)
        if event.name.startswith(_PREFIX):
            python_us[part] += event.self_cpu_time_total
        elif part:
            self_us[part] += event.self_cpu_time_total
            operators[part] += event.cpu_parent is not None and event.cpu_parent.name.startswith(_PREFIX)
    parts = [
        PartTime(part, round(operators[part] / steps), self_us[part] / steps / 1e3, python_us[part] / steps / 1e3)
        for part in {*self_us, *python_us}
    ]
    return sorted(parts, key=lambda one: one.self_ms, reverse=True)


@contextmanager
def _labelled(model: PreTrainedModel) -> Iterator[None]:
    """Every module and function with a label says so while it runs, until the block ends."""
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if label := _label_of(name, module):
                stack.enter_context(mock.patch.object(module, "forward", _saying(label, module.forward)))
        for owner, name, label in FUNCTIONS:
            stack.enter_context(mock.patch.object(owner, name, _saying(label, getattr(owner, name))))
        chosen = model.config._attn_implementation
        interface = AttentionInterface()
        if chosen in interface:
            attend = _saying("attention", interface[chosen])
            stack.enter_context(mock.patch.dict(AttentionInterface._global_mapping, {chosen: attend}))
        yield


def _label_of(name: str, module: torch.nn.Module) -> str | None:
    if name.rpartition(".")[2] == "lm_head":
        return "lm_head"
    kind = type(module).__name__
    return next((label for fragment, label in _CLASSES.items() if fragment in kind), None)


def _saying(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def said(*arguments: Any, **options: Any) -> Any:
        with record_function(_PREFIX + label):
            return function(*arguments, **options)

    return said


def _part_of(event: Any) -> str:
    """The innermost label around it, itself included; empty for what is the profiler's own."""
    while event is not None:
        if event.name.startswith(_PREFIX):
            return str(event.name.removeprefix(_PREFIX))
        event = event.cpu_parent
    return ""
