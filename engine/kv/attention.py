"""Our attention for full-attention models: query heads packed per KV head, past and new tokens attended apart.

Past keys need no mask and new ones only the causal one, so no mask is ever built and no key is ever repeated for the
past; the parts are merged by their log-sum-exp (FlashAttention, arXiv 2205.14135, section 3.1; the same merge as in
FlashDecoding). So are the cold parts of a cache, which are decoded piece by piece (`engine.kv.cold`). Registered with
transformers under `NAME`; what it does not cover goes to transformers' SDPA form.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "ember"
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "sliding_window")

Observer = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], None]
"""Called for every full-attention layer with its index among them, the queries `[1, heads, q, head_dim]`, the keys of
the contiguous part of the cache `[1, kv_heads, kv, head_dim]`, the log-sum-exp of every query over all keys
`[1, heads, q]`, float32, and what products of queries and keys are multiplied by."""


class ColdLayers(Protocol):
    """The part of a cache that is not in its contiguous memory: everything before it."""

    def attend(
        self, layer: int, packed: torch.Tensor, scale: float | None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Partial results over disjoint pieces for packed queries `[1, kv_heads, n, head_dim]`: outputs, float32 and of
        the same shape, and log-sum-exps `[1, kv_heads, n]`."""


class _Call(threading.local):
    """What the layer that was just written tells the attention function, which transformers calls next."""

    cold: ColdLayers | None = None
    layer = 0
    observer: Observer | None = None


_call = _Call()


def announce(layer: int, cold: ColdLayers | None) -> None:
    """The next attention on this thread is full-attention layer `layer`'s, over `cold` and what it is given."""
    _call.layer, _call.cold = layer, cold


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Let `observer` see every attention on this thread."""
    _call.observer = observer
    try:
        yield
    finally:
        _call.observer = None


def attend_causal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    cold: ColdLayers | None = None,
    layer: int = 0,
    observer: Observer | None = None,
) -> torch.Tensor:
    """Causal attention of the last `q` of `kv` tokens, aligned at the end, and over all of `cold`.

    query: `[1, heads, q, head_dim]`; key, value: `[1, kv_heads, kv, head_dim]`, q <= kv, heads a multiple of kv_heads.
    Returns `[1, heads, q, head_dim]` in the query's dtype.
    """
    if query.device.type != "cpu" and cold is None and observer is None:
        return _attend_causal_sdpa(query, key, value, scale)
    heads, q_length, head_dim = query.shape[1:]
    kv_heads, kv_length = key.shape[1], key.shape[2]
    group = heads // kv_heads
    past = kv_length - q_length
    packed = query.reshape(1, kv_heads, group * q_length, head_dim)
    if q_length == 1:
        merged = _Merged(*partial(packed, key, value, scale))
    else:
        new_out, new_lse = partial(
            query,
            key[:, :, past:].repeat_interleave(group, dim=1),
            value[:, :, past:].repeat_interleave(group, dim=1),
            scale,
            is_causal=True,
        )
        merged = _Merged(new_out.reshape(packed.shape), new_lse.reshape(packed.shape[:-1]))
        if past:
            merged.add(*partial(packed, key[:, :, :past], value[:, :, :past], scale))
    for out, lse in cold.attend(layer, packed, scale) if cold is not None else ():
        merged.add(out, lse)
    if observer is not None:
        factor = head_dim**-0.5 if scale is None else scale
        observer(layer, query, key, merged.lse.reshape(1, heads, q_length), factor)
    return merged.out.reshape(query.shape).to(query.dtype)


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
    """transformers' attention signature; returns `[1, q, heads, head_dim]` and no weights.

    Raises RuntimeError where a cache has a cold part and this kind of attention cannot read it.
    """
    if (
        attention_mask is not None
        or query.shape[0] != 1
        or query.shape[-1] != value.shape[-1]
        or any(kwargs.get(name) is not None for name in _UNSUPPORTED)
    ):
        if _call.cold is not None:
            raise RuntimeError("this attention cannot read an encoded cache")
        if attention_mask is None:
            attention_mask = _continuation_mask(query.shape[2], key.shape[2], query.device)
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output, None
    attended = attend_causal(query, key, value, scaling, _call.cold, _call.layer, _call.observer)
    return attended.transpose(1, 2), None


def register() -> None:
    """Make the attention available to `from_pretrained(attn_implementation=NAME)`."""
    AttentionInterface.register(NAME, ember_attention_forward)


def partial(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, *, is_causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over some of the keys: the output `[1, heads, q, head_dim]` and the log-sum-exp `[1, heads, q]`.

    All have the same number of heads. `is_causal`: as many keys as queries, each sees those up to its own.
    """
    if query.device.type == "cpu":
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, scale=scale
        )
        return output, lse
    scores = (query @ key.transpose(-1, -2)).float() * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores.masked_fill_(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp_().to(value.dtype) @ value, lse


class _Merged:
    """Softmax-normalized partial results over disjoint keys, combined one after the other; exact up to rounding."""

    def __init__(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.out, self.lse = out, lse

    def add(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        weight = torch.sigmoid(lse - self.lse).unsqueeze(-1)
        self.out = torch.lerp(self.out.float(), out.float(), weight)
        self.lse = torch.logaddexp(self.lse, lse)


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
