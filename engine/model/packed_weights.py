"""Loads a Llama-like model on the CPU with its weights packed in 8 or 4 bits, never holding it whole in 16.

The model is built without memory, then tensors come from the safetensors files one by one, are rounded and written to a
file of their own, which later loads map. Numbers that a GGUF file brought along (`engine.model.gguf_numbers`) are used
as they are where they suit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from engine.kernels.compile import has_numba
from engine.kernels.packing import ROUNDING, Format, Matrix, quantize
from engine.memory import read_memory
from engine.model import packed_file
from engine.model.lean_weights import describe
from engine.model.model_files import OWN_NUMBERS
from engine.model.packed_file import Shape
from engine.model.packed_linear import PackedEmbedding, PackedLinear
from engine.model.tensor_files import TensorFiles
from engine.protocol.config import Weights

_SENSITIVE = ("model.embed_tokens", "lm_head")  # rounding these costs most: eight bits
_SECOND_COPY_SHARE = 0.25  # most of the memory available that a second copy of the weights may take
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """`packed`: a second copy of matrices, by module name, to decode with. `numbers` names the rounding of packed
    weights, for the fingerprint of what is computed with them; None where there are none.
    """

    model: PreTrainedModel
    packed: dict[str, Matrix] = field(default_factory=dict)
    numbers: str | None = None

    @property
    def second_copy_bytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.packed.values())


def load_packed(
    folder: Path,
    files: list[Path],
    weights_hash: str,
    weights: Weights,
    dtype: torch.dtype,
    cache_dir: Path,
    on_rounding: Callable[[], None],
) -> LoadedWeights | None:
    """The model in eval mode, or None for one that the kernels do not know, or whose files hold other tensors.

    dtype: of activations and of what stays unpacked. cache_dir: where rounded weights are kept; on_rounding is called
    before they are made. Raises what transformers and safetensors raise for files that they cannot read.
    """
    model = _skeleton(folder) if has_numba() else None
    if model is None:
        return None
    with TensorFiles(files) as source:
        if not _holds(source, model):
            return None
        own = packed_file.read(folder / OWN_NUMBERS, weights_hash) or {}
        kept, made = _plan(_modules(model), own, weights)
        file = cache_dir / f"{folder.name}-{weights_hash[:12]}-{weights}.safetensors"
        matrices = kept | _rounded(file, f"{weights_hash}-{ROUNDING}", made, source, on_rounding)
        _fill(model, matrices, source, dtype)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return None
    return LoadedWeights(model.eval(), numbers=f"packed-{ROUNDING}" + ("-gguf" if kept else ""))


def second_copy(model: PreTrainedModel, folder: Path, weights_hash: str) -> dict[str, Matrix]:
    """The numbers that a GGUF file brought along, by module name, to decode a 16-bit model with, if they fit easily."""
    file = folder / OWN_NUMBERS
    if not file.is_file() or not has_numba() or describe(model) is None:
        return {}
    if file.stat().st_size > _SECOND_COPY_SHARE * read_memory("cpu").host_free_bytes:
        return {}
    modules = _modules(model)
    own = packed_file.read(file, weights_hash) or {}
    return {name: matrix for name, matrix in own.items() if name in modules and _suits(matrix, modules[name])}


def _skeleton(folder: Path) -> PreTrainedModel | None:
    """The model without memory for its weights, or None if the kernels do not know it."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if getattr(config, "quantization_config", None) is not None:
        return None
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    rotary = getattr(getattr(model, "model", None), "rotary_emb", None)
    if rotary is None:
        return None
    model.model.rotary_emb = type(rotary)(config=rotary.config)  # its frequencies are computed, not loaded
    return model if describe(model) is not None else None


def _holds(source: TensorFiles, model: PreTrainedModel) -> bool:
    """Whether every parameter is there, in its shape; tied ones once."""
    return all(
        name in source and source.shape(name) == tuple(parameter.shape) for name, parameter in model.named_parameters()
    )


def _modules(model: PreTrainedModel) -> dict[str, Any]:
    """The modules with a matrix, by name; of two that share one, the first."""
    seen: set[int] = set()
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding) and id(module.weight) not in seen:
            seen.add(id(module.weight))
            found[name] = module
    return found


def _plan(
    modules: Mapping[str, Any], own: Mapping[str, Matrix], weights: Weights
) -> tuple[dict[str, Matrix], dict[str, Shape]]:
    """Which of its own numbers the model keeps, and what is to be rounded to what.

    For 8 bits all are kept: rounding 4-bit numbers anew would only lose. For 4 bits, a file of mostly 4-bit numbers is
    used whole; what it lacks was too sensitive for them, and takes 8.
    """
    own = {name: matrix for name, matrix in own.items() if name in modules and _suits(matrix, modules[name])}
    num_weights = sum(module.weight.numel() for name, module in modules.items() if name not in _SENSITIVE)
    num_four_bit = sum(matrix.rows * matrix.columns for matrix in own.values() if matrix.format is Format.Q4)
    is_used_whole = weights is Weights.BITS_8 or 2 * num_four_bit >= num_weights
    kept: dict[str, Matrix] = {}
    made: dict[str, Shape] = {}
    for name, module in modules.items():
        target = Format.Q8 if is_used_whole or name in _SENSITIVE else Format.Q4
        if name in own and (is_used_whole or own[name].format is target):
            kept[name] = own[name]
        else:
            made[name] = Shape(target, *module.weight.shape)
    return kept, made


def _suits(matrix: Matrix, module: Any) -> bool:
    return (matrix.rows, matrix.columns) == tuple(module.weight.shape)


def _rounded(
    file: Path, identity: str, shapes: dict[str, Shape], source: TensorFiles, on_rounding: Callable[[], None]
) -> dict[str, Matrix]:
    """The rounded matrices, from `file` if they are there; else made and put there, if the disk takes them."""
    if not shapes:
        return {}
    found = packed_file.read(file, identity)
    if found is None or _shapes(found) != shapes:
        on_rounding()
        try:
            packed_file.write(file, identity, shapes, _round_all(shapes, source))
        except OSError as error:
            _log.warning("The rounded weights cannot be kept as %s (%s).", file, error)
        found = packed_file.read(file, identity)
    return found if found is not None and _shapes(found) == shapes else dict(_round_all(shapes, source))


def _shapes(matrices: Mapping[str, Matrix]) -> dict[str, Shape]:
    return {name: Shape(matrix.format, matrix.rows, matrix.columns) for name, matrix in matrices.items()}


def _round_all(shapes: Mapping[str, Shape], source: TensorFiles) -> Iterator[tuple[str, Matrix]]:
    for name, shape in shapes.items():
        yield name, quantize(source[f"{name}.weight"], shape.format)


def _fill(model: PreTrainedModel, matrices: Mapping[str, Matrix], source: TensorFiles, dtype: torch.dtype) -> None:
    """Put the packed modules in place, then memory and numbers behind every parameter that is left."""
    by_weight = {id(module.weight): matrices[name] for name, module in _modules(model).items()}
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            continue
        matrix = by_weight[id(module.weight)]
        packed: torch.nn.Module
        if isinstance(module, torch.nn.Embedding):
            packed = PackedEmbedding(matrix, dtype, float(getattr(module, "scalar_embed_scale", 1.0)))
        else:
            packed = PackedLinear(matrix, module.bias)
        model.set_submodule(name, packed)
    for name, _ in list(model.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        value = torch.nn.Parameter(source[name].to(dtype, copy=True), requires_grad=False)
        setattr(model.get_submodule(owner), leaf, value)
    model.config.dtype = dtype
