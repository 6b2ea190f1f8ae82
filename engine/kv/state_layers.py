"""What the cache layers outside the arena hold at one position: taken from transformers' layer objects and put back.

Such layers (sliding, chunked, recurrent, convolution, or both in one) forget, so they cannot be cropped; a checkpoint
is a copy of all of them. Works on layers listed in `engine.kv.layer_kinds`; inference thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import DummyLayer, DynamicIndexedLayer, DynamicLayer, DynamicSlidingWindowLayer

from engine.kv import layer_kinds

_HEADER = "state"
_MAX_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer: its class, its tensors and its numbers, by attribute (`keys`, `conv_states.0`); None is absent."""

    kind: str
    tensors: dict[str, torch.Tensor]
    numbers: dict[str, int | bool]


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """All state layers, by layer index, after `position` tokens."""

    position: int
    layers: dict[int, LayerState]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for state in self.layers.values() for tensor in state.tensors.values())

    @property
    def device_bytes(self) -> int:
        """Of them, those on the GPU."""
        tensors = [tensor for state in self.layers.values() for tensor in state.tensors.values()]
        return sum(tensor.nbytes for tensor in tensors if tensor.device.type != "cpu")

    def on_host(self) -> StateSnapshot:
        """The same in host memory; itself if it is there."""
        if not self.device_bytes:
            return self
        layers = {
            index: LayerState(one.kind, {name: tensor.cpu() for name, tensor in one.tensors.items()}, one.numbers)
            for index, one in self.layers.items()
        }
        return StateSnapshot(self.position, layers)


def is_full(layer: object) -> bool:
    """Whether it is exactly a plain full-attention layer, which belongs in the arena."""
    return type(layer) is DynamicLayer


def unsupported_reason(cache_layers: Sequence[object]) -> str | None:
    """Why this cache cannot be stored, or None. Ask after a forward pass: a layer empty then is not what remembers."""
    unknown = {type(layer).__name__ for layer in cache_layers if not layer_kinds.is_known(layer)}
    if unknown:
        names = ", ".join(sorted(unknown))
        return f"this model cannot resume: its cache has layers Ember cannot store yet ({names})"
    if not all(isinstance(layer, DummyLayer) or layer_kinds.tensors(layer) for layer in cache_layers):
        return "this model cannot resume: it keeps state outside its cache"
    return None


def capture(layers: Mapping[int, object], position: int) -> StateSnapshot:
    """Copy what the layers hold; the copies share no memory with them and are no longer than what is used."""
    return StateSnapshot(position, {index: _capture_layer(layer) for index, layer in layers.items()})


def load(layers: Mapping[int, object], state: StateSnapshot, device: torch.device | None = None) -> None:
    """Put copies of the snapshot into layers of the same classes, on `device` or where the snapshot is.

    Raises ValueError, before anything is changed, if the layers are not like those that the snapshot was taken from.
    """
    if layers.keys() != state.layers.keys():
        raise ValueError("the snapshot is of other layers")
    for index, layer in layers.items():
        stored = state.layers[index]
        if (
            layer_kinds.stock_class(layer).__name__ != stored.kind
            or not layer_kinds.arguments(layer).items() <= stored.numbers.items()
        ):
            raise ValueError(f"layer {index} is not the {stored.kind} of the snapshot")
    for index, layer in layers.items():
        _load_layer(layer, state.layers[index], device)


def reset(layers: Iterable[object]) -> None:
    """Make the layers as new, dropping their tensors. Unknown ones stay: their cache is thrown away as a whole."""
    for layer in filter(layer_kinds.is_listed, layers):
        fresh = vars(layer_kinds.stock_class(layer)(**layer_kinds.arguments(layer)))
        for name in layer_kinds.kind_of(layer).attributes:
            vars(layer).pop(name, None)
        vars(layer).update(fresh)


