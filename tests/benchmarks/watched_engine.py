"""The real engine worker with its cache manager in sight: what it holds is sampled from outside while it works.

Nothing is replaced: the runtime's methods are called through, and every forward pass leaves a hash of its logits.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import mmap
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
import xxhash

from engine.kv.arena import KVArena
from engine.kv.manager import CacheManager
from engine.kv.persistence import Restored
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel
from engine.protocol.commands import ChatMessage, Compress, Generate, Role, Undo
from engine.protocol.config import GREEDY, EngineConfig, Weights
from engine.protocol.events import Event, Failed, Finished, ModelInfo, SnapshotNotSaved, SnapshotSaved
from engine.runtime import Runtime
from tests.engine.conftest import Engine

SAMPLE_S = 0.02


@dataclass
class TurnWatch:
    """What one `Generate` did inside the engine."""

    passes: list[str] = field(default_factory=list)  # a hash of the float32 logits of every forward pass, in order
    logits: tuple[str, ...] = ()  # of them, those up to the end of the reply
    restored_tokens: int = 0
    is_save_queued: bool = False
    is_settled: threading.Event = field(default_factory=threading.Event)


class WatchedRuntime(Runtime):
    """Calls through, and tells `engine`."""

    engine: WatchedEngine

    def load(self, command: Any) -> ModelInfo:
        info = super().load(command)
        model, caches = self._loaded()
        self.engine.attach(model, caches)
        return info

    def generate(self, command: Generate, is_cancelled: Callable[[], bool]) -> Finished:
        finished = super().generate(command, is_cancelled)
        self.engine.turn_watch.logits = tuple(self.engine.turn_watch.passes)
        return finished

    def save(self, command: Generate | Compress | Undo) -> None:
        super().save(command)
        self.engine.turn_watch.is_settled.set()


class WatchedEngine(Engine):
    """Runs turns one at a time, each to its very end: read ahead, saved, others parked, room made."""

    model: LoadedModel
    caches: CacheManager

    def __init__(self, config: EngineConfig) -> None:
        self.turn_watch = TurnWatch()
        super().__init__(config)

    def load(self, path: Path, weights: Weights = Weights.BITS_16) -> Event:
        def start(*arguments: Any) -> Runtime:
            runtime = WatchedRuntime(*arguments)
            runtime.engine = self
            return runtime

        with mock.patch("engine.runtime.Runtime", start):
            return super().load(path, weights)

    def attach(self, model: LoadedModel, caches: CacheManager) -> None:
        """On the inference thread, once the model is loaded."""
        self.model, self.caches = model, caches
        feed, restore, save = model.forward._feed, caches.persistence.restore, caches.persistence.save

        def watched_feed(ids: list[int], cache: WorkingCache) -> torch.Tensor:
            logits = feed(ids, cache)
            self.turn_watch.passes.append(xxhash.xxh3_128_hexdigest(logits.cpu().numpy().tobytes()))
            return logits

        def watched_restore(manifest: Any, stop: int, cache: WorkingCache, is_cancelled: Any = None) -> Restored:
            before = cache.length
            restored = restore(manifest, stop, cache, is_cancelled)
            self.turn_watch.restored_tokens += restored.length - before
            return restored

        def watched_save(resident: Any, request_id: str) -> bool:
            is_queued = save(resident, request_id)
            self.turn_watch.is_save_queued |= request_id != ""
            return is_queued

        model.forward._feed = watched_feed  # type: ignore[method-assign]
        caches.persistence.restore = watched_restore  # type: ignore[method-assign]
        caches.persistence.save = watched_save  # type: ignore[method-assign]

    def turn(self, conversation: str, messages: list[ChatMessage], max_new_tokens: int) -> tuple[Finished, TurnWatch]:
        """One greedy turn; appends the reply to `messages`. Raises RuntimeError if the engine could not answer."""
        self._count += 1
        request = f"turn-{self._count}"
        watch = self.turn_watch = TurnWatch()
        self.worker.submit(Generate(conversation, request, tuple(messages), GREEDY, max_new_tokens))
        finished = self.wait(Finished, Failed, request_id=request)
        if not isinstance(finished, Finished):
            raise RuntimeError(f"no reply: {finished}")
        watch.is_settled.wait()
        if watch.is_save_queued:
            self.wait(SnapshotSaved, SnapshotNotSaved, request_id=request)
        ids = finished.token_ids if finished.ids_match_text else None
        messages.append(ChatMessage(Role.ASSISTANT, finished.text, ids))
        return finished, watch

    def cache_tensor_bytes(self) -> int:
        """Bytes of all tensors of this process but the model's own, found by walking what Python holds.

        Of a large tensor the pages that are there: buffers are reserved before they are filled.
        """
        gc.collect()
        model = self.model.forward._model
        step = self.model.forward.step
        own = [*model.parameters(), *model.buffers(), *_tensors_in(vars(step) if step is not None else {})]
        known = {tensor.untyped_storage().data_ptr() for tensor in own}
        found: dict[int, int] = {}
        for thing in gc.get_objects():
            if isinstance(thing, torch.Tensor) and thing.device.type != "meta":
                storage = thing.untyped_storage()
                found[storage.data_ptr()] = _bytes_there(storage)
        return sum(nbytes for pointer, nbytes in found.items() if pointer not in known)


def _tensors_in(thing: Any) -> Iterator[torch.Tensor]:
    """All tensors in containers and dataclasses: of the step, its packed weights, tables and scratch."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict | list | tuple):
        for one in thing.values() if isinstance(thing, dict) else thing:
            yield from _tensors_in(one)
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            yield from _tensors_in(getattr(thing, field.name))


