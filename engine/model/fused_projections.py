"""Puts matrices that get the same input one behind the other in memory, so that one multiplication takes them all.

The model's own modules then look into that memory: there is no second copy, and its forward pass is as before.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from transformers import PreTrainedModel

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def fuse_projections(model: PreTrainedModel) -> None:
    """Fuse q, k, v and gate, up of every layer that has them, one after the other: little memory is needed at once.

    Raises RuntimeError (torch's out-of-memory) when even that cannot be had; the model is whole then.
    """
    for group in _groups(model):
        _fuse(group)


def fusible_nbytes(model: PreTrainedModel) -> int:
    """Bytes of the weights that `fuse_projections` moves."""
    return sum(linear.weight.nbytes for group in _groups(model) for linear in group)


def _groups(model: PreTrainedModel) -> list[list[torch.nn.Linear]]:
    groups = []
    for module in model.modules():
        for names in _TOGETHER:
            linears = [getattr(module, name, None) for name in names]
            found = [linear for linear in linears if type(linear) is torch.nn.Linear]
            if len(found) == len(names) and all(_match(*both) for both in pairwise(found)):
                groups.append(found)
    return groups


def _match(one: torch.nn.Linear, other: torch.nn.Linear) -> bool:
    return one.in_features == other.in_features and one.weight.dtype is other.weight.dtype


@torch.no_grad()
def _fuse(linears: list[torch.nn.Linear]) -> None:
    fused = torch.cat([linear.weight for linear in linears])
    start = 0
    for linear in linears:
        stop = start + linear.out_features
        linear.weight = torch.nn.Parameter(fused[start:stop], requires_grad=linear.weight.requires_grad)
        start = stop
