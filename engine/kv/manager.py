"""Conversations -> caches: in memory while the budget allows, else restored from disk, else empty.

Runs on the inference thread. The text of a conversation is the truth; everything here may be dropped at any time.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.kv.fingerprint import canonical_json, difference
from engine.kv.restorer import SnapshotRejectedError, SnapshotRestorer
from engine.kv.saver import SnapshotSaver
from engine.kv.snapshot_tensors import cache_bytes
from engine.kv.snapshots import SnapshotFiles
from engine.kv.working_cache import KVCache, WorkingCache
from engine.model.loader import LoadedModel
from engine.protocol.events import CacheReading, CacheReported, CacheState, ConversationCache

_SPARE_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Activation:
    """A cache that holds exactly the reusable prefix of a prompt: `reused` tokens, at least one less than it has."""

    cache: KVCache
    reused: int
    restore_s: float
    miss_reason: str | None


class CacheManager:
    """Owns the caches of one loaded model."""

    def __init__(self, model: LoadedModel, files: SnapshotFiles, saver: SnapshotSaver, budget_bytes: int) -> None:
        self._model = model
        self._files = files
        self._saver = saver
        self._budget_bytes = budget_bytes
        self._caches: OrderedDict[str, KVCache] = OrderedDict()  # least recently used first
        self._restorer = SnapshotRestorer(model.fingerprint.digest, model.geometry) if model.geometry else None
        self._spare = self._warm_spare()

    def activate(self, conversation_id: str, token_ids: Sequence[int], *, has_history: bool) -> Activation:
        """The conversation's cache, cut back to what `token_ids` shares with it; the rest is the caller's to feed.

        `has_history`: the prompt holds an earlier reply, so an empty cache is worth a `miss_reason`.
        """
        started = time.perf_counter()
        cache = self._caches.get(conversation_id)
        restore_s = 0.0
        miss_reason: str | None = None
        if cache is None:
            cache, miss_reason = self._restore(conversation_id, token_ids)
            restore_s = time.perf_counter() - started if cache.length else 0.0
        kept = cache.length
        reused = min(common_prefix(cache.token_ids, token_ids), len(token_ids) - 1)
        if reused < kept:
            self._saver.release(conversation_id)
            if cache.can_crop:
                cache.truncate(reused)
            else:
                cache, reused = self._model.new_cache(len(token_ids)), 0
            if reused < len(token_ids) - 1:
                miss_reason = f"the history changed after token {reused}"
        self._caches[conversation_id] = cache
        self._caches.move_to_end(conversation_id)
        return Activation(cache, reused, restore_s, miss_reason if has_history else None)

    def save(self, conversation_id: str, request_id: str) -> str | None:
        """Queue a snapshot of the conversation. Returns the reason when it cannot be saved, else None."""
        cache = self._caches.get(conversation_id)
        fingerprint = self._model.fingerprint
        if not isinstance(cache, WorkingCache):
            return self._model.info.cannot_resume_reason or "nothing is cached for this conversation"
        if cache.length == 0:
            return "nothing is cached for this conversation yet"
        try:
            self._files.prepare(fingerprint.folder, canonical_json(fingerprint.fields))
        except OSError as error:
            return f"the cache folder cannot be written: {error.strerror}"
        path = self._files.path(fingerprint.folder, conversation_id)
        self._saver.save(conversation_id, request_id, path, fingerprint.digest, cache_bytes(cache))
        return None

    def trim(self) -> None:
        """Drop least recently used caches until the budget holds; the newest always stays."""
        while len(self._caches) > 1 and self.memory_bytes > self._budget_bytes:
            oldest = next((key for key in self._caches if not self._saver.is_pending(key)), next(iter(self._caches)))
            if oldest == next(reversed(self._caches)):
                return
            self.drop(oldest)

    def drop(self, conversation_id: str) -> None:
        """Free a conversation's memory; its snapshot stays."""
        self._caches.pop(conversation_id, None)

    def drop_others(self, conversation_id: str) -> None:
        """Free the memory of every conversation but one."""
        for key in [key for key in self._caches if key != conversation_id]:
            self.drop(key)

    def close(self) -> None:
        """Drop all caches, when the model is replaced or the engine ends."""
        self._caches.clear()
        if self._restorer is not None:
            self._restorer.close()

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory behind all caches, rounding included."""
        return sum(cache.touched_bytes for cache in self._caches.values())

    def reading(self, cache: KVCache) -> CacheReading:
        """What the meter shows of a cache."""
        return CacheReading(cache.length, cache.nbytes, self._precision, self._model.device.type)

    def report(self, request_id: str, conversation_ids: Sequence[str] | None) -> CacheReported:
        """Every known conversation's place, in memory (most recent first) and on disk."""
        stored = self._files.stored()
        folder = self._model.fingerprint.folder
        on_disk = {one.conversation_id: one for one in stored if one.fingerprint_folder == folder}
        disk_bytes: Counter[str] = Counter()  # under any fingerprint: the disk holds them all
        for one in stored:
            disk_bytes[one.conversation_id] += one.nbytes
        wanted = conversation_ids if conversation_ids is not None else [*reversed(self._caches), *disk_bytes]
        rows: list[ConversationCache] = []
        for key in dict.fromkeys(wanted):
            cache, snapshot = self._caches.get(key), on_disk.get(key)
            is_warm = cache is not None and cache.length > 0
            rows.append(
                ConversationCache(
                    conversation_id=key,
                    tokens=cache.length if cache is not None and is_warm else snapshot.tokens if snapshot else 0,
                    memory_bytes=cache.nbytes if cache is not None else 0,
                    disk_bytes=disk_bytes[key],
                    shared_bytes=0,
                    precision=self._precision,
                    place=self._model.device.type if is_warm else "disk" if snapshot else "none",
                    state=CacheState.WARM if is_warm else CacheState.ON_DISK if snapshot else CacheState.COLD,
                )
            )
        memory = sum(cache.nbytes for cache in self._caches.values())
        touched = self.memory_bytes
        waste = 1.0 - memory / touched if touched else 0.0
        return CacheReported(request_id, self._budget_bytes, memory, disk_bytes.total(), 0, waste, tuple(rows))

    @property
    def _precision(self) -> str:
        return self._model.geometry.precision if self._model.geometry else self._model.info.dtype

    def _restore(self, conversation_id: str, token_ids: Sequence[int]) -> tuple[KVCache, str | None]:
        """A cache filled from the conversation's snapshot, or an empty one and why."""
        cache = self._spare or self._model.new_cache(len(token_ids))
        self._spare = None
        if self._restorer is None or not isinstance(cache, WorkingCache):
            return cache, self._model.info.cannot_resume_reason
        path = self._files.path(self._model.fingerprint.folder, conversation_id)
        if not path.is_file():
            return cache, self._why_missing(conversation_id)
        try:
            saved_ids = self._restorer.token_ids(path)
            if common_prefix(saved_ids, token_ids) == 0:
                return cache, "the history changed"
            self._restorer.restore(path, cache, saved_ids)
        except SnapshotRejectedError as reason:
            cache.truncate(0)
            return cache, str(reason)
        return cache, None

    def _warm_spare(self) -> WorkingCache | None:
        """An empty cache whose memory is already there, large enough for any chat on disk, for the first one resumed.

        Fresh memory costs more than reading a snapshot into it (measured: 75 against 30 ms for 138 MB), and now nobody
        waits. The pages are the first chat's own afterwards.
        """
        if self._model.geometry is None or self._model.device.type != "cpu":
            return None
        folder = self._model.fingerprint.folder
        sizes = [stored.tokens for stored in self._files.stored() if stored.fingerprint_folder == folder]
        largest = max(sizes, default=0)
        per_token = self._model.geometry.bytes_per_token
        tokens = min(largest, self._model.info.context_length, min(_SPARE_BYTES, self._budget_bytes) // per_token)
        if tokens < 1:
            return None
        cache = self._model.new_cache(tokens)
        if not isinstance(cache, WorkingCache):
            return None
        cache.arena.touch(tokens)
        return cache

    def _why_missing(self, conversation_id: str) -> str:
        for path in self._files.find(conversation_id):
            fields = self._files.fingerprint_fields(path.parent.parent.name)
            if fields is not None:
                return difference(self._model.fingerprint.fields, fields)
        return "no snapshot was kept"


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common beginning of two id sequences."""
    limit = min(len(first), len(second))
    if list(first[:limit]) == list(second[:limit]):
        return limit
    return next(index for index in range(limit) if first[index] != second[index])
