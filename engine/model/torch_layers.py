"""The arithmetic of a Llama-like model for a few tokens in torch operators, as few as there can be. Inference thread.

The residual stream is in the model's own type, as in transformers' forward; sums are rounded once where a matrix
multiplication adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from engine.kernels.packing import Matrix
from engine.model.lean_weights import LeanLayer, LeanWeights

# layer, query `[n, heads, head_dim]`, key and value `[n, kv_heads, head_dim]` -> `[n, heads * head_dim]`
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class TorchLayers:
    """All layers of a model whose matrices are plain; calculates in their type."""

    def __init__(self, weights: LeanWeights) -> None:
        self._weights = weights
        self.dtype = weights.embedding.words.dtype
        self.device = weights.embedding.words.device
        self._layers = [_Layer(weights, layer) for layer in weights.layers]
        self._final_norm = _Norm(weights.final_norm, weights.epsilon, self.dtype)

    def rotary_tables(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the first positions, `[num_tokens, rope_dim]`; sin is negative in its first half."""
        positions = torch.arange(num_tokens, device=self.device)[None]
        like = torch.zeros(1, 1, 1, dtype=self.dtype, device=self.device)
        cos, sin = self._weights.rotary(like, positions)
        first, second = sin[0].chunk(2, dim=-1)
        return cos[0].contiguous(), torch.cat((-first, second), dim=-1)

    def __call__(
        self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend, num_logits: int
    ) -> torch.Tensor:
        """Logits after the last `num_logits` (at least one) of the ids, `[num_logits, vocab]`, unscaled.

        ids: int64 `[n]`; cos, sin: the rows of the tables for their positions, `[n, rope_dim]`.
        """
        x = functional.embedding(ids, self._weights.embedding.words)
        if self._weights.embedding_scale != 1.0:
            x *= self._weights.embedding_scale
        cos, sin = cos[:, None], sin[:, None]
        for index, layer in enumerate(self._layers):
            layer.add_attention(x, cos, sin, attend, index)
            layer.add_mlp(x)
        return functional.linear(self._final_norm(x[-num_logits:]), self._weights.head.words)


