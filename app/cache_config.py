"""A model's `config.json` -> the shape of its cache: what transformers keeps for it, layer by layer.

Proved against transformers' own caches for every family that Ember knows (`tests/engine/test_cache_shapes.py`). What is
not known is refused, never guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from app.cache_shape import CacheShape, LayerGroup, LayerKind
from app.cache_size import MOST_LAYERS
from app.errors import UserError

_FULL, _SLIDING, _CHUNKED, _RECURRENT, _HYBRID, _NOTHING = (
    "full",
    "sliding",
    "chunked",
    "recurrent",
    "hybrid",
    "nothing",
)
_NAMES = {
    "full_attention": _FULL,
    "attention": _FULL,
    "sliding_attention": _SLIDING,
    "chunked_attention": _CHUNKED,
    "linear_attention": _RECURRENT,
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
    "conv": _RECURRENT,
    "hybrid": _HYBRID,
    "mlp": _NOTHING,
    "moe": _NOTHING,
}
_NEVER_SHARED_HEADS = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "codegen")  # every query head has its own
_ALL_RECURRENT = ("mamba", "mamba2", "falcon_mamba")
_UNKNOWN = ("rwkv", "recurrent_gemma", "deepseek_v4", "xlstm")  # they keep what this module has no numbers for
_OWN_WINDOWS = ("mistral", "starcoder2", "phi3", "ministral")  # `sliding_window` alone says that all layers have one


class ShapeUnknownError(UserError):
    """The configuration does not tell what is kept. params: family."""

    code = "cache_shape_unknown"


def shape_of_config(config: dict[str, Any]) -> CacheShape:
    """Of a whole `config.json`. Raises ShapeUnknownError."""
    family = str(config.get("model_type", ""))
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]  # a model that sees too keeps its language part there
    family = str(config.get("model_type", family))
    return _Reader(config, family).shape()


class _Reader:
    def __init__(self, config: dict[str, Any], family: str) -> None:
        self._config = config
        self._family = family

    def shape(self) -> CacheShape:
        if self._family in _UNKNOWN or self._has("index_head_dim"):
            raise self._unknown()
        kinds = self._kinds()
        groups = _merged(self._layers(kinds))
        if not groups:
            raise self._unknown()
        return CacheShape(
            groups=groups,
            heads=self._heads if any(kind in (_FULL, _SLIDING, _CHUNKED, _HYBRID) for kind in kinds) else None,
            context_length=self._count("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
            family=self._family or None,
            is_latent=self._is_latent,
        )

    # -- layers ----------------------------------------------------------------------------------------------------

    def _kinds(self) -> list[str]:
        """One word a layer, in order."""
        named = (
            self._config.get("layer_types") or self._config.get("layers_block_type") or self._config.get("block_types")
        )
        if isinstance(named, list) and named:
            if not all(str(name) in _NAMES for name in named):
                raise self._unknown()
            return [_NAMES[str(name)] for name in named]
        count = self._count("num_hidden_layers", "n_layer", "num_layers", "n_layers")
        if count is None or count > MOST_LAYERS:
            raise self._unknown()
        if self._family in _ALL_RECURRENT:
            return [_RECURRENT] * count
        if self._family == "falcon_h1":
            return [_HYBRID] * count
        return self._by_pattern(count) or self._by_window(count)

    def _by_pattern(self, count: int) -> list[str] | None:
        """Where the configuration counts instead of naming."""
        if self._has("attn_layer_period"):
            period, offset = self._config["attn_layer_period"], self._config.get("attn_layer_offset", 0)
            attends = [index % period == offset for index in range(count)]
        elif isinstance(self._config.get("attn_layer_indices"), list):
            attends = [index in self._config["attn_layer_indices"] for index in range(count)]
        elif isinstance(self._config.get("full_attn_idxs"), list):
            attends = [index in self._config["full_attn_idxs"] for index in range(count)]
        elif self._has("full_attention_interval"):
            interval = self._config["full_attention_interval"]
            attends = [(index + 1) % interval == 0 for index in range(count)]
        elif any(name.startswith(("mamba_", "ssm_", "linear_num", "hybrid_")) for name in self._config):
            raise self._unknown()
        else:
            return None
        return [_FULL if one else _RECURRENT for one in attends]

    def _by_window(self, count: int) -> list[str]:
        window = self._count("sliding_window")
        pattern = self._count("sliding_window_pattern", "_sliding_window_pattern")
        if window is None:
            return [_FULL] * count
        if self._has("use_sliding_window") or "use_sliding_window" in self._config:
            first = (self._count("max_window_layers") or 0) if self._config.get("use_sliding_window") else count
            return [_SLIDING if index >= first else _FULL for index in range(count)]
        if pattern is not None:
            return [_SLIDING if (index + 1) % pattern else _FULL for index in range(count)]
        if self._family in ("gemma2", "gpt_oss"):
            return [_SLIDING if (index + 1) % 2 else _FULL for index in range(count)]
        if self._family in ("gemma3", "gemma3_text"):
            return [_SLIDING if (index + 1) % 6 else _FULL for index in range(count)]
        if self._family in _OWN_WINDOWS:
            return [_SLIDING] * count
        if self._family.startswith(("gemma", "cohere", "exaone", "olmo")):
            raise self._unknown()
        return [_FULL] * count

    def _layers(self, kinds: list[str]) -> Iterable[LayerGroup]:
        shared = self._count("num_kv_shared_layers") or 0
        differing = self._config.get("per_layer_config")  # transformers' form of layers that differ, by number
        for index, kind in enumerate(kinds):
            own = differing.get(str(index)) if isinstance(differing, dict) else None
            layer = _Reader({**self._config, **own}, self._family) if isinstance(own, dict) else self
            if kind in (_FULL, _SLIDING, _CHUNKED) and index >= len(kinds) - shared:
                yield LayerGroup(LayerKind.SHARED, 1)
                continue
            if kind in (_RECURRENT, _HYBRID):
                half, single = layer._state
                yield LayerGroup(LayerKind.RECURRENT, 1, state_half=half, state_float=single)
            if kind in (_FULL, _HYBRID):
                yield layer._attention(LayerKind.FULL)
            elif kind == _SLIDING:
                yield layer._attention(LayerKind.SLIDING, layer._count("sliding_window"))
            elif kind == _CHUNKED:
                yield layer._attention(LayerKind.CHUNKED, layer._count("attention_chunk_size"))

    def _attention(self, kind: LayerKind, window: int | None = None) -> LayerGroup:
        if kind is not LayerKind.FULL and window is None:
            raise self._unknown()
        if self._is_latent:
            latent, rotary = self._count("kv_lora_rank"), self._count("qk_rope_head_dim")
            if latent is None or rotary is None:
                raise self._unknown()
            return LayerGroup(kind, 1, 1, latent, rotary, window)
        kv_heads, dim = self._kv_heads, self._head_dim
        if kind is LayerKind.FULL:  # Gemma 4: those that see everything have heads of their own
            dim = self._count("global_head_dim") or dim
            kv_heads = self._count("num_global_key_value_heads") or kv_heads
        if kv_heads is None or dim is None:
            raise self._unknown()
        return LayerGroup(kind, 1, kv_heads, dim, dim, window)

    # -- numbers ---------------------------------------------------------------------------------------------------

    @property
    def _is_latent(self) -> bool:
        return self._has("kv_lora_rank")

    @property
    def _heads(self) -> int | None:
        return self._count("num_attention_heads", "n_head", "num_heads", "n_heads")

    @property
    def _kv_heads(self) -> int | None:
        if self._family in _NEVER_SHARED_HEADS:
            return self._heads
        if self._config.get("multi_query") and not self._config.get("new_decoder_architecture"):
            return 1
        told = self._config.get("attn_config")
        own = _number(told, "kv_n_heads") if isinstance(told, dict) else None
        return (
            own
            or self._count("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
            or self._heads
        )

    @property
    def _head_dim(self) -> int | None:
        width = self._count("hidden_size", "n_embd", "d_model")
        told = self._count("attention_head_dim" if self._family.startswith("zamba") else "head_dim", "kv_channels")
        return told or (width // self._heads if width and self._heads else None) or None

    @property
    def _state(self) -> tuple[int | None, int | None]:
        """A recurrent layer's numbers: the convolution's in 16 bit, the recurrence's in 32. None where not told."""
        count, width = self._count, self._count("hidden_size") or 0
        keys, values = count("linear_num_key_heads"), count("linear_num_value_heads")
        key_dim, value_dim = count("linear_key_head_dim"), count("linear_value_head_dim")
        if keys and values and key_dim and value_dim:  # gated delta rule (Qwen3-Next, Qwen3.5, OLMo hybrid)
            mixed = 2 * keys * key_dim + values * value_dim
            return mixed * (count("linear_conv_kernel_dim") or 4), values * key_dim * value_dim
        heads, dim = count("linear_num_heads"), count("linear_head_dim")
        if heads and dim:  # Kimi delta attention
            return 3 * heads * dim * (count("linear_conv_kernel_dim") or 4), heads * dim * dim
        if self._has("conv_L_cache"):  # LFM2: a short convolution, no recurrence
            return width * self._config["conv_L_cache"], 0
        kernel = count("mamba_d_conv", "conv_kernel", "d_conv")
        state = count("mamba_d_state", "state_size", "ssm_state_size", "d_state")
        if kernel is None or state is None:
            return None, None
        heads = count("mamba_n_heads", "mamba_num_heads", "num_heads", "n_mamba_heads")
        dim = count("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim" if self._family == "mamba2" else "")
        if heads and dim and self._family != "zamba":  # Mamba-2
            mixed = heads * dim + 2 * (count("mamba_n_groups", "mamba_ngroups", "n_groups") or 1) * state
            return mixed * kernel, heads * dim * state
        inner = count("intermediate_size") if self._family in ("mamba", "falcon_mamba") else None
        inner = inner or (count("mamba_expand", "expand") or 2) * width
        return inner * kernel, inner * state  # Mamba-1

    def _count(self, *names: str) -> int | None:
        return next((value for name in names if (value := _number(self._config, name)) is not None), None)

    def _has(self, name: str) -> bool:
        return _number(self._config, name) is not None

    def _unknown(self) -> ShapeUnknownError:
        name = self._family or "this"
        return ShapeUnknownError(
            f"The configuration of {name} models does not tell what their cache keeps; give --layers, --kv-heads and"
            " --head-dim.",
            family=name,
        )


def _number(config: dict[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _merged(layers: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Equal ones together, in order of their first layer."""
    found = Counter(layers)
    return tuple(replace(layer, num_layers=count) for layer, count in found.items())
