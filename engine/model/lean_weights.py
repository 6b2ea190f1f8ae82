"""What a Llama-like transformers model is made of, in the terms of the step kernels.

Families are told apart by their parts, not by their names: a part that is not known here means None, and a model that
is described wrongly is found out by the probe in `engine.model.acceleration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from engine.kernels.packing import Matrix, can_pack, plain

FAMILIES = frozenset(
    {
        "exaone",
        "exaone4",
        "gemma",
        "granite",
        "hyperclovax",
        "internlm3",
        "iquestcoder",
        "llama",
        "ministral",
        "mistral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "seed_oss",
        "smollm3",
    }
)
_NORMS_AFTER = {"q": "q", "k": "k", "post_attention": "o", "post_mlp": "down"}  # and of which projection they are
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """One decoder layer. `norms`: attention, mlp, post_attention, post_mlp, q, k; `biases` by projection; float32."""

    projections: dict[str, Matrix]
    biases: dict[str, torch.Tensor]
    norms: dict[str, torch.Tensor]
    has_rope: bool


@dataclass(frozen=True, slots=True)
class LeanWeights:
    """A whole model. `qk_norm`: None, "per_head" or "full_width"; `rotary` gives cos and sin for positions.

    `compute_dtype`: what the model itself computes in.
    """

    layers: list[LeanLayer]
    embedding: Matrix
    head: Matrix
    final_norm: torch.Tensor
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    hidden: int
    intermediate: int
    qk_norm: str | None
    activation: str
    epsilon: float
    attention_scale: float
    residual_scale: float
    embedding_scale: float
    logits_scale: float
    rotary: torch.nn.Module
    compute_dtype: torch.dtype

    @property
    def matrices(self) -> list[Matrix]:
        return [matrix for layer in self.layers for matrix in layer.projections.values()] + [self.embedding, self.head]


def describe(model: PreTrainedModel, packed: Mapping[str, Matrix] | None = None) -> LeanWeights | None:
    """The parts of `model`, or None if it has parts that are not known here.

    packed: matrices to use in place of the model's own, by the name of the module in the model. Others are the module's
    `matrix` (see `engine.model.packed_linear`), or its weight where it is, without a copy.
    """
    config: Any = model.config.get_text_config(decoder=True)
    inner: Any = getattr(model, "model", None)
    if config.model_type not in FAMILIES or inner is None or not _is_plain(config):
        return None
    first = inner.layers[0].self_attn
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, first.head_dim
    find = _Finder(packed or {})
    layers = [
        _layer(f"model.layers.{index}", layer, heads, kv_heads, head_dim, find)
        for index, layer in enumerate(inner.layers)
    ]
    head_module: Any = model.lm_head
    if getattr(head_module, "bias", None) is not None:
        return None
    embedding = find("model.embed_tokens", inner.embed_tokens)
    is_tied = getattr(head_module, "weight", None) is getattr(inner.embed_tokens, "weight", head_module)
    head = embedding if is_tied else find("lm_head", head_module)
    cos, _ = inner.rotary_emb(torch.zeros(1, 1, 1), torch.zeros(1, 1, dtype=torch.long))
    described = LeanWeights(
        layers=layers,
        embedding=embedding,
        head=head,
        final_norm=_norm_weight(inner.norm),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_dim=int(cos.shape[-1]),
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        qk_norm=_qk_norm(first, head_dim),
        activation=_ACTIVATIONS[_activation_name(config)],
        epsilon=float(config.rms_norm_eps),
        attention_scale=float(first.scaling),
        residual_scale=float(getattr(config, "residual_multiplier", 1.0)),
        embedding_scale=_embedding_scale(config),
        logits_scale=_logits_scale(config),
        rotary=inner.rotary_emb,
        compute_dtype=inner.norm.weight.dtype,
    )
    return described if _fits(described) else None


class _Finder:
    """Finds the matrix of a module, whole or some of its rows."""

    def __init__(self, packed: Mapping[str, Matrix]) -> None:
        self._packed = packed

    def __call__(self, name: str, module: Any, rows: slice = slice(None)) -> Matrix:
        matrix = self._packed.get(name) or getattr(module, "matrix", None) or plain(module.weight.detach())
        return matrix.part(rows)


def _activation_name(config: Any) -> str:
    return str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None))


def _is_plain(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        rope.get("rope_type", "default") in _STATIC_ROPE
        and _activation_name(config) in _ACTIVATIONS
        and hasattr(config, "rms_norm_eps")
        and getattr(config, "num_key_value_heads", None) is not None
    )


def _layer(prefix: str, layer: Any, heads: int, kv_heads: int, head_dim: int, find: _Finder) -> LeanLayer:
    attention, mlp = layer.self_attn, layer.mlp
    projections: dict[str, Matrix] = {}
    biases: dict[str, torch.Tensor] = {}

    def take(room: str, module_name: str, rows: dict[str, slice]) -> None:
        module = getattr(attention if room == "self_attn" else mlp, module_name)
        bias = getattr(module, "bias", None)
        for name, part in rows.items():
            projections[name] = find(f"{prefix}.{room}.{module_name}", module, part)
            if bias is not None:
                biases[name] = bias.detach().float()[part].contiguous()

    whole = slice(None)
    if hasattr(attention, "qkv_proj"):
        q, kv = heads * head_dim, kv_heads * head_dim
        take("self_attn", "qkv_proj", {"q": slice(0, q), "k": slice(q, q + kv), "v": slice(q + kv, q + 2 * kv)})
    else:
        for name in ("q", "k", "v"):
            take("self_attn", f"{name}_proj", {name: whole})
    take("self_attn", "o_proj", {"o": whole})
    if hasattr(mlp, "gate_up_proj"):
        half = mlp.down_proj.in_features
        take("mlp", "gate_up_proj", {"gate": slice(0, half), "up": slice(half, 2 * half)})
    else:
        take("mlp", "gate_proj", {"gate": whole})
        take("mlp", "up_proj", {"up": whole})
    take("mlp", "down_proj", {"down": whole})
    if not hasattr(layer, "input_layernorm"):
        places = {"post_attention": "post_attention_layernorm", "post_mlp": "post_feedforward_layernorm"}
    else:
        places = {"attention": "input_layernorm", "mlp": "post_attention_layernorm"}
        if hasattr(getattr(layer, "post_norm1", None), "weight"):
            places |= {"post_attention": "post_norm1", "post_mlp": "post_norm2"}
    norms = {name: _norm_weight(getattr(layer, place)) for name, place in places.items()}
    for name in ("q", "k"):
        if hasattr(attention, f"{name}_norm"):
            norms[name] = _norm_weight(getattr(attention, f"{name}_norm"))
    return LeanLayer(projections, biases, norms, bool(getattr(attention, "use_rope", True)))


def _norm_weight(norm: Any) -> torch.Tensor:
    """An RMSNorm's weight; Gemma's is kept as a difference to 1."""
    weight: torch.Tensor = norm.weight.detach().float()
    return (weight + 1.0 if type(norm).__name__.startswith("Gemma") else weight).contiguous()


def _qk_norm(attention: Any, head_dim: int) -> str | None:
    norm = getattr(attention, "q_norm", None)
    if norm is None:
        return None
    return "per_head" if norm.weight.shape[0] == head_dim else "full_width"


def _embedding_scale(config: Any) -> float:
    if config.model_type == "gemma":
        return float(torch.tensor(config.hidden_size**0.5, dtype=torch.bfloat16))
    return float(getattr(config, "embedding_multiplier", 1.0))


def _logits_scale(config: Any) -> float:
    scale = float(getattr(config, "logits_scaling", 1.0))
    return scale if config.model_type == "hyperclovax" else 1.0 / scale  # all others divide by it


def _fits(one: LeanWeights) -> bool:
    """Whether the kernels take these shapes and types; a norm of biased numbers is not among what they know."""
    is_biased_norm = any(
        norm in layer.norms and projection in layer.biases
        for layer in one.layers
        for norm, projection in _NORMS_AFTER.items()
    )
    return (
        not is_biased_norm
        and one.head_dim % 32 == 0
        and one.rope_dim % 2 == 0
        and one.hidden % 32 == 0
        and one.intermediate % 32 == 0
        and one.heads % one.kv_heads == 0
        and all(matrix.words.dtype in (torch.bfloat16, torch.int16) for matrix in one.matrices)
        and all(can_pack(matrix.rows, matrix.columns) for matrix in one.matrices)
    )
