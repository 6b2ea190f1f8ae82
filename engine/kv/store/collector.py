"""Keeps the store within its limits: deletes whole conversations, least recently used first, under any fingerprint."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from engine.kv.chat_key import conversation_of
from engine.kv.store.catalog import Catalog
from engine.kv.store.deletion import delete_conversation
from engine.kv.store.files import StoreFiles
from engine.kv.store.report import folder_bytes

_PLENTY = 1 << 62


@dataclass(frozen=True, slots=True)
class Limits:
    """`cap_bytes`: the most all fingerprints together may use; `min_free_bytes`: what the disk must keep free."""

    cap_bytes: int
    min_free_bytes: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """A conversation deleted to keep the limits, and the bytes that gave. Its text is not touched."""

    conversation_id: str
    nbytes: int
    fingerprint: str


class Collector:
    """Runs on the writer's thread, deletions on the caller's; one lock keeps them apart.

    `pinned` conversations go last. `beside`: catalogs of the same model, in whose folders the same conversations are
    kept in other ways; one goes from all of them. Other fingerprints' manifests are read only when something has to go.
    """

    def __init__(self, files: StoreFiles, catalog: Catalog, limits: Limits, beside: Sequence[Catalog] = ()) -> None:
        self.limits = limits
        self.pinned: AbstractSet[str] = frozenset()
        self._files = files
        self._own = (catalog, *beside)
        self._lock = threading.Lock()
        self._others: list[Catalog] | None = None
        self._other_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Of everything stored under any fingerprint."""
        with self._lock:
            return self._total_bytes()

    def disk_bytes(self, conversation_id: str) -> int:
        """What is kept of a conversation, in all ways; files others refer to as well are counted."""
        return sum(catalog.disk_bytes(conversation_id) for catalog in self._own)

    def is_over(self, needed_bytes: int = 0) -> bool:
        """Whether the cap is exceeded, or too little space would be free with `needed_bytes` more on the disk."""
        with self._lock:
            return self._is_over(needed_bytes)

    def collect(self, protected: AbstractSet[str], needed_bytes: int = 0) -> tuple[Eviction, ...]:
        """Delete least recently used conversations until the limits hold, and files nobody refers to.

        `needed_bytes` are about to be written. For a floor that is out of reach, other programs having taken the space,
        nobody is evicted.
        `protected` ones (of the current model) are never deleted. What cannot be deleted stays. Never raises.
        """
        evictions: list[Eviction] = []
        with self._lock:
            for catalog in self._own:
                with contextlib.suppress(OSError):
                    catalog.purge_orphans()
            if not self._is_over(needed_bytes):
                return ()
            for catalog in self._load_others():
                with contextlib.suppress(OSError):
                    catalog.purge_orphans()
            candidates = self._candidates(protected)
            evictable = sum(catalog.disk_bytes(key) for catalogs, key in candidates for catalog in catalogs)
            can_reach_floor = self._free_bytes() + evictable - needed_bytes >= self.limits.min_free_bytes
            for catalogs, conversation_id in candidates:
                if not (self._is_over_cap() or (can_reach_floor and self._is_over(needed_bytes))):
                    break
                with contextlib.suppress(OSError):
                    freed = sum(catalog.remove(conversation_id) for catalog in catalogs)
                    evictions.append(Eviction(conversation_id, freed, catalogs[0].fingerprint))
        return tuple(evictions)

    def delete_conversation(self, conversation_id: str) -> None:
        """Leave no byte of a conversation, of none of its branches, under any fingerprint. Its saves must have ended.

        Raises OSError.
        """
        with self._lock:
            delete_conversation(self._files, conversation_id, [*self._own, *self._load_others()])

    def has_room(self, nbytes: int) -> bool:
        """Whether this much can be written without going below the free space that the limits leave untouched."""
        with self._lock:
            return self._free_bytes() - nbytes >= self.limits.min_free_bytes

    def _is_over(self, needed_bytes: int = 0) -> bool:
        return self._is_over_cap() or self._free_bytes() - needed_bytes < self.limits.min_free_bytes

    def _is_over_cap(self) -> bool:
        return self._total_bytes() > self.limits.cap_bytes

    def _free_bytes(self) -> int:
        """Free space; a disk that cannot be asked is not full."""
        try:
            return shutil.disk_usage(self._files.kv_dir).free
        except OSError:
            return _PLENTY

    def _total_bytes(self) -> int:
        return sum(catalog.total_bytes for catalog in self._own) + self._others_total()

    def _others_total(self) -> int:
        if self._others is not None:
            return sum(other.total_bytes for other in self._others)
        if self._other_bytes is None:
            own = [self._files.folder(catalog.fingerprint) for catalog in self._own]
            with contextlib.suppress(OSError):
                self._other_bytes = sum(folder_bytes(each) for each in self._files.folders() if each not in own)
        return self._other_bytes or 0

    def _load_others(self) -> list[Catalog]:
        if self._others is None:
            found: list[str] = []
            own = [catalog.fingerprint for catalog in self._own]
            with contextlib.suppress(OSError):
                found = [each for each in self._files.fingerprints() if each not in own]
            self._others = [Catalog(self._files, fingerprint) for fingerprint in found]
        return self._others

    def _candidates(self, protected: AbstractSet[str]) -> list[tuple[Sequence[Catalog], str]]:
        """In the order in which they go."""
        found: list[tuple[bool, int, int, str]] = []
        groups: list[Sequence[Catalog]] = [self._own, *((other,) for other in self._load_others())]
        for index, catalogs in enumerate(groups):
            spared = protected if catalogs is self._own else frozenset[str]()
            keys = dict.fromkeys(key for catalog in catalogs for key in catalog.conversation_ids() if key not in spared)
            found += [
                (conversation_of(key) in self.pinned, max(catalog.used_ns(key) for catalog in catalogs), index, key)
                for key in keys
            ]
        return [(groups[index], key) for _, _, index, key in sorted(found)]
