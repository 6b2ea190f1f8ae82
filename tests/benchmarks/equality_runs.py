"""One set of weights run by the compiled step, by the model's own pass and in float32, and where their replies part.

All three have the same weights: packed ones are unpacked for torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.generation.prefill import prefill
from engine.kernels.packing import Format, Matrix, quantize, unpack
from engine.kv.geometry import KVGeometry
from engine.kv.working_cache import WorkingCache
from engine.model.forward import ForwardPass
from engine.model.lean import LeanStep
from engine.model.lean_weights import describe
from engine.model.loader import LoadedModel, _choose_attention, load_model, stock_layers
from engine.protocol.config import EngineConfig, Weights

_CHUNK = 512
_PIECE = 8
_FORMATS = {Weights.BITS_4: Format.Q4, Weights.BITS_8: Format.Q8}


@dataclass(frozen=True, slots=True)
class Errors:
    """Of logits against float32, over a reply; `same_best` counts the positions where both like the same token most."""

    max: float
    rms: float
    same_best: int

    @staticmethod
    def of(logits: torch.Tensor, exact: torch.Tensor) -> Errors:
        difference = logits - exact
        same_best = int((logits.argmax(dim=1) == exact.argmax(dim=1)).sum())
        return Errors(float(difference.abs().max()), math.sqrt(float(difference.square().mean())), same_best)


@dataclass(frozen=True, slots=True)
class Compared:
    """One prompt. `first_difference`: the token of the reply where the step's differs; `margin`: between the two best
    logits of the model's own pass there; `exact_margin`: by how much float32 prefers the own pass's token.
    """

    name: str
    prompt_tokens: int
    reply_tokens: int
    first_difference: int | None
    margin: float | None
    exact_margin: float | None
    step: Errors
    own: Errors


class Pass:
    """A forward pass with caches of its own."""

    def __init__(self, model: PreTrainedModel, geometry: KVGeometry, context_length: int) -> None:
        self.forward = ForwardPass(model, torch.device("cpu"))
        self._geometry = KVGeometry(geometry.layers, model.dtype)
        self._config: Any = model.config
        self._context_length = context_length

    def reply(self, prompt: list[int], num_tokens: int) -> tuple[list[int], torch.Tensor]:
        """The likeliest tokens, one by one, and the logits that each was chosen by, `[tokens, vocab]`.

        An end of turn is a token like others.
        """
        cache, logits = self._read(prompt)
        ids, rows = [int(logits.argmax())], [logits]
        while len(ids) < num_tokens:
            rows.append(self.forward(ids[-1:], cache))
            ids.append(int(rows[-1].argmax()))
        return ids, torch.stack(rows)

    def follow(self, prompt: list[int], reply: list[int], at_once: int) -> torch.Tensor:
        """The logits where the tokens are those of another's reply."""
        cache, logits = self._read(prompt)
        fed = reply[:-1]
        pieces = [fed[start : start + at_once] for start in range(0, len(fed), at_once)]
        return torch.cat([logits[None], *(self.forward.all_logits(piece, cache) for piece in pieces)])

    def _read(self, prompt: list[int]) -> tuple[WorkingCache, torch.Tensor]:
        stock = stock_layers(self._config, self._config.num_hidden_layers)
        cache = WorkingCache(self._geometry, stock, self._context_length, torch.device("cpu"))
        logits = prefill(self.forward, cache, prompt, _CHUNK, lambda: False, lambda done, total: None)
        assert logits is not None
        return cache, logits


@dataclass(frozen=True, slots=True)
class Trio:
    """`own` is the pass whose reply the step's is compared with: bfloat16, and float32 for packed weights, which
    bfloat16 cannot hold; `bfloat16` is what the step's errors are compared with.
    """

    loaded: LoadedModel
    is_loaded_so: bool
    step: Pass
    own: Pass
    bfloat16: Pass
    exact: Pass

    def compare(self, name: str, prompt: list[int], num_tokens: int) -> Compared:
        expected, chosen_by = self.own.reply(prompt, num_tokens)
        got, _ = self.step.reply(prompt, num_tokens)
        exact = self.exact.follow(prompt, expected, num_tokens)
        own = chosen_by if self.own is self.bfloat16 else self.bfloat16.follow(prompt, expected, num_tokens)
        first = next((at for at in range(num_tokens) if expected[at] != got[at]), None)
        margin = exact_margin = None
        if first is not None:
            best, second = chosen_by[first].topk(2).values.tolist()
            margin = best - second
            exact_margin = float(exact[first, expected[first]] - exact[first, got[first]])
        errors = Errors.of(self.step.follow(prompt, expected, _PIECE), exact), Errors.of(own, exact)
        return Compared(name, len(prompt), num_tokens, first, margin, exact_margin, *errors)


@contextmanager
def run_three_ways(path: Path, weights: Weights, config: EngineConfig) -> Iterator[Trio]:
    """The model as the program loads it; where it does not run packed weights so, all its matrices are packed here."""
    loaded = load_model(path, weights, config, lambda stage: None)
    steps: list[LeanStep] = []
    try:
        is_loaded_so = loaded.forward.step is not None
        if not is_loaded_so:
            loaded.close()
            loaded = load_model(path, Weights.BITS_16, config, lambda stage: None)
        model = loaded.forward._model
        packed = {} if is_loaded_so else _pack(model, _FORMATS[weights])
        described = describe(model, packed)
        assert described is not None, "the step does not know this model"
        context_length = loaded.info.context_length
        steps.append(LeanStep(described, context_length, torch.get_num_threads()))
        exact = _with_weights_of(model, packed, path, torch.float32)
        rounded = _with_weights_of(model, packed, path, torch.bfloat16)
        step, own32, own16 = (Pass(one, loaded.geometry, context_length) for one in (rounded, exact, rounded))
        step.forward.step = steps[0]
        own = own16 if weights is Weights.BITS_16 else own32
        yield Trio(loaded, is_loaded_so, step, own, own16, own32)
    finally:
        loaded.close()
        for one in steps:
            one.close()


def _pack(model: PreTrainedModel, target: Format) -> dict[str, Matrix]:
    return {name: quantize(module.weight.detach(), target) for name, module in _matrices(model)}


def _matrices(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            yield name, module


def _with_weights_of(
    model: PreTrainedModel, packed: Mapping[str, Matrix], path: Path, dtype: torch.dtype
) -> PreTrainedModel:
    """A plain model of torch with the numbers that `model` computes with."""
    plain: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True).eval()
    for name, module in _matrices(plain):
        source: Any = model.get_submodule(name)
        matrix = packed.get(name) or getattr(source, "matrix", None)
        numbers = source.weight.detach() if matrix is None else unpack(matrix, dtype)
        module.weight.data = numbers.to(dtype)
    _choose_attention(plain)
    return plain
