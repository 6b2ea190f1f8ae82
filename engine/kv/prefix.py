"""Fills a cache with the longest known beginning of a prompt: from memory, whoever holds it, then from disk.

Runs on the inference thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from engine.kv import transfer
from engine.kv.blocks import BlockPool
from engine.kv.persistence import Persistence, Restored
from engine.kv.rates import MeasuredRates
from engine.kv.resident import Resident, common_prefix
from engine.kv.store.records import Manifest
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel
from engine.protocol.misses import Miss, MissCode

EXACT_WAIT_S = 1.0  # a quantized chat comes back exact when the disk (and reading the rest) takes no longer than this
_MAX_RESTORES = 3  # attempts, each after a damaged file was dropped


class PrefixFiller:
    """For the caches of one model. `rates` are asked what is quicker, and learn from what was done."""

    def __init__(self, model: LoadedModel, persistence: Persistence, rates: MeasuredRates, pool: BlockPool) -> None:
        self._model = model
        self._persistence = persistence
        self._rates = rates
        self._pool = pool

    def from_memory(
        self, cache: WorkingCache, resident: Resident, others: Iterable[Resident], token_ids: Sequence[int]
    ) -> Resident | None:
        """Copy the longest known prefix into `cache`; returns the other conversation it came from, if one did.

        Of equals the conversation itself comes first, then the one used last.
        """
        if cache.length == len(token_ids) or not self._model.can_persist:
            return None
        best, best_length = None, cache.length
        donors = [one for one in others if one is not resident and one.is_exact]
        if resident.working is None:
            donors.append(resident)
        for one in reversed(donors):
            usable = one.usable(token_ids)
            if usable > best_length:
                best, best_length = one, usable
        if best is None:
            return None
        started = time.perf_counter()
        start = cache.length if cache.can_crop and cache.is_exact else 0  # exact all through, or not exact
        if start < cache.length:
            self._persistence.writer.release(resident.conversation_id)
            if cache.cold is not None:
                cache.rollback(0)
        best.copy_to(cache, start, best_length)
        transfer.synchronize(self._model.device)
        self._rates.memory_read((best_length - start) * self._model.geometry.bytes_per_token, started, best)
        return best if best is not resident else None

    def from_disk(
        self,
        cache: WorkingCache,
        resident: Resident,
        token_ids: Sequence[int],
        is_cancelled: Callable[[], bool] | None,
    ) -> Restored | None:
        """Extend `cache` from the manifest that reaches furthest, while that is quicker than reading the tokens."""
        if not self._model.can_persist or not cache.is_exact:
            return None
        miss, bytes_read, seconds = None, 0, 0.0
        for _ in range(_MAX_RESTORES):
            found = self._next_read(resident.conversation_id, token_ids, cache.length, can_crop=cache.can_crop)
            if found is None:
                break
            if isinstance(found, Miss):
                miss = miss or found
                break
            restored = self._persistence.restore(*found, cache, is_cancelled)
            bytes_read, seconds = bytes_read + restored.bytes_read, seconds + restored.seconds
            self._rates.disk_read(restored.bytes_read, restored.seconds)
            if restored.miss is None:
                break
            miss = miss or restored.miss
        return Restored(cache.length, bytes_read, seconds, miss)

    def on_disk(self, key: str, token_ids: Sequence[int], length: int, *, can_crop: bool) -> tuple[int, Miss | None]:
        """How many tokens `from_disk` would add to an exact cache of `length`, and why not more."""
        found = self._next_read(key, token_ids, length, can_crop=can_crop)
        if found is None or isinstance(found, Miss):
            return 0, found
        return found[1] - length, None

    def _next_read(
        self, key: str, token_ids: Sequence[int], length: int, *, can_crop: bool
    ) -> tuple[Manifest, int] | Miss | None:
        """The manifest that reaches furthest beyond `length` and how far, or why it is not read; None for none."""
        found = self._persistence.catalog.longest_prefix(token_ids, key)
        if found is None:
            return None
        manifest, shared = found
        stop = self._persistence.usable(manifest, shared, can_crop=can_crop)
        if stop <= length:
            return None
        gain = stop - length
        if self._rates.load_s(gain * self._bytes_per_token) > self._rates.prefill_s(gain):
            return Miss(MissCode.READING_IS_FASTER)
        return manifest, stop

    def compressed(
        self,
        resident: Resident,
        token_ids: Sequence[int],
        manifest: Manifest,
        shared: int,
        is_cancelled: Callable[[], bool] | None,
    ) -> Restored:
        """Give an empty, parked chat the first `shared` tokens of its lossy `manifest`.

        Where a file is damaged, the exact snapshot is taken if it reaches further than what is left.
        """
        persistence = self._persistence
        restored = persistence.restore_compressed(
            manifest, shared, resident, self._pool, self._model.device, is_cancelled
        )
        self._rates.disk_read(restored.bytes_read, restored.seconds)
        if resident.is_torn or (restored.miss is not None and not self._reaches(resident, token_ids)):
            resident.give_up()
        return restored

    def _reaches(self, resident: Resident, token_ids: Sequence[int]) -> bool:
        """Whether it reaches at least as far as what is on disk in full precision."""
        found = self._persistence.catalog.longest_prefix(token_ids, resident.conversation_id)
        return found is None or found[1] <= common_prefix(resident.token_ids, token_ids)

    def is_soon_exact(self, key: str, token_ids: Sequence[int], in_memory: int) -> bool:
        """Whether reading in full precision what there is of `in_memory` tokens, and the rest anew, is quick."""
        found = self._persistence.catalog.longest_prefix(token_ids, key)
        if found is None or found[1] < in_memory // 2:  # another chat's first words, most likely
            return False
        rest = max(0, in_memory - found[1])
        return self._rates.load_s(found[1] * self._bytes_per_token) + self._rates.prefill_s(rest) <= EXACT_WAIT_S

    @property
    def _bytes_per_token(self) -> int:
        return self._model.geometry.bytes_per_token
