"""Tiny random models, one per family: the cache layers of each are what transformers really makes for it.

`FULL` families keep plain keys and values and can be cropped to any length. `CHECKPOINT` families have layers that
cannot (sliding, chunked, recurrent), so they go back to a checkpoint. `UNABLE` ones keep state elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tests.engine.conftest import build_tokenizer

WINDOW = 16
SLIDING, CHUNKED, FULL_ATTENTION, LINEAR = (
    "sliding_attention",
    "chunked_attention",
    "full_attention",
    "linear_attention",
)


class _Unset:
    """Marks a size that a family must not be given."""


UNSET = _Unset()

_SIZES: dict[str, object] = {
    "vocab_size": 303,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
}


class Expected(Enum):
    FULL = "full"
    CHECKPOINT = "checkpoint"
    UNABLE = "unable"


@dataclass(frozen=True)
class Family:
    """A model type of transformers, made tiny. `name` is unique; two entries may share a `model_type`."""

    name: str
    model_type: str
    expected: Expected
    overrides: Mapping[str, object] = field(default_factory=dict, compare=False)
    takes_chunks: bool = True
    """Whether several tokens may follow earlier ones in one pass: Mamba-1 code starts from nothing then (see 5.24)."""

    def config(self) -> PreTrainedConfig:
        sizes = {**_SIZES, **self.overrides}
        return AutoConfig.for_model(
            self.model_type, **{name: size for name, size in sizes.items() if size is not UNSET}
        )

    def build(self, seed: int = 0) -> PreTrainedModel:
        """The model in float32, ready to run; weights large enough that logits differ from prompt to prompt."""
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.25)
        return model.eval()

    def save(self, folder: Path, seed: int = 0) -> Path:
        """Save the model with its tokenizer, ready for the engine to load."""
        self.build(seed).save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
        return folder


_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MAMBA: dict[str, Any] = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 8}
_MLA: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
}


def _full(name: str, model_type: str = "", **overrides: object) -> Family:
    return Family(name, model_type or name, Expected.FULL, overrides)


def _checkpoint(name: str, model_type: str = "", *, takes_chunks: bool = True, **overrides: object) -> Family:
    return Family(name, model_type or name, Expected.CHECKPOINT, overrides, takes_chunks)


def _unable(name: str, **overrides: object) -> Family:
    return Family(name, name, Expected.UNABLE, overrides, takes_chunks=False)


FULL = (
    _full("llama"),
    _full("qwen2"),
    _full("qwen3"),
    _full("mistral", sliding_window=None),
    _full("phi3"),
    _full("gpt2"),
    _full("falcon", multi_query=True, new_decoder_architecture=False, head_dim=UNSET),
    _full("olmo2"),
    _full("granite"),
    _full("smollm3"),
    _full("stablelm"),
    _full("mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    _full("qwen3_moe", num_experts=4, **_EXPERTS),
    _full("deepseek_v3", **_MLA),
    _full("gpt_neo", window_size=WINDOW, attention_types=[[["global", "local"], 2]], num_hidden_layers=4),
    _full("glm4"),
    _full("gpt_neox"),
    _full("opt", ffn_dim=96),
    _full("bloom"),
    _full("phi"),
    _full("cohere"),
)

CHECKPOINT = (
    _checkpoint("mistral_window", "mistral", sliding_window=WINDOW),
    _checkpoint("qwen2_window", "qwen2", sliding_window=WINDOW, use_sliding_window=True, max_window_layers=1),
    _checkpoint("starcoder2", sliding_window=WINDOW),
    _checkpoint("gemma2", sliding_window=WINDOW, num_hidden_layers=4),
    _checkpoint("gemma3_text", sliding_window=WINDOW, layer_types=[SLIDING, SLIDING, FULL_ATTENTION]),
    _checkpoint(
        "gemma3n_text",
        sliding_window=WINDOW,
        num_hidden_layers=4,
        intermediate_size=[96] * 4,
        layer_types=[SLIDING, FULL_ATTENTION, SLIDING, FULL_ATTENTION],
        num_kv_shared_layers=2,
        activation_sparsity_pattern=[0.9, 0.0, 0.0, 0.0],
        vocab_size_per_layer_input=303,
        hidden_size_per_layer_input=8,
        laurel_rank=8,
        altup_num_inputs=2,
    ),
    _checkpoint(
        "gpt_oss",
        sliding_window=WINDOW,
        num_hidden_layers=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=[SLIDING, FULL_ATTENTION] * 2,
    ),
    _checkpoint("cohere2", sliding_window=WINDOW, layer_types=[SLIDING, SLIDING, FULL_ATTENTION]),
    _checkpoint("olmo3", sliding_window=WINDOW, layer_types=[SLIDING, SLIDING, FULL_ATTENTION]),
    _checkpoint("exaone4", sliding_window=WINDOW, layer_types=[SLIDING, SLIDING, FULL_ATTENTION]),
    _checkpoint(
        "llama4_text",
        attention_chunk_size=WINDOW,
        num_hidden_layers=4,
        intermediate_size_mlp=96,
        num_local_experts=4,
        layer_types=[CHUNKED, CHUNKED, CHUNKED, FULL_ATTENTION],
        no_rope_layers=[1, 1, 1, 0],
        moe_layers=[1, 3],
        floor_scale=32,
    ),
    _checkpoint("lfm2", num_hidden_layers=4, layer_types=["conv", FULL_ATTENTION, "conv", FULL_ATTENTION]),
    _checkpoint(
        "qwen3_next",
        num_hidden_layers=4,
        layer_types=[LINEAR, LINEAR, FULL_ATTENTION, LINEAR],
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        num_experts=4,
        shared_expert_intermediate_size=32,
        **_EXPERTS,
    ),
    _checkpoint(
        "jamba",
        takes_chunks=False,
        num_hidden_layers=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        use_mamba_kernels=False,
        mamba_dt_rank=4,
        mamba_d_state=8,
    ),
    _checkpoint("falcon_h1", mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, **_MAMBA),
    _checkpoint("bamba", num_hidden_layers=4, attn_layer_indices=[1, 3], mamba_n_heads=8, mamba_d_head=16, **_MAMBA),
    _checkpoint(
        "granitemoehybrid",
        layer_types=[LINEAR, FULL_ATTENTION, LINEAR],
        num_local_experts=2,
        shared_intermediate_size=32,
        mamba_n_heads=8,
        mamba_d_head=16,
        **_MAMBA,
    ),
    _checkpoint(
        "nemotron_h",
        num_hidden_layers=None,
        layers_block_type=[LINEAR, "mlp", FULL_ATTENTION, LINEAR, "moe"],
        ssm_state_size=8,
        mamba_num_heads=8,
        mamba_head_dim=16,
        n_groups=2,
        chunk_size=8,
        n_routed_experts=4,
        moe_shared_expert_intermediate_size=32,
        use_mamba_kernels=False,
        **_EXPERTS,
    ),
    _checkpoint("mamba", takes_chunks=False, state_size=8, conv_kernel=4, time_step_rank=4),
    _checkpoint("mamba2", num_heads=8, head_dim=16, state_size=8, n_groups=2, chunk_size=8, conv_kernel=4),
    _checkpoint(
        "zamba2",
        num_hidden_layers=4,
        layers_block_type=[LINEAR, "hybrid", LINEAR, "hybrid"],
        hybrid_layer_ids=[1, 3],
        mamba_d_state=8,
        n_mamba_heads=4,
        mamba_headdim=32,
        chunk_size=8,
        adapter_rank=8,
        use_mamba_kernels=False,
    ),
    _checkpoint("deepseek_v32", **_MLA),
    _checkpoint(
        "gemma4_text",
        sliding_window=WINDOW,
        num_hidden_layers=5,
        layer_types=[SLIDING, SLIDING, FULL_ATTENTION, SLIDING, FULL_ATTENTION],
        num_kv_shared_layers=2,
        global_head_dim=32,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=303,
    ),
    _checkpoint(
        "olmo_hybrid", linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4
    ),
    _checkpoint(
        "qwen3_5_text",
        layer_types=[LINEAR, FULL_ATTENTION, LINEAR],
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    ),
    _checkpoint(
        "kimi_linear",
        layer_types=[LINEAR, FULL_ATTENTION, LINEAR],
        mlp_layer_types=["dense", "sparse", "dense"],
        linear_head_dim=8,
        linear_num_heads=4,
        num_experts=4,
        num_experts_per_token=2,
        **{
            name: _MLA[name]
            for name in _MLA
            if name.startswith(("kv_lora", "qk_", "v_head", "num_key", "head_dim", "moe"))
        },
    ),
    _checkpoint(
        "lfm2_moe",
        num_hidden_layers=4,
        layer_types=["conv", FULL_ATTENTION, "conv", FULL_ATTENTION],
        num_experts=4,
        num_dense_layers=1,
        **_EXPERTS,
    ),
    _checkpoint("zamba", takes_chunks=False),
    _checkpoint("falcon_mamba", takes_chunks=False),
)

UNABLE = (
    _unable("recurrent_gemma", lru_width=64, attention_window_size=WINDOW),
    _unable("rwkv"),
    _unable("deepseek_v4", **_MLA),
)

FAMILIES = FULL + CHECKPOINT + UNABLE
BY_NAME = {family.name: family for family in FAMILIES}