class _Layer:
    """One decoder layer; both halves add to the residual stream `[n, hidden]` in place."""

    def __init__(self, weights: LeanWeights, layer: LeanLayer) -> None:
        self._one = weights
        self._has_rope = layer.has_rope and weights.rope_dim > 0
        self._qkv = _Projection(layer, ("q", "k", "v"))
        self._output = _Projection(layer, ("o",))
        self._gate_up = _Projection(layer, ("gate", "up"))
        self._down = _Projection(layer, ("down",))
        dtype = weights.embedding.words.dtype
        self._norms = {name: _Norm(weight, weights.epsilon, dtype) for name, weight in layer.norms.items()}

    def add_attention(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend, index: int) -> None:
        one, count = self._one, len(x)
        kv_width = one.kv_heads * one.head_dim
        qkv = self._qkv(self._normed("attention", x))
        qk = self._normed_heads(qkv[:, :-kv_width])
        if self._has_rope:
            rotated = qk[..., : one.rope_dim]
            halves = rotated.view(count, -1, 2, one.rope_dim // 2).flip(-2).flatten(-2)
            rotated.mul_(cos).addcmul_(halves, sin)
        value = qkv[:, -kv_width:].view(count, one.kv_heads, one.head_dim)
        attended = attend(index, qk[:, : one.heads], qk[:, one.heads :], value)
        self._add(x, attended, self._output, "post_attention")

    def add_mlp(self, x: torch.Tensor) -> None:
        gate, up = self._gate_up(self._normed("mlp", x)).chunk(2, dim=-1)
        is_silu = self._one.activation == "silu"
        active = functional.silu(gate) if is_silu else functional.gelu(gate, approximate="tanh")
        self._add(x, active.mul_(up), self._down, "post_mlp")

    def _normed_heads(self, qk: torch.Tensor) -> torch.Tensor:
        """Queries and keys side by side `[n, (heads + kv_heads) * head_dim]` -> `[n, heads + kv_heads, head_dim]`."""
        one = self._one
        heads = qk.view(len(qk), one.heads + one.kv_heads, one.head_dim)
        match one.qk_norm:
            case "per_head":
                query, key = self._norms["q"](heads[:, : one.heads]), self._norms["k"](heads[:, one.heads :])
                return torch.cat((query, key), dim=1)
            case "full_width":
                width = one.heads * one.head_dim
                query, key = self._norms["q"](qk[:, :width]), self._norms["k"](qk[:, width:])
                return torch.cat((query, key), dim=1).view(heads.shape)
        return heads

    def _normed(self, name: str, x: torch.Tensor) -> torch.Tensor:
        norm = self._norms.get(name)
        return x if norm is None else norm(x)

    def _add(self, x: torch.Tensor, y: torch.Tensor, projection: _Projection, post_norm: str) -> None:
        norm, scale = self._norms.get(post_norm), self._one.residual_scale
        if norm is None and projection.can_add:
            projection.add_to(x, y, scale)
        else:
            y = projection(y)
            x.add_(y if norm is None else norm(y), alpha=scale)


class _Projection:
    """One or more matrices with the same input, multiplied at once where they lie one behind the other in memory."""

    def __init__(self, layer: LeanLayer, names: Sequence[str]) -> None:
        matrices = [layer.projections[name] for name in names]
        joined = join(matrices)
        parts = [names] if joined is not None else [(name,) for name in names]
        self._weights = [matrix.words for matrix in matrices] if joined is None else [joined]
        self._biases = [_bias(layer, part) for part in parts]

    @property
    def can_add(self) -> bool:
        """Whether the result can be added to something in the same operator."""
        return len(self._weights) == 1 and self._biases[0] is None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[n, columns]` -> `[n, rows of all]`."""
        results = [functional.linear(x, *both) for both in zip(self._weights, self._biases, strict=True)]
        return results[0] if len(results) == 1 else torch.cat(results, dim=-1)

    def add_to(self, x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
        """Add the scaled result for `y` to `x`."""
        x.addmm_(y, self._weights[0].t(), alpha=scale)


class _Norm:
    """RMSNorm over the last dimension; the weight stays float32 where the model's type cannot hold it (Gemma)."""

    def __init__(self, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> None:
        rounded = weight.to(dtype)
        self._weight = rounded if torch.equal(rounded.float(), weight) else weight
        self._shape, self._epsilon = weight.shape, epsilon

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._weight.dtype is x.dtype:
            return functional.rms_norm(x, self._shape, self._weight, self._epsilon)
        return functional.rms_norm(x.float(), self._shape, self._weight, self._epsilon).to(x.dtype)


def join(matrices: Sequence[Matrix]) -> torch.Tensor | None:
    """The matrices as one, `[rows of all, columns]`, without a copy: None if they do not lie one behind the other."""
    first = matrices[0].words
    end = first.data_ptr()
    for matrix in matrices:
        words = matrix.words
        is_next = words.data_ptr() == end and words.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not is_next or not words.is_contiguous() or words.dtype is not first.dtype:
            return None
        if matrix.columns != matrices[0].columns:
            return None
        end += words.nbytes
    shape = (sum(matrix.rows for matrix in matrices), matrices[0].columns)
    return first.as_strided(shape, (shape[1], 1))


def _bias(layer: LeanLayer, names: Sequence[str]) -> torch.Tensor | None:
    """The biases of these projections one behind the other, zeros where there is none; None if there is none at all."""
    if not any(name in layer.biases for name in names):
        return None
    rows = {name: layer.projections[name].rows for name in names}
    like = layer.projections[names[0]].words
    pieces = [layer.biases[name] if name in layer.biases else like.new_zeros(rows[name]) for name in names]
    return torch.cat([piece.to(like) for piece in pieces])
