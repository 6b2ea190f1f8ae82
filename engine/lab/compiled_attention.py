"""The compiled step's attention by itself, to be measured: one thread, one KV head after the other.

In a reply the same kernel runs on several threads, in between the other parts of the step (`engine.kernels.team`).
"""

from __future__ import annotations

import torch

from engine.kernels.compile import has_numba
from engine.kernels.plan import SEGMENT, head_floats

_LANES = 32


class CompiledAttention:
    """Attention of one new token: query `[1, heads, 1, head_dim]`, keys and values `[1, kv_heads, n, head_dim]`."""

    @classmethod
    def of(cls, head_dim: int, dtype: torch.dtype) -> CompiledAttention | None:
        """None where there is no such kernel."""
        if not has_numba() or dtype is not torch.bfloat16 or head_dim % _LANES:
            return None
        return cls()

    def __call__(self, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        from engine.kernels.alone import attend_alone  # noqa: PLC0415 - imports numba, and compiles when first called

        query, keys, values = (tensor.contiguous() for tensor in tensors)
        _, heads, _, head_dim = query.shape
        kv_heads, count = keys.shape[1], keys.shape[2]
        group = heads // kv_heads
        floats = head_floats(-(-count // SEGMENT), head_dim)
        scores, partial = torch.empty(group, SEGMENT), torch.empty(group, floats)
        weights, out = torch.empty(16), torch.empty(heads, head_dim)
        scale = torch.tensor(head_dim**-0.5).numpy()[()]  # the kernels' type
        for head in range(kv_heads):
            places = query[0, head * group], keys[0, head], values[0, head]
            scratch = scores.data_ptr(), partial.data_ptr(), 4 * floats, weights.data_ptr()
            pointers = [tensor.data_ptr() for tensor in places]
            attend_alone(*pointers, count, group, head_dim, scale, *scratch, out[head * group].data_ptr())
        return out.reshape(1, heads, 1, head_dim)
