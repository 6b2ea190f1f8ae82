"""Tiny random models of every family that the compiled step knows, with weights that bfloat16 holds exactly.

Their heads, norms, biases and rotary embeddings are those of real models of the family, made small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from engine.kernels.packing import Format, Matrix, quantize
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.working_cache import WorkingCache
from engine.model.loader import stock_layers
from tests.engine.conftest import build_tokenizer

VOCABULARY = 384
_FULL = "full_attention"
_SIZES: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class LeanFamily:
    """`name` is unique; several entries may share a `model_type`."""

    name: str
    model_type: str
    overrides: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def config(self) -> PreTrainedConfig:
        return AutoConfig.for_model(self.model_type, **{**_SIZES, **self.overrides})

    def build(self, seed: int = 0) -> PreTrainedModel:
        """The model in float32."""
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.15)
            elif "norm" not in name:
                torch.nn.init.normal_(parameter, std=0.3)
            elif self.model_type == "gemma":  # kept as the difference to 1
                torch.nn.init.uniform_(parameter, -0.5, 0.5)
            else:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        model.bfloat16().float().eval()
        return model

    def save(self, folder: Path, seed: int = 0) -> Path:
        """The model with a tokenizer, ready for the engine to load."""
        self.build(seed).bfloat16().save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
        return folder


def _family(name: str, model_type: str = "", **overrides: Any) -> LeanFamily:
    return LeanFamily(name, model_type or name, overrides)


def _rope(rope_type: str, **parameters: object) -> dict[str, object]:
    return {"rope_type": rope_type, "rope_theta": 10000.0, **parameters}


_MULTIPLIERS: dict[str, Any] = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.02}
_LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=1024)

LEAN_FAMILIES = (
    _family("exaone", num_key_value_heads=4),
    _family("exaone4", sliding_window=None, layer_types=[_FULL] * 3),
    _family("gemma", num_key_value_heads=1, head_dim=64, tie_word_embeddings=True),
    _family("granite", logits_scaling=8.0, **_MULTIPLIERS),
    _family("hyperclovax", logits_scaling=0.125, use_post_norm=False, **_MULTIPLIERS),
    _family("hyperclovax_post_norm", "hyperclovax", logits_scaling=0.5, use_post_norm=True, **_MULTIPLIERS),
    _family("internlm3"),
    _family("iquestcoder", head_dim=64),
    _family("llama", num_attention_heads=3, num_key_value_heads=3, hidden_size=96, tie_word_embeddings=True),
    _family("llama_biased", "llama", attention_bias=True, mlp_bias=True, num_attention_heads=8),
    _family("llama_llama3", "llama", rope_parameters=_LLAMA3),
    _family("llama_linear", "llama", rope_parameters=_rope("linear", factor=4.0)),
    _family("ministral", sliding_window=16, layer_types=[_FULL] * 3),
    _family("mistral", sliding_window=None, num_attention_heads=6),
    _family("olmo2", num_key_value_heads=4),
    _family("olmo2_grouped", "olmo2"),
    _family("phi3", rope_parameters=_rope("default", partial_rotary_factor=0.75)),
    _family("qwen2", num_attention_heads=7, num_key_value_heads=1, tie_word_embeddings=True),
    _family("qwen3", head_dim=64),
    _family("qwen3_yarn", "qwen3", rope_parameters=_rope("yarn", factor=4.0, original_max_position_embeddings=1024)),
    _family("seed_oss", num_attention_heads=8),
    _family("smollm3", no_rope_layers=[1, 0, 1]),
)
BY_NAME = {family.name: family for family in LEAN_FAMILIES}


def new_cache(model: PreTrainedModel, num_tokens: int = 0) -> WorkingCache:
    """An empty cache for a model of one of these families, in the type of its weights."""
    config = model.config
    head_dim = model.model.layers[0].self_attn.head_dim
    shape = LayerShape(config.num_key_value_heads, head_dim, head_dim)
    geometry = KVGeometry((shape,) * config.num_hidden_layers, model.dtype)
    stock = stock_layers(config, config.num_hidden_layers)
    return WorkingCache(geometry, stock, config.max_position_embeddings, torch.device("cpu"), num_tokens)


def packed(model: PreTrainedModel, target: Format) -> dict[str, Matrix]:
    """All matrices of the model, rounded to a format, by the names of their modules."""
    return {name: quantize(module.weight.detach(), target) for name, module in matrices(model)}


def matrices(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            yield name, module
