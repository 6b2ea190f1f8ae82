"""What the header of a GGUF file says, read with the standard library: its fields, and how many numbers it holds.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Long lists (the vocabulary) are skipped.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from engine.protocol.errors import ModelDamagedError

_MOST_FIELDS, _MOST_TENSORS = 100_000, 1_000_000
_LONGEST_LIST = 4096  # kept; what is longer is about words
_LONGEST_TEXT = 1 << 24
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


@dataclass(frozen=True, slots=True)
class GgufHeader:
    fields: Mapping[str, Any]
    num_parameters: int

    def config(self) -> dict[str, Any]:
        """As a `config.json` would say it, as far as caches are concerned."""
        arch = str(self.fields.get("general.architecture", ""))

        def told(name: str) -> Any:
            return self.fields.get(f"{arch}.{name}")

        heads, kv_heads = told("attention.head_count"), told("attention.head_count_kv")
        config: dict[str, Any] = {
            "model_type": _FAMILIES.get(arch, arch),
            "num_hidden_layers": told("block_count"),
            "hidden_size": told("embedding_length"),
            "max_position_embeddings": told("context_length"),
            "num_attention_heads": _one(heads),
            "num_key_value_heads": _one(kv_heads) or _one(heads),
            "head_dim": told("attention.key_length"),
            "sliding_window": told("attention.sliding_window"),
            "num_kv_shared_layers": told("attention.shared_kv_layers"),
            "kv_lora_rank": told("attention.kv_lora_rank"),
            "qk_rope_head_dim": told("rope.dimension_count") if told("attention.kv_lora_rank") else None,
            "mamba_d_state": told("ssm.state_size"),
        }
        pattern = told("attention.sliding_window_pattern")
        if isinstance(pattern, list):
            config["layer_types"] = ["sliding_attention" if one else "full_attention" for one in pattern]
        elif isinstance(pattern, int):
            config["sliding_window_pattern"] = pattern
        if isinstance(kv_heads, list):
            config["per_layer_config"] = {
                str(index): {"num_key_value_heads": count} for index, count in enumerate(kv_heads) if count
            }
        return {name: value for name, value in config.items() if value is not None}


_FAMILIES = {"gemma3": "gemma3_text", "gpt-oss": "gpt_oss"}


def read_gguf_header(path: Path) -> GgufHeader:
    """Raises ModelDamagedError where it is none, or cut short."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, ValueError, struct.error, UnicodeDecodeError, MemoryError, OverflowError) as error:
        raise ModelDamagedError(
            f"{path.name} is no whole GGUF file; download the model file again.", path=str(path)
        ) from error


def _read(file: BinaryIO) -> GgufHeader:
    if file.read(4) != b"GGUF":
        raise ValueError("no GGUF file")
    version, num_tensors, num_fields = struct.unpack("<IQQ", _exactly(file, 20))
    if version not in (2, 3) or num_fields > _MOST_FIELDS or num_tensors > _MOST_TENSORS:
        raise ValueError("an unknown form")
    fields = {}
    for _ in range(num_fields):
        name = _text(file)
        fields[name] = _value(file, _number(file, "I"))
    parameters = 0
    for _ in range(num_tensors):
        _text(file)
        dims = [_number(file, "Q") for _ in range(min(_number(file, "I"), 8))]
        _exactly(file, 12)  # its type, and where it lies
        parameters += math.prod(dims)
    return GgufHeader(fields, parameters)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind != _LIST:
        return _number(file, _NUMBERS[kind]) if kind in _NUMBERS else _unknown(kind)
    inner, count = _number(file, "I"), _number(file, "Q")
    if inner in _NUMBERS and count > _LONGEST_LIST:
        _skip(file, count * struct.calcsize(_NUMBERS[inner]))
        return None
    if inner == _TEXT and count > _LONGEST_LIST:
        for _ in range(count):
            _skip(file, _number(file, "Q"))
        return None
    return [_value(file, inner) for _ in range(count)] if inner != _LIST else _unknown(inner)


def _unknown(kind: int) -> Any:
    raise ValueError(f"a field of kind {kind}")


def _number(file: BinaryIO, letter: str) -> Any:
    return struct.unpack(f"<{letter}", _exactly(file, struct.calcsize(letter)))[0]


def _text(file: BinaryIO) -> str:
    length = _number(file, "Q")
    if length > _LONGEST_TEXT:
        raise ValueError("a text too long")
    return _exactly(file, length).decode("utf-8", "replace")


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise ValueError("cut short")
    return data


def _skip(file: BinaryIO, count: int) -> None:
    if count > 1 << 40:
        raise ValueError("a list too long")
    file.seek(count, 1)


def _one(value: Any) -> int | None:
    """A number, or the first one of a list that is not 0 (layers without attention have none)."""
    if isinstance(value, list):
        return next((one for one in value if one), None)
    return value if isinstance(value, int) else None
