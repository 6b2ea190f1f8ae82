"""What a model on disk will take of memory, before it is loaded: the shape of its cache, and its numbers in all."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cache_config import shape_of_config
from app.cache_shape import CacheShape
from app.errors import UserError
from app.gguf_header import read_gguf_header

_HALF = 2
_LONGEST_HEADER = 1 << 28
_LARGEST = 10**12  # numbers along one side of a tensor
_OWN_FILE = "packed.safetensors"  # the engine's copy, of the same numbers


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """`num_parameters` is None where the files do not tell."""

    shape: CacheShape
    num_parameters: int | None

    @property
    def weights_bytes(self) -> int | None:
        """In 16 bit, as Ember loads them by itself."""
        return None if self.num_parameters is None else _HALF * self.num_parameters


def read_model(path: Path) -> ModelOnDisk:
    """Of a safetensors folder or a GGUF file. Raises ModelDamagedError, ShapeUnknownError, UserError."""
    if path.is_file():
        header = read_gguf_header(path)
        return ModelOnDisk(shape_of_config(header.config()), header.num_parameters or None)
    try:
        config: Any = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{path} has no config.json that tells; give --layers, --kv-heads and --head-dim.")
    return ModelOnDisk(shape_of_config(config), _num_parameters(path))


def _num_parameters(folder: Path) -> int | None:
    files = [file for file in folder.glob("*.safetensors") if file.name != _OWN_FILE]
    try:
        return sum(map(_numbers_in, files)) or None
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _numbers_in(file: Path) -> int:
    """Of all tensors in a safetensors file: they are listed in its header."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > _LONGEST_HEADER:
            raise ValueError("no safetensors file")
        header = json.loads(opened.read(length))
    shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
    if not all(isinstance(size, int) and 0 <= size <= _LARGEST for shape in shapes for size in shape):
        raise ValueError("no shape of a tensor")
    return sum(map(math.prod, shapes))
