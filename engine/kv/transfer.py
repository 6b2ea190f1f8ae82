"""Host memory that files are read into and written from, and its way to the device: the one seam special to CUDA.

On the CPU the arena itself is that memory. On CUDA it is a pinned buffer, copied on a side stream; `finish` makes the
compute stream wait for it. Inference thread.
"""

from __future__ import annotations

import torch

from engine.kv.arena import KVArena
from engine.kv.geometry import KVGeometry


class ArenaUpload:
    """Receives the positions `start` to `stop` of an arena from the host, in parts."""

    def __init__(self, arena: KVArena, start: int, stop: int) -> None:
        self._arena = arena
        self._start = start
        self._is_direct = arena.device.type == "cpu"
        self._host = arena if self._is_direct else pinned_arena(arena.geometry, stop - start)
        self._stream = None if self._is_direct else torch.cuda.Stream(arena.device)  # type: ignore[no-untyped-call]

    def regions(self, start: int, stop: int) -> list[memoryview]:
        """Writable bytes of these positions, per layer keys then values; each region is one piece."""
        shift = 0 if self._is_direct else self._start
        return [region[start - shift : stop - shift] for region in _RegionBytes.of(self._host)]

    def upload(self, start: int, stop: int) -> None:
        """The host memory of these positions is filled: send it on its way."""
        if self._stream is None:
            return
        with torch.cuda.stream(self._stream):
            self._arena.write(start, self._host.read(start - self._start, stop - self._start))

    def finish(self) -> None:
        """From here on the compute stream may use what was uploaded."""
        if self._stream is not None:
            torch.cuda.current_stream(self._arena.device).wait_stream(self._stream)


def host_regions(arena: KVArena, start: int, stop: int) -> list[memoryview]:
    """Bytes of these positions to be written to a file, per layer keys then values. Copied only from a device."""
    if arena.device.type == "cpu":
        return [region[start:stop] for region in _RegionBytes.of(arena)]
    host = pinned_arena(arena.geometry, stop - start)
    host.write(0, arena.read(start, stop))
    torch.cuda.current_stream(arena.device).synchronize()
    return [region[0 : stop - start] for region in _RegionBytes.of(host)]


def block_regions(geometry: KVGeometry, tensors: list[torch.Tensor]) -> list[memoryview]:
    """The same for a block's tensors, one per group; copied only from a device."""
    found: dict[tuple[int, bool], memoryview] = {}
    for group, tensor in zip(geometry.groups, tensors, strict=True):
        data = bytes_of(tensor.cpu())
        size = len(data) // len(group.layers)
        for region, layer in enumerate(group.layers):
            found[layer, group.is_key] = data[region * size : (region + 1) * size]
    return [found[layer, is_key] for layer in range(len(geometry.layers)) for is_key in (True, False)]


def pinned_arena(geometry: KVGeometry, num_tokens: int) -> KVArena:
    """Host memory that the device can copy from while the CPU goes on; ordinary memory where there is no device."""
    return KVArena(geometry, num_tokens, torch.device("cpu"), is_pinned=torch.cuda.is_available())


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A contiguous host tensor's bytes, shared with it; a copy of any other."""
    flat = tensor.contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data).cast("B")


class _RegionBytes:
    """One region's bytes, sliced by token position."""

    def __init__(self, region: torch.Tensor) -> None:
        self._data = bytes_of(region)
        self._row = len(self._data) // max(1, region.shape[0])

    @classmethod
    def of(cls, arena: KVArena) -> list[_RegionBytes]:
        return [cls(side[layer]) for layer in range(len(arena.keys)) for side in (arena.keys, arena.values)]

    def __getitem__(self, positions: slice) -> memoryview:
        return self._data[positions.start * self._row : positions.stop * self._row]
