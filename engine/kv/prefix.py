"""Fills a cache with the longest known beginning of a prompt: from memory, whoever holds it, then from disk.

Runs on the inference thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from engine.kv import transfer
from engine.kv.block_keys import BLOCK_TOKENS
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
        donors = [one for one in others if one is not resident and one.is_exact and not one.is_incognito]
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
        catalog, miss, bytes_read, seconds = self._persistence.catalog, None, 0, 0.0
        for _ in range(_MAX_RESTORES):
            found = catalog.longest_prefix(token_ids, resident.conversation_id)
            if found is None:
                break
            manifest, shared = found
            stop = self._persistence.usable(manifest, shared, cache)
            if stop <= cache.length:
                break
            gain = stop - cache.length
            if self._rates.load_s(gain * self._bytes_per_token) > self._rates.prefill_s(gain):
                miss = miss or Miss(MissCode.READING_IS_FASTER)
                break
            restored = self._persistence.restore(manifest, stop, cache, is_cancelled)
            bytes_read, seconds = bytes_read + restored.bytes_read, seconds + restored.seconds
            self._rates.disk_read(restored.bytes_read, restored.seconds)
            if restored.miss is None:
                break
            miss = miss or restored.miss
        return Restored(cache.length, bytes_read, seconds, miss)

    def compressed(
        self,
        resident: Resident,
        token_ids: Sequence[int],
        is_wanted: Callable[[Manifest, Resident, Sequence[int]], bool],
        is_cancelled: Callable[[], bool] | None,
    ) -> Restored | None:
        """Give an empty, parked chat what is kept of it after a lossy codec, if that `is_wanted`; None where it is not.

        Where a file is damaged, the exact snapshot is taken if it reaches further than what is left.
        """
        persistence = self._persistence
        manifest = persistence.compressed.catalog.manifest(resident.conversation_id)
        if manifest is None or not self._model.can_persist:
            return None
        shared = common_prefix(manifest.token_ids, token_ids)
        if shared < min(BLOCK_TOKENS, len(manifest.token_ids)) or not is_wanted(manifest, resident, token_ids):
            return None
        restored = persistence.restore_compressed(
            manifest, shared, resident, self._pool, self._model.device, is_cancelled
        )
        self._rates.disk_read(restored.bytes_read, restored.seconds)
        if restored.miss is not None and not self._reaches(resident, token_ids):
            resident.give_up()
        return restored

    def _reaches(self, resident: Resident, token_ids: Sequence[int]) -> bool:
        """Whether it reaches at least as far as what is on disk in full precision."""
        found = self._persistence.catalog.longest_prefix(token_ids, resident.conversation_id)
        return found is None or found[1] <= common_prefix(resident.token_ids, token_ids)

    def comes_back_exact(self, resident: Resident, token_ids: Sequence[int], in_memory: int) -> bool:
        """Whether a quantized chat had better be read from disk, in full precision."""
        return not resident.is_exact and self.is_soon_exact(resident, token_ids, in_memory)

    def is_soon_exact(self, resident: Resident, token_ids: Sequence[int], in_memory: int) -> bool:
        """Whether reading in full precision what there is of `in_memory` tokens, and the rest anew, is quick."""
        found = self._persistence.catalog.longest_prefix(token_ids, resident.conversation_id)
        if found is None or found[1] < in_memory // 2:  # another chat's first words, most likely
            return False
        rest = max(0, in_memory - found[1])
        return self._rates.load_s(found[1] * self._bytes_per_token) + self._rates.prefill_s(rest) <= EXACT_WAIT_S

    @property
    def _bytes_per_token(self) -> int:
        return self._model.geometry.bytes_per_token
