"""What transformers' state layers hold, attribute by attribute.

A class or an attribute that is not listed is refused, never guessed; written against transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MAX_STATES = 16
_MAX_NUMBER = 1 << 40


@dataclass(frozen=True, slots=True)
class LayerKind:
    """The attributes of one class: `tensors` and `numbers` are one value, or a dict of one per state index.

    `arguments` are the constructor's; `derived` ones follow from the tensors and are not stored.
    """

    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()

    def __add__(self, other: LayerKind) -> LayerKind:
        return LayerKind(
            self.tensors + other.tensors,
            self.numbers + other.numbers,
            self.arguments + other.arguments,
            self.derived + other.derived,
        )

    @property
    def attributes(self) -> set[str]:
        return {*self.tensors, *self.numbers, *self.arguments, *self.derived}


_ATTENTION = LayerKind(("keys", "values"), ("is_initialized",), derived=("device",))
_SLIDING = _ATTENTION + LayerKind(
    (), ("cumulative_length", "record_past"), ("sliding_window",), ("_sliding_window_tensor",)
)
_INDEXED = _ATTENTION + LayerKind(
    ("indexer_keys", "indexer_position_ids"), ("is_indexer_initialized",), derived=("indexer_dtype", "indexer_device")
)
_LINEAR = LayerKind(
    ("conv_states", "recurrent_states"),
    (
        "is_conv_states_initialized",
        "is_recurrent_states_initialized",
        "has_previous_state",
        "conv_kernel_size",
        "record_past",
    ),
    ("number_of_states",),
    ("device", "dtype"),
)

KINDS: dict[type, LayerKind] = {
    DynamicLayer: _ATTENTION,
    DummyLayer: LayerKind((), (), derived=("keys", "values", "is_initialized")),
    DynamicSlidingWindowLayer: _SLIDING,
    DynamicIndexedLayer: _INDEXED,
    LinearAttentionLayer: _LINEAR,
    LinearAttentionAndFullAttentionLayer: _LINEAR + _ATTENTION,
    LinearAttentionAndSlidingWindowAttentionLayer: _LINEAR + _SLIDING,
}
_BY_NAME = {layer_class.__name__: layer_class for layer_class in KINDS}


def stock_class(layer: object) -> type:
    """The class whose attributes are the layer's state: its own, or the `state_class` that a class of ours declares."""
    return getattr(layer, "state_class", type(layer))


def kind_of(layer: object) -> LayerKind:
    return KINDS[stock_class(layer)]


def is_listed(layer: object) -> bool:
    """Whether its attributes can be taken and put back at all."""
    return stock_class(layer) in KINDS


def is_known(layer: object) -> bool:
    """Whether the class is listed, with no attribute that is not, and is not keeping its past for a rollback."""
    kind = KINDS.get(type(layer))
    return kind is not None and vars(layer).keys() <= kind.attributes and not getattr(layer, "record_past", False)


def arguments(layer: object) -> dict[str, int]:
    """What the layer was constructed with."""
    return {name: getattr(layer, name) for name in kind_of(layer).arguments}


def tensors(layer: object) -> dict[str, torch.Tensor]:
    """The layer's own tensors, not copied; one of several states is named `attribute.index`."""
    values = _flat(layer, kind_of(layer).tensors)
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def numbers(layer: object) -> dict[str, int | bool]:
    """The layer's numbers and flags, its arguments included; what is None is absent."""
    kind = kind_of(layer)
    return {
        name: value for name, value in _flat(layer, kind.numbers + kind.arguments).items() if isinstance(value, int)
    }


def check(kind: str, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, int | bool], position: int) -> None:
    """Raise ValueError unless this is what a layer of the class holds after `position` tokens."""
    if kind not in _BY_NAME:
        raise ValueError(f"unknown layer class {kind!r}")
    layer_class = _BY_NAME[kind]
    listed = KINDS[layer_class]
    given = {name: numbers.get(name) for name in listed.arguments}
    if any(type(value) is not int or value < 1 for value in given.values()):
        raise ValueError(f"{kind}: bad arguments {given}")
    if numbers.get("number_of_states", 1) > _MAX_STATES or not all(0 <= n < _MAX_NUMBER for n in numbers.values()):
        raise ValueError(f"{kind}: numbers out of range")
    fresh = layer_class(**given)
    for name, value in (expected := _flat(fresh, listed.numbers + listed.arguments)).items():
        actual = numbers.get(name)
        if type(actual) is not type(value) and not (value is None and type(actual) is int):
            raise ValueError(f"{kind}: {name} is {actual!r}")
    if not numbers.keys() <= expected.keys():
        raise ValueError(f"{kind}: odd numbers {dict(numbers)}")
    if not tensors.keys() <= _flat(fresh, listed.tensors).keys():
        raise ValueError(f"{kind}: odd tensors {sorted(tensors)}")
    if numbers.get("record_past") or (listed.tensors and bool(tensors) != (position > 0)):
        raise ValueError(f"{kind}: not what a layer holds at position {position}")
    for name in _flat(fresh, listed.tensors):
        _check_tensor(kind, name, tensors.get(name), numbers)
    if "keys" in tensors:
        _check_attention(kind, tensors, numbers, position)


def _check_tensor(kind: str, name: str, tensor: torch.Tensor | None, numbers: Mapping[str, int | bool]) -> None:
    attribute, dot, index = name.partition(".")
    flags = {"keys": "is_initialized", "values": "is_initialized", "indexer_keys": "is_indexer_initialized"}
    flag = flags.get(attribute, f"is_{attribute}_initialized{dot}{index}")
    is_present = tensor is not None
    if numbers.get(flag, is_present) != is_present:
        raise ValueError(f"{kind}: {flag} does not match {name}")
    if attribute == "conv_states" and numbers[f"has_previous_state.{index}"] != is_present:
        raise ValueError(f"{kind}: has_previous_state does not match {name}")
    if tensor is None:
        return
    dims = {"keys": (4,), "values": (4,), "recurrent_states": (2, 3, 4)}.get(attribute, (3,))
    is_positions = attribute == "indexer_position_ids"
    batch = tensor.shape[1 if is_positions else 0] if tensor.ndim in dims else 0
    if batch != 1 or (tensor.dtype is not torch.int64 if is_positions else tensor.dtype not in _DTYPES):
        raise ValueError(f"{kind}: {name} is {tensor.dtype} {list(tensor.shape)}")
    if attribute == "conv_states" and tensor.shape[-1] != numbers.get(f"conv_kernel_size.{index}"):
        raise ValueError(f"{kind}: {name} is not as long as its kernel")


def _check_attention(
    kind: str, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, int | bool], position: int
) -> None:
    keys, values = tensors["keys"], tensors["values"]
    kept = min(position, numbers["sliding_window"] - 1) if "sliding_window" in numbers else position
    lengths = [keys.shape[2], values.shape[2]]
    if "indexer_keys" in tensors:
        lengths.append(tensors["indexer_keys"].shape[1])
    if numbers.get("cumulative_length", position) != position or set(lengths) != {kept}:
        raise ValueError(f"{kind}: holds {lengths} tokens at position {position}")
    if keys.dtype != values.dtype or keys.shape[1] != values.shape[1]:
        raise ValueError(f"{kind}: keys and values differ")


def _flat(layer: object, names: tuple[str, ...]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in names:
        value = getattr(layer, name)
        found.update(
            {f"{name}.{index}": item for index, item in value.items()} if isinstance(value, dict) else {name: value}
        )
    return found
