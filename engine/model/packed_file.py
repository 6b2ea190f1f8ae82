"""Packed matrices in one safetensors file: written whole or not at all, mapped when read, refused when damaged.

Each matrix is `NAME.words`, `NAME.scales` and, in Q4, `NAME.minima`, in the layouts of `engine.kernels.packing`. Words
start at multiples of 64 bytes, so that no vector register is loaded across two cache lines. The file says which weights
it was made from, and carries a checksum of its tensors.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import struct
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError, safe_open

from engine.kernels.packing import GROUP, ROWS, Format, Matrix

VERSION = "1"
_ALIGNMENT = 64
_DIGEST_LENGTH = 32
_DTYPES = {torch.int16: "I16", torch.float16: "F16"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a matrix will be, before it is there."""

    format: Format
    rows: int
    columns: int

    @property
    def parts(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Tensor name -> safetensors type and shape."""
        blocks, groups = self.rows // ROWS, self.columns // GROUP
        words = self.columns // (8 if self.format is Format.Q4 else 4)
        parts = {"words": ("I16", (blocks, words, ROWS, 2)), "scales": ("F16", (blocks, groups, ROWS))}
        return parts | ({"minima": parts["scales"]} if self.format is Format.Q4 else {})

    @property
    def nbytes(self) -> int:
        return sum(2 * math.prod(shape) for _, shape in self.parts.values())


def write(path: Path, weights_hash: str, shapes: Mapping[str, Shape], matrices: Iterable[tuple[str, Matrix]]) -> None:
    """Write the matrices, which come one by one and need not stay in memory, as `path`.

    weights_hash: what they were made from. Raises OSError, leaving nothing, when the disk does not take them.
    """
    header, offsets = _laid_out(weights_hash, shapes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        scratch = Path(file.name)
        try:
            file.write(header)
            for name, matrix in matrices:
                for part in shapes[name].parts:
                    file.seek(offsets[f"{name}.{part}"])
                    file.write(getattr(matrix, part).contiguous().numpy().data)
            file.flush()
            _sign(file, header)
            file.close()
            scratch.chmod(0o644)
            scratch.replace(path)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise


def read(path: Path, weights_hash: str) -> dict[str, Matrix] | None:
    """The matrices, mapped from the file, or None where there are none that were made from these weights."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("version") != VERSION or metadata.get("weights") != weights_hash:
                return None
            if metadata.get("digest") != _digest(path):
                _log.warning("%s is damaged and will be made again.", path)
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, ValueError) as error:
        _log.warning("%s cannot be used (%s).", path, error)
        return None
    names = {name.rpartition(".")[0] for name in tensors}
    matrices = {
        name: _matrix(*(tensors.get(f"{name}.{part}") for part in ("words", "scales", "minima"))) for name in names
    }
    return {name: matrix for name, matrix in matrices.items() if matrix is not None}


def is_current(path: Path) -> bool:
    """Whether `path` is a file of this version, as far as its header tells."""
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("version") == VERSION
    except (OSError, SafetensorError):
        return False


def _laid_out(weights_hash: str, shapes: Mapping[str, Shape]) -> tuple[bytes, dict[str, int]]:
    """The header, with a checksum of zeros, and where in the file each tensor starts: all words, then the rest."""
    digest = "0" * _DIGEST_LENGTH
    entries: dict[str, object] = {
        "__metadata__": {"digest": digest, "version": VERSION, "weights": weights_hash, "made_by": "ember"}
    }
    starts: dict[str, int] = {}
    end = 0
    for are_words in (True, False):
        for name, shape in shapes.items():
            for part, (dtype, sizes) in shape.parts.items():
                if (part == "words") is are_words:
                    start, end = end, end + 2 * math.prod(sizes)
                    starts[f"{name}.{part}"] = start
                    entries[f"{name}.{part}"] = {"dtype": dtype, "shape": sizes, "data_offsets": (start, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    header = struct.pack("<Q", len(text)) + text
    return header, {name: len(header) + start for name, start in starts.items()}


def _sign(file: IO[bytes], header: bytes) -> None:
    digest = _digest(Path(file.name))
    file.seek(header.index(b"0" * _DIGEST_LENGTH))
    file.write(digest.encode())


def _digest(path: Path) -> str:
    """Of everything behind the header. Raises OSError, or ValueError for a file that has none."""
    content = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int(content[:8].view("<u8")[0])
    return xxhash.xxh3_128(content[start:].data).hexdigest()


def _matrix(words: torch.Tensor | None, scales: torch.Tensor | None, minima: torch.Tensor | None) -> Matrix | None:
    """A matrix of parts that fit together, else None."""
    if words is None or scales is None or words.dim() != 4 or scales.dim() != 3:
        return None
    shape = Shape(Format.Q8 if minima is None else Format.Q4, len(words) * ROWS, scales.shape[1] * GROUP)
    parts = {"words": words, "scales": scales} | ({} if minima is None else {"minima": minima})
    found = {part: (_DTYPES.get(tensor.dtype), tuple(tensor.shape)) for part, tensor in parts.items()}
    return Matrix(shape.format, shape.rows, shape.columns, words, scales, minima) if found == shape.parts else None
