"""Host memory that files are read into and written from, and its way to the device: the one seam special to CUDA.

On the CPU the arena itself is that memory. On CUDA two pinned buffers take turns: one is filled from files while the
other is copied on a side stream; `finish` makes the compute stream wait for it. Inference thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from engine.kv.arena import KVArena
from engine.kv.block_keys import CHUNK_TOKENS
from engine.kv.geometry import KVGeometry

STAGING_BYTES = 32 * 1024**2  # of each buffer: long enough for full speed, short enough that the first copy starts soon
_LEAST_CHUNKS = 2  # the store reads two at a time


class ArenaUpload:
    """Fills the positions `start` to `stop` of an arena from host memory, in batches of up to `batch_chunks` chunks.

    For each batch: `begin`, write to its `regions`, `upload` what is good of it. `finish` must be called in any case.
    """

    def __init__(self, arena: KVArena, start: int, stop: int) -> None:
        self._arena = arena
        self._side: SideStream | None = None
        self._start = 0
        self.batch_chunks = max(1, -(-stop // CHUNK_TOKENS) - start // CHUNK_TOKENS)
        if is_host_memory(arena):
            self._regions, self._start = _RegionBytes.of(arena), arena.first
            return
        chunk_bytes = max(1, arena.geometry.bytes_per_token * CHUNK_TOKENS)
        most = max(_LEAST_CHUNKS, STAGING_BYTES // chunk_bytes)
        num_buffers = 2 if self.batch_chunks > most else 1
        self.batch_chunks = min(self.batch_chunks, most)
        batch_tokens = min(stop - start, self.batch_chunks * CHUNK_TOKENS)
        self._regions = []
        self._buffers = [_Staging(arena.geometry, batch_tokens) for _ in range(num_buffers)]
        self._side = SideStream(arena.device)

    def begin(self, start: int) -> None:
        """The next batch begins at this position. Waits until the memory for it is free."""
        if self._side is None:
            return
        self._buffers.append(self._buffers.pop(0))
        self._buffers[-1].wait()
        self._start, self._regions = start, self._buffers[-1].regions

    def regions(self, start: int, stop: int) -> list[memoryview]:
        """Writable bytes of these positions, per layer keys then values; each region is one piece."""
        return [region[start - self._start : stop - self._start] for region in self._regions]

    def upload(self, start: int, stop: int) -> None:
        """The host memory of these positions is filled: send it on its way."""
        if self._side is None:
            return
        staging = self._buffers[-1]
        with self._side.work():
            _copy_regions(self._arena.read(start, stop), staging.arena.read(start - self._start, stop - self._start))
        staging.wait = self._side.mark()

    def finish(self) -> None:
        """From here on the compute stream may use, overwrite or free what was uploaded.

        Copies may still run: torch gives pinned memory to nobody else before they are done.
        """
        if self._side is not None:
            self._side.join()


class SideStream:
    """Copies that run beside the device's compute stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # The arena's memory may have been freed a moment ago by work that the compute stream has not done yet.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def work(self) -> AbstractContextManager[None]:
        """Whatever is launched inside runs on this stream."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> Callable[[], None]:
        """Returns what waits until everything launched so far is done."""
        event: torch.cuda.Event = self._stream.record_event()
        return event.synchronize

    def join(self) -> None:
        """The compute stream goes on only after what was launched here."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class _Staging:
    """A buffer that the device copies from. `wait` returns when the last copy from it is done."""

    def __init__(self, geometry: KVGeometry, num_tokens: int) -> None:
        self.arena = pinned_arena(geometry, num_tokens)
        self.regions = _RegionBytes.of(self.arena)
        self.wait: Callable[[], None] = lambda: None


def is_host_memory(arena: KVArena) -> bool:
    """Whether files can be read into the arena itself and written from it."""
    return arena.device.type == "cpu"


def host_regions(arena: KVArena, start: int, stop: int) -> list[memoryview]:
    """Bytes of these positions to be written to a file, per layer keys then values. Copied only from a device.

    Into ordinary memory: pinned memory is never given back to the system. The copies are done on return.
    """
    if is_host_memory(arena):
        return [region[start - arena.first : stop - arena.first] for region in _RegionBytes.of(arena)]
    host = KVArena(arena.geometry, stop - start, torch.device("cpu"))
    _copy_regions(host.read(0, stop - start), arena.read(start, stop))
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
    """Host memory that the device can copy from while the CPU goes on; ordinary memory where none can be had."""
    if torch.cuda.is_available():
        try:
            return KVArena(geometry, num_tokens, torch.device("cpu"), is_pinned=True)
        except RuntimeError:  # the system limits it, or has none left
            pass
    return KVArena(geometry, num_tokens, torch.device("cpu"))


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that what was copied can be timed."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A contiguous host tensor's bytes, shared with it; a copy of any other."""
    flat = tensor.contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data).cast("B")


def _copy_regions(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy groups between host and device, a region at a time.

    A part of a whole group has gaps: torch would first gather it, on the host into memory that is not pinned, on the
    device into memory that may be short.
    """
    for target, source in zip(targets, sources, strict=True):
        for region, data in zip(target, source, strict=True):
            region.copy_(data, non_blocking=data.is_pinned())


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
