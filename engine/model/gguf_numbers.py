"""The very numbers of a GGUF file's Q4_0, Q4_1 and Q8_0 tensors, kept beside its conversion without any rounding.

Run as `python -m engine.model.gguf_numbers SOURCE.gguf FOLDER` for a folder that was converted before there were any.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from engine.kernels.packing import GROUP, Format, Matrix, can_pack, pack_q4, pack_q8, unpack
from engine.kv.fingerprint import hash_weights
from engine.model import packed_file
from engine.model.lean_weights import FAMILIES
from engine.model.model_files import OWN_NUMBERS, check_weights
from engine.model.packed_file import Shape
from engine.model.tensor_files import TensorFiles
from engine.one_thread import one_thread
from engine.protocol.errors import EngineError

_SCALE_BYTES = 2
_FORMATS = {"Q4_0": Format.Q4, "Q4_1": Format.Q4, "Q8_0": Format.Q8}
_MODULES = {
    "attn_q": ("self_attn.q_proj",),
    "attn_k": ("self_attn.k_proj",),
    "attn_v": ("self_attn.v_proj",),
    "attn_qkv": ("self_attn.qkv_proj",),
    "attn_output": ("self_attn.o_proj",),
    "ffn_gate": ("mlp.gate_proj",),
    "ffn_up": ("mlp.up_proj", "mlp.gate_up_proj"),
    "ffn_down": ("mlp.down_proj",),
}


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tensor of the GGUF file that is a module's weight. `heads`: in how many parts its rows are interleaved."""

    tensor: Any
    shape: Shape
    heads: int | None

    def matrix(self) -> Matrix:
        return _packed(self.tensor, self.heads)


@one_thread()
def keep_numbers(source: Path, folder: Path) -> int:
    """Write the numbers of the GGUF file `source` into `folder`, its conversion; returns how many matrices they are.

    A tensor that does not unpack to the very weights in the folder is left out. The file is written even if it holds
    none, as for a family without kernels: that says that there is nothing to keep. Raises OSError, or ModelError for
    a folder that is no model.
    """
    from gguf import GGUFReader  # noqa: PLC0415 - 0.26 s to import, only where a GGUF file is read

    files = check_weights(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    heads = [None, config.get("num_attention_heads"), config.get("num_key_value_heads")]
    is_known = config.get("model_type") in FAMILIES
    with TensorFiles(files) as converted:
        found = dict(_kept(GGUFReader(source).tensors, converted, heads)) if is_known else {}
    shapes = {name: one.shape for name, one in found.items()}
    matrices = ((name, one.matrix()) for name, one in found.items())
    packed_file.write(folder / OWN_NUMBERS, hash_weights(files, None), shapes, matrices)
    return len(found)


def _kept(tensors: list[Any], converted: TensorFiles, heads: list[int | None]) -> Iterator[tuple[str, _Kept]]:
    for tensor in tensors:
        kind = _FORMATS.get(tensor.tensor_type.name)
        name = _module(str(tensor.name), converted)
        if kind is None or name is None:
            continue
        columns, rows = (int(size) for size in tensor.shape)
        if not can_pack(rows, columns) or converted.shape(f"{name}.weight") != (rows, columns):
            continue
        weight = converted[f"{name}.weight"]
        for parts in heads if re.search(r"attn_[qk]\.", tensor.name) else heads[:1]:
            if (parts is None or rows % (2 * parts) == 0) and torch.equal(
                unpack(_packed(tensor, parts), weight.dtype), weight
            ):
                yield name, _Kept(tensor, Shape(kind, rows, columns), parts)
                break


def _module(tensor_name: str, converted: TensorFiles) -> str | None:
    """The module of a GGUF tensor ("blk.3.attn_q.weight"), if the converted model has it."""
    if tensor_name == "token_embd.weight":
        names = ["model.embed_tokens"]
    elif tensor_name == "output.weight":
        names = ["lm_head"]
    elif match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor_name):
        names = [f"model.layers.{match[1]}.{module}" for module in _MODULES.get(match[2], ())]
    else:
        names = []
    return next((name for name in names if f"{name}.weight" in converted), None)


def _packed(tensor: Any, heads: int | None) -> Matrix:
    """A tensor's numbers as the kernels want them, its rows brought back into transformers' order.

    A block of 32 weights: float16 scale, then for Q4_1 the minimum, then either 32 bytes, or 16 that have the first
    half of the numbers in their low bits. llama.cpp pairs row i of each head's upper half with row i of its lower half.
    """
    kind = str(tensor.tensor_type.name)
    columns, rows = (int(size) for size in tensor.shape)
    blocks = torch.from_numpy(np.array(tensor.data, dtype=np.uint8)).view(rows, columns // GROUP, -1)
    if heads is not None:
        pairs = blocks.view(heads, rows // heads // 2, 2, *blocks.shape[1:])
        blocks = pairs.transpose(1, 2).reshape(blocks.shape)
    scales = _float16(blocks[..., :_SCALE_BYTES])
    if kind == "Q8_0":
        return pack_q8(blocks[..., _SCALE_BYTES:].contiguous().view(torch.int8).view(rows, columns), scales)
    minima = _float16(blocks[..., _SCALE_BYTES : 2 * _SCALE_BYTES]) if kind == "Q4_1" else -8 * scales
    halves = blocks[..., -GROUP // 2 :]
    return pack_q4(torch.cat([halves & 15, halves >> 4], dim=-1).view(rows, columns), scales, minima)


def _float16(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.contiguous().view(torch.float16).squeeze(-1)


def main(arguments: list[str]) -> int:
    """Command line entry; prints one sentence on failure."""
    if len(arguments) != 2:
        print("usage: python -m engine.model.gguf_numbers SOURCE.gguf FOLDER", file=sys.stderr)
        return 2
    try:
        keep_numbers(Path(arguments[0]), Path(arguments[1]))
    except (EngineError, OSError, ValueError, SafetensorError) as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
