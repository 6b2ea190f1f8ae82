"""Conversations -> caches: the one in memory, else copied from what any conversation holds, else from disk, else empty.

Runs on the inference thread. The text of a conversation is the truth; everything here may be dropped at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.kv import transfer
from engine.kv.arena import KVArena, prefers_lazy, reserve_arena
from engine.kv.block_keys import root_key
from engine.kv.blocks import BlockPool
from engine.kv.fingerprint import difference
from engine.kv.persistence import Persistence, Restored, miss_of
from engine.kv.rates import MeasuredRates
from engine.kv.relief import Relief
from engine.kv.report import report_caches
from engine.kv.resident import Resident, common_prefix
from engine.kv.store.collector import Limits
from engine.kv.store.files import StoreFiles, file_stem
from engine.kv.store.leftovers import remove_leftovers
from engine.kv.store.records import FORMAT_VERSION, Manifest
from engine.kv.store.writer import SaveResult
from engine.kv.working_cache import WorkingCache
from engine.model.forward import is_out_of_memory
from engine.model.loader import LoadedModel
from engine.protocol.config import EngineConfig
from engine.protocol.events import CacheReading, CacheReported, PressureActed
from engine.protocol.misses import Miss, MissCode, SaveProblem

EXACT_WAIT_S = 1.0  # a quantized chat comes back exact when the disk (and reading the rest) takes no longer than this
_SPARE_BYTES = 256 * 1024**2  # most memory kept ready for the next chat
_MAX_RESTORES = 3  # attempts, each after a damaged file was dropped
_SETTLED_TOKENS = 16  # what may follow the history in a prompt without being part of it: end of turn, line ends


@dataclass(frozen=True, slots=True)
class Activation:
    """A cache that holds exactly the reusable prefix of a prompt: `reused` tokens, at least one less than it has."""

    cache: WorkingCache
    reused: int
    restore_s: float
    miss: Miss | None


class CacheManager:
    """Owns the caches of one loaded model. `on_saved` is called on the saver's thread."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        on_saved: Callable[[SaveResult], None],
        on_pressure: Callable[[PressureActed], None],
        kv_dir: Path | None = None,
    ) -> None:
        self.pinned: frozenset[str] = frozenset()
        self.times_given_way = 0
        self.rates = MeasuredRates()
        self._model = model
        self._config = config
        self._on_saved = on_saved
        self._files = StoreFiles(kv_dir or config.kv_dir, FORMAT_VERSION)
        remove_leftovers(self._files)
        limits = Limits(config.disk_cap_bytes, config.disk_floor_bytes)
        self.persistence = Persistence(
            self._files, model.fingerprint, model.geometry, model.history.template.digest, limits, on_saved
        )
        self.pool = BlockPool(root_key(model.fingerprint.digest), model.geometry)
        self._residents: dict[str, Resident] = {}
        self._evicted: set[str] = set()
        self._clock = 0
        self._spare = self._warm_spare()
        self._relief = Relief(model, config, self, on_pressure)

    # -- one turn --------------------------------------------------------------------------------------------------

    def activate(
        self,
        conversation_id: str,
        token_ids: Sequence[int],
        *,
        history_tokens: int = 0,
        is_incognito: bool = False,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Activation:
        """The conversation's cache, holding what of `token_ids` is known; the rest is the caller's to feed.

        `history_tokens`: how many of them were part of an earlier turn. When fewer are reused, `miss` says why.
        When memory runs out on the way, the other conversations are put away and it is tried once more.
        """
        try:
            return self._activate(conversation_id, token_ids, history_tokens, is_incognito, is_cancelled)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or not self.give_way(conversation_id):
                raise
        return self._activate(conversation_id, token_ids, history_tokens, is_incognito, is_cancelled)

    def _activate(
        self,
        conversation_id: str,
        token_ids: Sequence[int],
        history_tokens: int,
        is_incognito: bool,
        is_cancelled: Callable[[], bool] | None,
    ) -> Activation:
        started = time.perf_counter()
        limit = len(token_ids) - 1
        resident = self._resident(conversation_id, is_incognito)
        if not self._model.can_persist:
            resident.give_up()  # what such a model remembers need not be in its cache: every turn begins anew
        known_length, was_active = resident.length, resident.working is not None
        common = common_prefix(resident.token_ids, token_ids)
        cache = resident.working
        if cache is not None and min(common, limit) < cache.length:
            self.persistence.writer.release(conversation_id)
            cache.rollback(min(common, limit))
        if cache is None:
            cache = self._new_cache(len(token_ids), resident)
        was_exact = cache.is_exact
        donor = self._fill_from_memory(cache, resident, token_ids[:limit])
        restored = self._fill_from_disk(cache, resident, token_ids[:limit], is_cancelled)
        if cache is not resident.working or cache.is_exact is not was_exact:
            resident.activate(cache, donor)
        self._release_doubled()
        reused = cache.length
        miss = restored.miss if restored is not None and reused < min(limit, history_tokens) else None
        if miss is None and reused < min(limit, history_tokens - _SETTLED_TOKENS):
            miss = self._why(conversation_id, token_ids, known_length, common, reused)
        restore_s = time.perf_counter() - started if reused and not was_active else 0.0
        return Activation(cache, reused, restore_s, miss)

    def pin(self, conversation_ids: frozenset[str]) -> None:
        """These conversations go last when memory or disk runs short."""
        self.pinned = conversation_ids
        self.persistence.collector.pinned = conversation_ids

    def active_cache(self, conversation_id: str) -> WorkingCache | None:
        """The contiguous cache of a conversation, if it has one now."""
        resident = self._residents.get(conversation_id)
        return resident.working if resident is not None else None

    def settle(self, conversation_id: str) -> None:
        """After a turn: remember where a cache that cannot be cropped stands, and give back what a cut left unused."""
        resident = self._residents.get(conversation_id)
        if resident is not None and not self._model.can_persist:
            resident.give_up()
        elif resident is not None and resident.working is not None:
            resident.working.checkpoint()
            resident.working.compact()

    def save(self, conversation_id: str, request_id: str) -> tuple[SaveProblem, str] | None:
        """Queue a snapshot of the conversation. Returns why it cannot be saved and the system's words, else None."""
        resident = self._residents.get(conversation_id)
        if not self._model.can_persist:
            return SaveProblem.CANNOT_RESUME, self._model.info.cannot_resume_reason or ""
        if resident is None or resident.length == 0:
            return SaveProblem.NOTHING_CACHED, ""
        if resident.is_incognito:
            return SaveProblem.INCOGNITO, ""
        exact = self._exact_manifest(conversation_id)
        if not resident.is_exact and exact is not None:  # worth more than this, so it stays; that is told all the same
            nbytes = self.persistence.catalog.disk_bytes(conversation_id)
            self._on_saved(SaveResult(conversation_id, request_id, len(exact.token_ids), 0, nbytes, 0.0))
            return None
        try:
            self.persistence.save(resident, request_id)
        except OSError as error:
            return SaveProblem.DISK_ERROR, error.strerror or type(error).__name__
        return None

    def park_others(self, conversation_id: str) -> None:
        """Turn every other active cache into blocks, and make room if the budget asks for it."""
        for key, resident in self._residents.items():
            if key != conversation_id and resident.working is not None and not self.persistence.writer.is_pending(key):
                arena = resident.working.arena
                try:
                    resident.park()
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    continue  # it stays as it is; the pressure policy sees to it
                if arena.is_lazy and arena.held_bytes(0) <= _SPARE_BYTES:
                    self._spare = arena
        self._release_doubled()
        self._relief.make_room(0, conversation_id)

    def give_way(self, conversation_id: str) -> bool:
        """Memory ran out: put away everything but one conversation. Returns whether that freed anything."""
        has_freed = self._relief.emergency(conversation_id)
        self.times_given_way += has_freed
        return has_freed

    # -- forgetting ------------------------------------------------------------------------------------------------

    def forget(self, conversation_id: str) -> None:
        """Leave nothing of a conversation in memory or on disk. Raises OSError."""
        self.drop(conversation_id)
        self.persistence.writer.delete_conversation(conversation_id)

    def drop(self, conversation_id: str) -> None:
        """Free a conversation's memory; what is on disk stays."""
        resident = self._residents.pop(conversation_id, None)
        if resident is not None:
            resident.give_up()
        self._release_doubled()

    def saved(self, result: SaveResult) -> None:
        """A save ended: what the disk limit cost is remembered, for `miss_reason`."""
        self._evicted.update(one.conversation_id for one in result.evicted)
        if result.error is None and not result.is_cancelled:
            self._files.lost.pop(file_stem(result.conversation_id), None)
            self._evicted.discard(result.conversation_id)

    def close(self, timeout_s: float) -> None:
        """Finish saving and drop all caches, when the model is replaced or the engine ends."""
        self.persistence.close(timeout_s)
        for resident in self._residents.values():
            resident.give_up()
        self._residents.clear()
        self._spare = None

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def residents(self) -> list[Resident]:
        """Least recently used first."""
        return sorted(self._residents.values(), key=lambda one: one.last_used)

    @property
    def memory_bytes(self) -> int:
        """Bytes of every tensor that holds or could hold cached tokens."""
        return (
            self.pool.nbytes
            + self.spare_bytes
            + sum(
                one.working.held_bytes
                if one.working is not None
                else sum(state.nbytes for state in one.states.values())
                for one in self._residents.values()
            )
        )

    @property
    def device_bytes(self) -> int:
        """Of them, those on the GPU."""
        if self._model.device.type == "cpu":
            return 0
        return self.pool.device_bytes + sum(
            one.working.held_bytes if one.working is not None else one.device_state_bytes
            for one in self._residents.values()
        )

    def is_saved(self, resident: Resident) -> bool:
        """Whether all of a conversation is on disk in full precision."""
        manifest = self._exact_manifest(resident.conversation_id)
        return manifest is not None and list(manifest.token_ids) == resident.token_ids

    def reading(self, cache: WorkingCache) -> CacheReading:
        """What the meter shows of a cache."""
        full = self._model.geometry.precision
        return CacheReading(cache.length, cache.nbytes, full if cache.is_exact else "int8", self._model.device.type)

    def report(self, request_id: str, conversation_ids: Sequence[str] | None) -> CacheReported:
        return report_caches(request_id, conversation_ids, self, self._model, self._config)

    def release_spare(self) -> bool:
        """Give up the memory kept ready for the next chat; returns whether there was any."""
        had_any, self._spare = self._spare is not None, None
        return had_any

    @property
    def spare_bytes(self) -> int:
        """Of the memory kept ready for the next chat."""
        return self._spare.held_bytes(0) if self._spare is not None else 0

    # -- private ---------------------------------------------------------------------------------------------------

    def _new_cache(self, num_tokens: int, resident: Resident) -> WorkingCache:
        """An empty cache for a conversation that becomes active, in the spare memory where that fits."""
        is_lazy = prefers_lazy(self._model.geometry, num_tokens, self._model.device)
        arena = self._spare if is_lazy and self._spare is not None and self._spare.capacity >= num_tokens else None
        if arena is not None:
            self._spare = None
        # Its own blocks go once they are copied, and what the spare holds is there already.
        there = resident.own_bytes + (arena.held_bytes(0) if arena is not None else 0)
        self._relief.make_room(max(0, num_tokens * self._bytes_per_token - there), resident.conversation_id)
        return self._model.new_cache(num_tokens, arena)

    def _warm_spare(self) -> KVArena | None:
        """Memory that is already there, large enough for any chat on disk, for the first one resumed.

        Fresh memory can cost more than reading a snapshot into it (measured: 75 to 300 against 30 ms for 138 MB), and
        now nobody waits. Later the memory of the chat left last takes this place.
        """
        geometry, info = self._model.geometry, self._model.info
        catalog = self.persistence.catalog
        lengths = [len(manifest.token_ids) for key in catalog.conversation_ids() if (manifest := catalog.manifest(key))]
        most = min(_SPARE_BYTES, self._config.memory_budget_bytes // 2) // max(1, geometry.bytes_per_token)
        tokens = min(max(lengths, default=0), info.context_length, most)
        if not prefers_lazy(geometry, tokens, self._model.device):
            return None
        arena = reserve_arena(geometry, tokens, info.context_length, self._model.device)
        arena.touch(tokens)
        return arena

    def _resident(self, conversation_id: str, is_incognito: bool) -> Resident:
        resident = self._residents.setdefault(conversation_id, Resident(conversation_id, self.pool))
        resident.is_incognito = resident.is_incognito or is_incognito
        self._clock += 1
        resident.last_used = self._clock
        self.persistence.catalog.touch(conversation_id)
        return resident

    def _fill_from_memory(self, cache: WorkingCache, resident: Resident, token_ids: Sequence[int]) -> Resident | None:
        """Copy the longest known prefix into `cache`; returns the other conversation it came from, if one did."""
        if cache.length == len(token_ids) or not self._model.can_persist:
            return None
        best, best_length = None, cache.length
        donors = [one for one in self.residents if one is not resident and one.is_exact and not one.is_incognito]
        if resident.working is None:
            donors.append(resident)
        for one in reversed(donors):
            usable = one.usable(token_ids)
            if usable > best_length:
                best, best_length = one, usable
        if best is None or (best is resident and self._comes_back_exact(resident, token_ids, best_length)):
            return None
        started = time.perf_counter()
        start = cache.length if cache.can_crop and cache.is_exact else 0  # exact all through, or not exact
        if start < cache.length:
            self.persistence.writer.release(resident.conversation_id)
        best.copy_to(cache, start, best_length)
        transfer.synchronize(self._model.device)
        self.rates.memory_read((best_length - start) * self._model.geometry.bytes_per_token, started, best)
        return best if best is not resident else None

    def _comes_back_exact(self, resident: Resident, token_ids: Sequence[int], in_memory: int) -> bool:
        """Whether a quantized chat had better be read from disk, in full precision."""
        if resident.is_exact:
            return False
        found = self.persistence.catalog.longest_prefix(token_ids, resident.conversation_id)
        if found is None or found[1] < in_memory // 2:  # another chat's first words, most likely
            return False
        rest = max(0, in_memory - found[1])
        return self.rates.load_s(found[1] * self._bytes_per_token) + self.rates.prefill_s(rest) <= EXACT_WAIT_S

    def _fill_from_disk(
        self,
        cache: WorkingCache,
        resident: Resident,
        token_ids: Sequence[int],
        is_cancelled: Callable[[], bool] | None,
    ) -> Restored | None:
        """Extend `cache` from the manifest that reaches furthest, while that is quicker than reading the tokens."""
        if not self._model.can_persist or not cache.is_exact:
            return None
        catalog, miss, bytes_read, seconds = self.persistence.catalog, None, 0, 0.0
        for _ in range(_MAX_RESTORES):
            found = catalog.longest_prefix(token_ids, resident.conversation_id)
            if found is None:
                break
            manifest, shared = found
            stop = self.persistence.usable(manifest, shared, cache)
            if stop <= cache.length:
                break
            gain = stop - cache.length
            if self.rates.load_s(gain * self._bytes_per_token) > self.rates.prefill_s(gain):
                miss = miss or Miss(MissCode.READING_IS_FASTER)
                break
            restored = self.persistence.restore(manifest, stop, cache, is_cancelled)
            bytes_read, seconds = bytes_read + restored.bytes_read, seconds + restored.seconds
            self.rates.disk_read(restored.bytes_read, restored.seconds)
            if restored.miss is None:
                break
            miss = miss or restored.miss
        return Restored(cache.length, bytes_read, seconds, miss)

    def _why(self, conversation_id: str, token_ids: Sequence[int], known_length: int, common: int, reused: int) -> Miss:
        """Why less than the history could be reused."""
        if not self._model.can_persist:
            return Miss(MissCode.CANNOT_RESUME, {"detail": self._model.info.cannot_resume_reason or ""})
        if known_length > reused:
            if common > reused:
                return self._why_shorter(conversation_id, reused)
            return Miss(MissCode.HISTORY_CHANGED, {"token": str(common)})
        manifest = self._exact_manifest(conversation_id)
        if manifest is not None and manifest.template != self.persistence.template:
            return Miss(MissCode.TEMPLATE_CHANGED)
        lost = self._files.lost.get(file_stem(conversation_id))
        if manifest is not None and len(manifest.token_ids) > reused:
            if common_prefix(manifest.token_ids, token_ids) <= reused:
                return Miss(MissCode.HISTORY_CHANGED, {"token": str(reused)})
            return miss_of(lost) if lost is not None else Miss(MissCode.NO_CHECKPOINT, {"token": str(reused)})
        if conversation_id in self._evicted:
            return Miss(MissCode.EVICTED)
        if lost is not None:
            return miss_of(lost)
        return self._other_fingerprint(conversation_id) or Miss(MissCode.NOT_SAVED)

    def _why_shorter(self, conversation_id: str, reused: int) -> Miss:
        """Why less was taken over than is cached and agrees: no checkpoint there, or full precision was quicker had."""
        if self._residents[conversation_id].has_states:
            return Miss(MissCode.NO_CHECKPOINT, {"token": str(reused)})
        return Miss(MissCode.READING_IS_FASTER)

    def _other_fingerprint(self, conversation_id: str) -> Miss | None:
        """The reason when the conversation is kept under another model or other settings."""
        try:
            fingerprints = self._files.fingerprints()
        except OSError:  # the reason is not worth the reply
            return None
        for fingerprint in fingerprints:
            path = self._files.manifest_path(fingerprint, conversation_id)
            fields = self._files.fingerprint_fields(path.parent.parent.name) if path.is_file() else None
            if fields is not None and fingerprint != self._model.fingerprint.digest:
                return difference(self._model.fingerprint.fields, fields)
        return None

    def _exact_manifest(self, conversation_id: str) -> Manifest | None:
        manifest = self.persistence.catalog.manifest(conversation_id)
        return manifest if manifest is not None and manifest.is_exact else None

    def _release_doubled(self) -> None:
        for resident in self._residents.values():
            resident.release_doubled()

    @property
    def _bytes_per_token(self) -> int:
        return self._model.geometry.bytes_per_token
