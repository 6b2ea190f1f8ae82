"""Our attention for full-attention models: query heads packed per KV head, past and new tokens attended apart.

Past keys need no mask and new ones only the causal one, so no mask is ever built and no key is ever repeated for the
past; the two parts are merged by their log-sum-exp (FlashAttention, arXiv 2205.14135, section 3.1; the same merge as in
FlashDecoding). Registered with transformers under `NAME`; what it does not cover goes to transformers' SDPA form.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "ember"
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "sliding_window")


def attend_causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Causal attention of the last `q` of `kv` tokens, aligned at the end.

    query: `[1, heads, q, head_dim]`; key, value: `[1, kv_heads, kv, head_dim]`, q <= kv, heads a multiple of kv_heads.
    Returns `[1, heads, q, head_dim]` in the query's dtype.
    """
    heads, q_length, head_dim = query.shape[1:]
    kv_heads, kv_length = key.shape[1], key.shape[2]
    group = heads // kv_heads
    past = kv_length - q_length
    if query.device.type != "cpu":
        return _attend_causal_sdpa(query, key, value, scale)
    packed = query.reshape(1, kv_heads, group * q_length, head_dim)
    if q_length == 1:
        return _flash(packed, key, value, scale)[0].reshape(query.shape)
    new_out, new_lse = _flash(
        query,
        key[:, :, past:].repeat_interleave(group, dim=1),
        value[:, :, past:].repeat_interleave(group, dim=1),
        scale,
        is_causal=True,
    )
    if past == 0:
        return new_out
    past_out, past_lse = _flash(packed, key[:, :, :past], value[:, :, :past], scale)
    return _merge(past_out.reshape(query.shape), past_lse.reshape(1, heads, q_length), new_out, new_lse, query.dtype)


def ember_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature; returns `[1, q, heads, head_dim]` and no weights."""
    if (
        attention_mask is not None
        or query.shape[0] != 1
        or query.shape[-1] != value.shape[-1]
        or any(kwargs.get(name) is not None for name in _UNSUPPORTED)
    ):
        if attention_mask is None:
            attention_mask = _continuation_mask(query.shape[2], key.shape[2], query.device)
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output, None
    return attend_causal(query, key, value, scaling).transpose(1, 2), None


def register() -> None:
    """Make the attention available to `from_pretrained(attn_implementation=NAME)`."""
    AttentionInterface.register(NAME, ember_attention_forward)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, *, is_causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, scale=scale
    )
    return output, lse


def _attend_causal_sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
) -> torch.Tensor:
    q_length, kv_length = query.shape[2], key.shape[2]
    mask = _continuation_mask(q_length, kv_length, query.device)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=1 < q_length == kv_length, scale=scale, enable_gqa=True
    )


def _continuation_mask(q_length: int, kv_length: int, device: torch.device) -> torch.Tensor | None:
    """The causal mask of several tokens that follow earlier ones, which SDPA would align at the beginning."""
    if not 1 < q_length < kv_length:
        return None
    return torch.ones(1, 1, q_length, kv_length, dtype=torch.bool, device=device).tril(kv_length - q_length)


def _merge(
    first: torch.Tensor, first_lse: torch.Tensor, second: torch.Tensor, second_lse: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Combine two softmax-normalized partial results over disjoint keys; exact up to rounding."""
    weight = torch.sigmoid(first_lse - second_lse).unsqueeze(-1)
    return torch.lerp(second.float(), first.float(), weight).to(dtype)
