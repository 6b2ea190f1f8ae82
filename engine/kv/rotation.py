"""Rotary position embedding as it is applied to cached keys: what a key would be, had its token stood elsewhere.

Rotations add up, so a key that is rotated by the distance it moves is the very key of the new place (RoFormer, arXiv
2104.09864, section 3.2), as long as the frequencies do not depend on the length. Whether a model works like that is
tried out on the model itself: a token that is fed alone attends to nothing but itself, so that its keys at two places
differ by the rotation alone, in every layer. Only tensors, any device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

_STATIC = frozenset({"default", "linear", "llama3"})  # frequencies that no length changes
_TOKEN = 3
_PLACES = (37, 501)  # tried against place 0
_MOST_DIFFERENCE = 0.02  # of a key's norm: its numbers may have 8 bits


@dataclass(frozen=True, slots=True)
class Rotation:
    """`frequencies` float64 `[pairs]`; `is_rotated` says for each layer whether its keys are rotated at all.

    The first `2 * pairs` numbers of a head are rotated: number i with number i + pairs, or with its neighbour where
    they are `is_interleaved`.
    """

    frequencies: torch.Tensor
    is_rotated: tuple[bool, ...]
    is_interleaved: bool = False

    def moved(self, layer: int, keys: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """Keys of a layer `[tokens, ..., head_dim]`, each moved by its distance (positions, int64 `[tokens]`)."""
        if not self.is_rotated[layer]:
            return keys
        return _rotated(keys, distances, self.frequencies, is_interleaved=self.is_interleaved)


@torch.inference_mode()
def find_rotation(model: PreTrainedModel, config: Any, device: torch.device) -> Rotation | None:
    """How the model's keys carry their positions; None where they cannot be moved."""
    rope = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    buffers = [getattr(module, "inv_freq", None) for module in model.modules()]
    found = [one for one in buffers if isinstance(one, torch.Tensor)]
    if rope.get("rope_type", "default") not in _STATIC or not found:
        return None
    if any(not torch.equal(one, found[0]) for one in found[1:]):
        return None
    frequencies = found[0].double()
    try:
        here = _keys(model, config, device, 0)
        there = {place: _keys(model, config, device, place) for place in _PLACES}
    except (TypeError, ValueError, AttributeError, IndexError):
        return None  # another signature, or layers that keep something else
    for is_interleaved in (False, True):
        kinds = [_kind(layer, here, there, frequencies, is_interleaved=is_interleaved) for layer in range(len(here))]
        if any(kinds) and None not in kinds:
            return Rotation(frequencies, tuple(kind is True for kind in kinds), is_interleaved)
    return None


def _keys(model: PreTrainedModel, config: Any, device: torch.device, place: int) -> list[torch.Tensor]:
    """Of every layer, `[1, kv_heads, head_dim]`, for one token that stands alone at `place`."""
    cache = DynamicCache(config=config)
    ids = torch.tensor([[_TOKEN]], device=device)
    model(input_ids=ids, position_ids=torch.tensor([[place]], device=device), cache=cache, use_cache=True)
    layers: list[Any] = list(cache.layers)
    return [layer.keys[0].transpose(0, 1) for layer in layers]


def _kind(
    layer: int,
    here: list[torch.Tensor],
    there: dict[int, list[torch.Tensor]],
    frequencies: torch.Tensor,
    *,
    is_interleaved: bool,
) -> bool | None:
    """Whether a layer's keys are rotated; None for neither rotated nor the same everywhere."""
    if here[layer].shape[-1] < 2 * len(frequencies):
        return None
    is_same, is_turned = True, True
    for place, keys in there.items():
        distance = torch.tensor([place], device=here[layer].device)
        turned = _rotated(here[layer], distance, frequencies, is_interleaved=is_interleaved)
        is_same &= _is_close(here[layer], keys[layer])
        is_turned &= _is_close(turned, keys[layer])
    return True if is_turned else False if is_same else None


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one.float() - other.float()).norm() <= _MOST_DIFFERENCE * other.float().norm())


def _rotated(
    keys: torch.Tensor, distances: torch.Tensor, frequencies: torch.Tensor, *, is_interleaved: bool
) -> torch.Tensor:
    pairs = len(frequencies)
    angles = distances.to(frequencies.device).double()[:, None] * frequencies
    shape = (len(keys), *[1] * (keys.ndim - 2), pairs)
    cos, sin = angles.cos().float().view(shape), angles.sin().float().view(shape)
    turning, rest = keys[..., : 2 * pairs].float(), keys[..., 2 * pairs :]
    if is_interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = turning[..., :pairs], turning[..., pairs:]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([turned.to(keys.dtype), rest], -1)