def _bytes_there(storage: torch.UntypedStorage) -> int:
    """Linux tells which pages of a mapping are in memory; elsewhere, and for what is small, all of it counts."""
    if sys.platform != "linux" or storage.device.type != "cpu" or storage.nbytes() < 1024**2:
        return storage.nbytes()
    first = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = storage.data_ptr() + storage.nbytes() - first
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    if ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(size), pages) != 0:
        return storage.nbytes()
    return sum(page & 1 for page in bytes(pages)) * mmap.PAGESIZE


@dataclass
class MemorySamples:
    """The largest of what was seen every 20 ms; bytes."""

    count: int = 0
    memory_bytes: int = 0  # as the manager counts
    tensor_bytes: int = 0  # blocks and every buffer alive, also those about to be taken over or given up
    buffer_bytes: int = 0  # of one working buffer
    worst: str = ""  # what there was when `tensor_bytes` was seen, and what the engine did
    rss_bytes: int = 0
    rss_before_bytes: int = 0


@contextmanager
def sampled(engine: WatchedEngine) -> Iterator[MemorySamples]:
    """Samples on a thread of its own until the block ends. Buffers made before it are not seen."""
    samples, is_over = MemorySamples(), threading.Event()
    buffers: list[weakref.ref[KVArena]] = []
    with _noting_buffers(buffers):
        thread = threading.Thread(target=_sample, args=(engine, samples, buffers, is_over), name="sampler")
        samples.rss_before_bytes = psutil.Process().memory_info().rss
        thread.start()
        try:
            yield samples
        finally:
            is_over.set()
            thread.join()


@contextmanager
def _noting_buffers(buffers: list[weakref.ref[KVArena]]) -> Iterator[None]:
    make: Callable[..., None] = KVArena.__init__

    def noted(self: KVArena, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        buffers[:] = [known for known in buffers if known() is not None]
        buffers.append(weakref.ref(self))

    with mock.patch.object(KVArena, "__init__", noted):
        yield


def _sample(
    engine: WatchedEngine, samples: MemorySamples, buffers: list[weakref.ref[KVArena]], is_over: threading.Event
) -> None:
    process = psutil.Process()
    while not is_over.is_set():
        try:
            counted = engine.caches.memory_bytes
        except (RuntimeError, AttributeError):  # the inference thread changed it meanwhile: look again
            continue
        sizes = [arena.held_bytes(0) for known in tuple(buffers) if (arena := known()) is not None]
        arena = None
        samples.count += 1
        samples.memory_bytes = max(samples.memory_bytes, counted)
        blocks = engine.caches.pool.nbytes
        if blocks + sum(sizes) > samples.tensor_bytes:
            samples.tensor_bytes = blocks + sum(sizes)
            samples.worst = f"{blocks:,} in blocks, {' + '.join(map('{:,}'.format, sizes))} in buffers {_doing(engine)}"
        samples.buffer_bytes = max(samples.buffer_bytes, *sizes, 0)
        samples.rss_bytes = max(samples.rss_bytes, process.memory_info().rss)
        time.sleep(SAMPLE_S)


def _doing(engine: WatchedEngine) -> str:
    """The innermost functions of the engine on the inference thread."""
    frame = sys._current_frames().get(engine.worker._thread.ident or 0)
    names: list[str] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "engine" in path.parts and "tests" not in path.parts:
            names.append(f"{path.stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    return f"({' < '.join(names[:5])})"
