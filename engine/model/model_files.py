"""Checks a model folder before any library reads it, so that a bad file is named in one sentence. No torch."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from engine.protocol.errors import ModelDamagedError, ModelNotFoundError, NotALanguageModelError

OWN_NUMBERS = "packed.safetensors"  # beside model.safetensors: what a GGUF file held, without any rounding
_MAX_HEADER_BYTES = 100_000_000
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises ModelNotFoundError, NotALanguageModelError or ModelDamagedError."""
    if not folder.exists():
        raise ModelNotFoundError(
            f"There is no model at {folder}; check the path, or run `ember models` to see what is installed.",
            path=str(folder),
        )
    config_file = folder / "config.json"
    if not folder.is_dir() or not config_file.is_file():
        raise NotALanguageModelError(
            f"{folder} holds no language model (no config.json); choose a safetensors folder or GGUF file.",
            path=str(folder),
        )
    try:
        config = json.loads(config_file.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _damaged(config_file, "is not valid JSON") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise NotALanguageModelError(
            f"{folder} holds no language model (its config.json names no model_type); choose another folder.",
            path=str(folder),
        )
    return config


def check_weights(folder: Path) -> list[Path]:
    """The folder's safetensors files, each checked for being whole. Raises a ModelError."""
    index_file = folder / "model.safetensors.index.json"
    if index_file.is_file():
        try:
            names = sorted(set(json.loads(index_file.read_text("utf-8"))["weight_map"].values()))
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
            raise _damaged(index_file, "is not a valid index") from error
        files = [folder / str(name) for name in names]
    else:
        files = sorted(file for file in folder.glob("*.safetensors") if file.name != OWN_NUMBERS)
    if not files:
        kind = "only pickled weights, which can run code" if any(folder.glob("*.bin")) else "no weights"
        raise NotALanguageModelError(
            f"{folder} holds {kind}; get the model as safetensors (or GGUF) and choose that.", path=str(folder)
        )
    for file in files:
        _check_safetensors(file)
    return files


def tokenizer_id(folder: Path) -> str:
    """Identity of the vocabulary: a hash of the tokenizer's files. Raises NotALanguageModelError if there is none."""
    digest = hashlib.sha256()
    present = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    if not present:
        raise NotALanguageModelError(
            f"{folder} holds no tokenizer; download tokenizer.json of this model into it.", path=str(folder)
        )
    for file in present[:1]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _check_safetensors(file: Path) -> None:
    """Check the header and that the tensors fill the file exactly (safetensors format, README)."""
    if not file.is_file():
        raise _damaged(file, "is missing")
    size = file.stat().st_size
    with file.open("rb") as handle:
        start = handle.read(8)
        header_bytes = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if start.lstrip()[:1] == b"<" or start.startswith(b"version "):
            kind = "a web page" if start.lstrip()[:1] == b"<" else "a Git LFS pointer"
            raise _damaged(file, f"is {kind} saved in place of the weights")
        if not 2 <= header_bytes <= min(size - 8, _MAX_HEADER_BYTES):
            raise _damaged(file, "is cut short or no safetensors file")
        try:
            header = json.loads(handle.read(header_bytes))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            is_whole = 8 + header_bytes + max(ends, default=0) == size
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _damaged(file, "has an unreadable header") from error
    if not is_whole:
        raise _damaged(file, "is cut short")


def _damaged(file: Path, what: str) -> ModelDamagedError:
    return ModelDamagedError(f"{file} {what}; download the model again.", path=str(file))
