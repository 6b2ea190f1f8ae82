"""What a model's `config.json` says about its size and its KV cache, read with the standard library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`num_layers` counts layers with a KV cache. None where the file does not say, or says it in another way."""

    family: str | None = None
    context_length: int | None = None
    num_layers: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None

    def kv_bytes_per_token(self, *, bytes_per_value: float) -> int | None:
        """Keys and values of one token over all layers."""
        if self.num_layers is None or self.num_kv_heads is None or self.head_dim is None:
            return None
        return round(2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value)


def read_model_config(folder: Path) -> ModelConfig | None:
    """None where the folder has no `config.json` of a model."""
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict) or "model_type" not in config:
        return None
    family = str(config["model_type"])
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]  # a model that sees too keeps its language part there
    num_heads = _count(config, "num_attention_heads")
    hidden_size = _count(config, "hidden_size")
    head_dim = _count(config, "head_dim") or (hidden_size // num_heads if hidden_size and num_heads else None)
    is_plain = _count(config, "kv_lora_rank") is None  # compressed (MLA) caches are counted otherwise
    is_one_head = config.get("multi_query") is True and not config.get("new_decoder_architecture")  # Falcon-7B
    return ModelConfig(
        family=family,
        context_length=_count(config, "max_position_embeddings"),
        num_layers=_num_attention_layers(config) if is_plain else None,
        num_kv_heads=1 if is_one_head else _count(config, "num_key_value_heads") or num_heads,
        head_dim=head_dim,
    )


def _num_attention_layers(config: dict[str, Any]) -> int | None:
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds)
    return _count(config, "num_hidden_layers")


def _count(config: dict[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