def nbytes(layers: Iterable[object]) -> int:
    """Bytes of memory behind the tensors of live layers: a sliding layer keeps all of its last chunk alive."""
    storages = [tensor.untyped_storage() for layer in layers for tensor in _live_tensors(layer)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _live_tensors(layer: object) -> list[torch.Tensor]:
    values = layer_kinds.tensors(layer) if layer_kinds.is_listed(layer) else vars(layer)
    return [value for value in values.values() if isinstance(value, torch.Tensor)]


def to_tensors(state: StateSnapshot) -> list[tuple[str, torch.Tensor]]:
    """Named tensors for a safetensors file; the numbers are JSON in a uint8 tensor called `state`."""
    header = {
        "position": state.position,
        "layers": {str(i): {"kind": layer.kind, "numbers": layer.numbers} for i, layer in state.layers.items()},
    }
    data = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    named = [(_HEADER, torch.frombuffer(bytearray(data), dtype=torch.uint8))]
    for index, layer in state.layers.items():
        named.extend((f"{index}.{name}", tensor) for name, tensor in layer.tensors.items())
    return named


def from_tensors(named: Iterable[tuple[str, torch.Tensor]], position: int) -> StateSnapshot:
    """The snapshot that `to_tensors` named. Raises ValueError on anything that no layer would hold at `position`."""
    tensors = dict(pairs := list(named))
    if len(tensors) != len(pairs):
        raise ValueError("a tensor is named twice")
    numbers = _read_header(tensors.pop(_HEADER, None), position)
    found: dict[int, dict[str, torch.Tensor]] = {index: {} for index in numbers}
    by_name = {str(index): held for index, held in found.items()}
    for name, tensor in tensors.items():
        index, _, attribute = name.partition(".")
        if index not in by_name:
            raise ValueError(f"a tensor of no layer: {name}")
        by_name[index][attribute] = tensor
    layers = {index: LayerState(kind, found[index], values) for index, (kind, values) in numbers.items()}
    for state in layers.values():
        layer_kinds.check(state.kind, state.tensors, state.numbers, position)
    return StateSnapshot(position, layers)


def _read_header(data: torch.Tensor | None, position: int) -> dict[int, tuple[str, dict[str, int | bool]]]:
    if data is None or data.dtype is not torch.uint8 or data.ndim != 1 or data.numel() > _MAX_HEADER_BYTES:
        raise ValueError("no numbers")
    try:
        header = json.loads(bytes(data.tolist()))
    except RecursionError as error:
        raise ValueError("the numbers are nested too deeply") from error
    match header:
        case {"position": int(stored), "layers": dict(layers), **rest} if stored == position and not rest:
            if all(index.isascii() and index.isdecimal() and str(int(index)) == index for index in layers):
                return {int(index): _read_layer(layer) for index, layer in layers.items()}
    raise ValueError(f"the state is not at position {position}")


def _read_layer(layer: object) -> tuple[str, dict[str, int | bool]]:
    match layer:
        case {"kind": str(kind), "numbers": dict(numbers), **rest} if not rest:
            if all(isinstance(value, int) for value in numbers.values()):
                return kind, numbers
    raise ValueError(f"not a layer: {layer!r}")


def _capture_layer(layer: object) -> LayerState:
    copies = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in layer_kinds.tensors(layer).items()
    }
    return LayerState(layer_kinds.stock_class(layer).__name__, copies, layer_kinds.numbers(layer))


def _load_layer(layer: object, state: LayerState, device: torch.device | None) -> None:
    reset([layer])
    copies = {name: tensor.detach().to(device, copy=True) for name, tensor in state.tensors.items()}
    for name, value in {**copies, **state.numbers}.items():
        attribute, _, index = name.partition(".")
        if index:
            getattr(layer, attribute)[int(index)] = value
        else:
            setattr(layer, attribute, value)
    _derive(layer, copies)


def _derive(layer: object, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set what transformers sets lazily, at a layer's first update."""
    first = next(iter(tensors.values()), None)
    if first is None:
        return
    vars(layer)["device"] = first.device
    conv = next((tensor for name, tensor in tensors.items() if name.startswith("conv_states")), None)
    if conv is not None:
        vars(layer)["dtype"] = conv.dtype
    if isinstance(layer, DynamicSlidingWindowLayer):
        layer._sliding_window_tensor = layer._sliding_window_tensor.to(first.device)
    if isinstance(layer, DynamicIndexedLayer) and layer.indexer_keys is not None:
        layer.indexer_dtype, layer.indexer_device = layer.indexer_keys.dtype, layer.indexer_keys.device
