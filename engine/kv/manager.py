"""Conversations -> caches: the one in memory, else copied from what any conversation holds, else from disk, else empty.

Runs on the inference thread. The text of a conversation is the truth; everything here may be dropped at any time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from engine.kv.block_keys import root_key
from engine.kv.blocks import BlockPool
from engine.kv.chat_key import conversation_of
from engine.kv.choices import Choices, may_share
from engine.kv.codec_choice import CodecChoice
from engine.kv.free_now import free_now
from engine.kv.miss_reasons import MissReasons
from engine.kv.outline import Outline
from engine.kv.page_map import PageMap
from engine.kv.persistence import Persistence, Restored
from engine.kv.prefix import PrefixFiller
from engine.kv.rates import MeasuredRates
from engine.kv.relief import ACTIVE_RECENT_TOKENS, Relief
from engine.kv.report import report_caches
from engine.kv.resident import Resident, common_prefix
from engine.kv.rotation import Rotation, find_rotation
from engine.kv.spare import SpareArena
from engine.kv.store.collector import Eviction, Limits
from engine.kv.store.files import StoreFiles
from engine.kv.store.leftovers import remove_leftovers
from engine.kv.store.records import FORMAT_VERSION
from engine.kv.store.writer import SaveResult
from engine.kv.working_cache import WorkingCache
from engine.memory import return_freed_memory
from engine.model.forward import is_out_of_memory
from engine.model.loader import LoadedModel
from engine.protocol.config import EngineConfig
from engine.protocol.events import CacheReading, CacheReported, CodecsProbed, PressureActed
from engine.protocol.misses import Miss, SaveProblem

_LEAST_ROWS = 256  # of a cache that has no room to be as large as it should
_LEAST_ENCODED = 256  # tokens that have left the recent window before they are encoded together


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
        on_event: Callable[[PressureActed | CodecsProbed], None],
        kv_dir: Path | None = None,
    ) -> None:
        self.pinned: frozenset[str] = frozenset()
        self.times_given_way = 0
        self._model = model
        self._config = config
        self._on_saved = on_saved
        self._on_event = on_event
        self._files = StoreFiles(kv_dir or config.kv_dir, FORMAT_VERSION)
        self.rates = MeasuredRates(self._files.folder(model.fingerprint.digest), _pair_share(model))
        remove_leftovers(self._files)
        limits = Limits(config.disk_cap_bytes, config.disk_floor_bytes)
        self.persistence = Persistence(
            self._files, model.fingerprint, model.geometry, model.history.template.digest, limits, on_saved
        )
        self.pool = BlockPool(root_key(model.fingerprint.digest), model.geometry)
        self._residents: dict[str, Resident] = {}
        self._clock = 0
        self.spare = SpareArena(model)
        self.spare.warm(self.persistence.catalog.most_tokens, config.memory_budget_bytes)
        self.filler = PrefixFiller(model, self.persistence, self.rates, self.pool)
        self.reasons = MissReasons(model, self.persistence, self._files)
        self._relief = Relief(model, config, self, on_event)
        self.codecs = CodecChoice(model, config, self._files.folder(model.fingerprint.digest), on_event)
        self.choices = Choices(model, self.persistence, self.filler, self._relief, self.codecs)
        self.page_map = PageMap(self)

    # -- one turn --------------------------------------------------------------------------------------------------

    def activate(
        self,
        conversation_id: str,
        token_ids: Sequence[int],
        *,
        history_tokens: int = 0,
        is_incognito: bool = False,
        is_exact: bool = False,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Activation:
        """The conversation's cache, holding what of `token_ids` is known; the rest is the caller's to feed.

        `history_tokens`: how many of them were part of an earlier turn. When fewer are reused, `miss` says why.
        `is_exact`: a lossy snapshot will not do.
        When memory runs out on the way, the other conversations are put away and it is tried once more.
        """
        try:
            return self._activate(conversation_id, token_ids, history_tokens, is_incognito, is_exact, is_cancelled)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or not self.give_way(conversation_id):
                raise
        return self._activate(conversation_id, token_ids, history_tokens, is_incognito, is_exact, is_cancelled)

    def _activate(
        self,
        conversation_id: str,
        token_ids: Sequence[int],
        history_tokens: int,
        is_incognito: bool,
        is_exact: bool,
        is_cancelled: Callable[[], bool] | None,
    ) -> Activation:
        started = time.perf_counter()
        limit = len(token_ids) - 1
        resident = self._resident(conversation_id, is_incognito)
        self.rates.is_private = resident.is_incognito
        if not self._model.can_persist:
            resident.give_up()  # what such a model remembers need not be in its cache: every turn begins anew
        lossy = None
        if not is_exact and not resident.length:
            branch = self.choices.moved_branch(conversation_id, token_ids[:limit], self.residents)
            if branch is not None:
                resident.begin_with(*branch)
            else:
                lossy = self._begin_compressed(resident, token_ids[:limit], is_cancelled)
        known_length, was_active = resident.length, resident.working is not None
        common = common_prefix(resident.token_ids, token_ids)
        chat = Outline.of(resident)
        others = [one for one in self.residents if one is not resident and may_share(one, conversation_id)]
        if self.choices.comes_back_exact(chat, token_ids[:limit]):
            self.persistence.writer.release(conversation_id)
            resident.give_up()
        elif self.choices.is_resumed_in_place(chat, token_ids[:limit], others):
            resident.resume(self._new_cache(len(token_ids), resident, chat.cold_tokens))
            if self.codecs.fixed is not None and self.codecs.fixed.is_read_in_place:  # perhaps not the one it came in
                with contextlib.suppress(ValueError):
                    resident.quantize(self.codecs.fixed)
        cache = resident.working
        if cache is not None and min(common, limit) < cache.length:
            self.persistence.writer.release(conversation_id)
            cache.rollback(min(common, limit))
        if cache is None:
            cache = self._new_cache(len(token_ids), resident)
        was_exact = cache.is_exact
        donor = self.filler.from_memory(cache, resident, others, token_ids[:limit])
        restored = self.filler.from_disk(cache, resident, token_ids[:limit], is_cancelled)
        if cache is not resident.working or cache.is_exact is not was_exact:
            resident.activate(cache, donor)
        self._release_doubled()
        reused = cache.length
        found = [one.miss for one in (lossy, restored) if one is not None and one.miss is not None]
        miss = self.reasons.miss(
            conversation_id, token_ids, history_tokens, found, known_length, common, reused, cache.can_crop
        )
        restore_s = time.perf_counter() - started if reused and not was_active else 0.0
        is_from_disk = any(one is not None and one.bytes_read for one in (lossy, restored))
        self.rates.activated(reused * self._model.geometry.bytes_per_token, restore_s, is_from_disk=is_from_disk)
        return Activation(cache, reused, restore_s, miss)

    def configure(self, config: EngineConfig) -> tuple[Eviction, ...]:
        """Keep within other limits, and in another precision, from now on. Returns what was deleted from disk for it.

        Between turns; the chat used last is the active one.
        """
        self._config = config
        self._relief.configure(config)
        self.codecs.configure(config)
        self.persistence.collector.limits = Limits(config.disk_cap_bytes, config.disk_floor_bytes)
        last = self.residents[-1].conversation_id if self._residents else ""
        self._quantize_parked()
        self.keep_within_budget(last)
        self._relief.make_room(0, last)
        if self.is_tight:
            self.spare.release()
        evicted = self.persistence.writer.collect()
        self.reasons.evicted(evicted)
        self._save_again(last)
        return evicted

    def _save_again(self, key: str) -> None:
        """The chat's memory has moved: a save that was under way is begun anew."""
        resident = self._residents.get(key)
        if resident is None or not resident.length or not self._relief.can_save(resident):
            return
        if not self.persistence.writer.is_pending(key) and not self.is_kept_on_disk(resident):
            self.save(key, "")

    def _quantize_parked(self) -> None:
        """Where the user wants a codec, parked chats take it now; others when they are parked or grow."""
        codec = self.codecs.fixed
        if codec is None:
            return
        for key, resident in self._residents.items():
            is_parked = resident.working is None and resident.length and not resident.has_states
            if is_parked and not self.persistence.writer.is_pending(key):
                with contextlib.suppress(ValueError):  # numbers that it does not take: they stay as they are
                    resident.quantize(codec)
        return_freed_memory()

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
        try:
            is_queued = self.persistence.save(resident, request_id)
        except OSError as error:
            return SaveProblem.DISK_ERROR, error.strerror or type(error).__name__
        if not is_queued:  # what is there in full precision stays, and that is told
            exact = self.persistence.exact_manifest(conversation_id)
            nbytes = self.persistence.collector.disk_bytes(conversation_id)
            tokens = len(exact.token_ids) if exact is not None else 0
            self._on_saved(SaveResult(conversation_id, request_id, tokens, 0, nbytes, 0.0))
        return None

    def save_now(self, conversation_id: str) -> bool:
        """Save a conversation and wait. Returns whether all of it is on disk in full precision then."""
        resident = self._residents[conversation_id]
        if self._relief.can_save(resident) and not self.is_saved(resident):
            self._relief.save_now(resident)
        self.persistence.writer.release(conversation_id)
        return self.is_saved(resident)

    def is_lossy(self, conversation_id: str) -> bool:
        """Whether what memory or disk would give of a conversation is compressed, or not in full precision."""
        resident = self._residents.get(conversation_id)
        if resident is not None and resident.length:
            return not resident.is_exact
        return self.persistence.compressed.catalog.manifest(conversation_id) is not None

    def set_aside(self, conversation_id: str) -> Resident | None:
        """Take what is left of a lossy cache out, so that the next activation begins with the exact one on disk.

        None, and nothing happens, where all of it is exact. The caller gives it up in the end, or brings it back.
        """
        resident = self._residents.get(conversation_id)
        if resident is None or not resident.length:
            return None
        if resident.is_exact and (resident.working is None or resident.working.cold is None):
            return None
        self.persistence.writer.release(conversation_id)
        resident.park()
        return self._residents.pop(conversation_id)

    def bring_back(self, resident: Resident) -> None:
        """Undo `set_aside`: whatever the conversation has by now gives way."""
        self.drop(resident.conversation_id)
        self._residents[resident.conversation_id] = resident

    def park_others(self, conversation_id: str) -> None:
        """Turn every other active cache into blocks, and make room if the budget asks for it: before, as parking needs
        memory for a moment, and after."""
        self._relief.make_room(0, conversation_id)
        self._leave_to_disk(conversation_id)
        for key, resident in self._residents.items():
            if key != conversation_id and resident.working is not None and not self.persistence.writer.is_pending(key):
                arena = resident.working.arena
                try:
                    is_whole = self._park(resident)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    continue  # it stays as it is; the pressure policy sees to it
                if is_whole:
                    self.spare.keep(arena)
        self._release_doubled()
        self._relief.make_room(0, conversation_id)

    def _leave_to_disk(self, active_key: str) -> None:
        """Drop other branches of the active chat's conversation that are mostly the same, once they are saved.

        What they share is in the active one, so that coming back copies that and reads only their own end.
        """
        active = self._residents.get(active_key)
        if active is None or not active.is_exact:
            return
        conversation, writer = conversation_of(active_key), self.persistence.writer
        for key, one in list(self._residents.items()):
            if key == active_key or conversation_of(key) != conversation or not one.is_exact or not one.length:
                continue
            is_mostly_shared = 2 * common_prefix(one.token_ids, active.token_ids) >= one.length
            if is_mostly_shared and not writer.is_pending(key) and self.is_saved(one):
                self.drop(key)

    def give_way(self, conversation_id: str) -> bool:
        """Memory ran out: put away everything but one conversation. Returns whether that freed anything."""
        has_freed = self._relief.emergency(conversation_id)
        self.times_given_way += has_freed
        return has_freed

    def keep_within_budget(self, conversation_id: str) -> None:
        """Amid a turn: where all else did not help, the chat's cold part is encoded, so that it can go on growing."""
        resident = self._residents.get(conversation_id)
        if resident is None or resident.working is None or not self._model.reads_encoded:
            return
        codec = self.codecs.fixed
        if codec is not None and codec.is_read_in_place and self._is_worth_encoding(resident.working):
            self.persistence.writer.release(conversation_id)
            with contextlib.suppress(ValueError):  # numbers that it does not take: they stay as they are
                resident.encode_cold(codec, ACTIVE_RECENT_TOKENS)
        self._relief.relieve_active(resident)

    def check_growth(self, conversation_id: str, num_tokens: int) -> None:
        """Raises MemoryBudgetError where a chat of so many tokens fits into memory in no way."""
        resident = self._residents.get(conversation_id)
        lossy = self.persistence.compressed.catalog.manifest(conversation_id)
        is_pruned = lossy is not None and lossy.kept < 1.0
        if resident is not None and resident.length:
            is_pruned = resident.is_pruned
        self._relief.check_growth(num_tokens, is_pruned=is_pruned)

    def check_whole(self, num_tokens: int) -> None:
        """Raises MemoryBudgetError where a chat of so many tokens does not fit into memory in full precision."""
        self._relief.check_growth(num_tokens, is_whole=True)

    def resident(self, conversation_id: str) -> Resident | None:
        """What is in memory of a conversation."""
        return self._residents.get(conversation_id)

    @property
    def most_bytes(self) -> int:
        """What caches may take in all where the model runs."""
        return self._relief.most_bytes()

    @property
    def is_tight(self) -> bool:
        """Whether the caches take more memory than they should, after all that was done about it."""
        return self._relief.is_tight()

    def _is_worth_encoding(self, cache: WorkingCache) -> bool:
        return cache.length - cache.hot_start >= ACTIVE_RECENT_TOKENS + _LEAST_ENCODED

    # -- forgetting ------------------------------------------------------------------------------------------------

    def forget(self, conversation_id: str) -> None:
        """Leave nothing of any branch of a conversation in memory or on disk. Raises OSError."""
        for key in [key for key in self._residents if conversation_of(key) == conversation_id]:
            self.drop(key)
        self.persistence.writer.delete_conversation(conversation_id)

    def drop(self, conversation_id: str) -> None:
        """Free a conversation's memory; what is on disk stays."""
        resident = self._residents.pop(conversation_id, None)
        if resident is not None:
            resident.give_up()
        self._release_doubled()

    def free_now(self, conversation_ids: Sequence[str] | None) -> None:
        """Put conversations away, all where there is None: saved, then dropped from memory."""
        free_now(self, self._relief, conversation_ids)

    def tell_compressed(self, resident: Resident, bytes_freed: int) -> None:
        """A chat was thinned out, so that it fits its model's context again."""
        precision = resident.precision(self._model.geometry.precision)
        budget = self._config.memory_budget_bytes
        self._on_event(
            PressureActed(resident.conversation_id, "compress", bytes_freed, None, self.memory_bytes, budget, precision)
        )

    def saved(self, result: SaveResult) -> None:
        """A save ended; on the saver's thread."""
        self.reasons.saved(result)

    def close(self, timeout_s: float) -> None:
        """Finish saving and drop all caches, when the model is replaced or the engine ends."""
        self.persistence.close(timeout_s)
        for resident in self._residents.values():
            resident.give_up()
        self._residents.clear()
        self.spare.release()

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def residents(self) -> list[Resident]:
        """Least recently used first."""
        return sorted(self._residents.values(), key=lambda one: one.last_used)

    @property
    def model(self) -> LoadedModel:
        return self._model

    @cached_property
    def rotation(self) -> Rotation | None:
        """How keys of this model are moved to another position; None where they cannot be."""
        return find_rotation(self._model.forward.model, self._model.config, self._model.device)

    @cached_property
    def can_crop(self) -> bool:
        """Whether this model's caches can be cut at any token."""
        return self._model.new_cache().can_crop

    @property
    def memory_bytes(self) -> int:
        """Bytes of every tensor that holds or could hold cached tokens."""
        return self.pool.nbytes + self.spare.nbytes + sum(one.buffer_bytes for one in self._residents.values())

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
        manifest = self.persistence.exact_manifest(resident.conversation_id)
        return manifest is not None and list(manifest.token_ids) == resident.token_ids

    def is_kept_on_disk(self, resident: Resident) -> bool:
        """Whether all of a conversation is on disk, in full precision or in the form it has."""
        if self.is_saved(resident):
            return True
        lossy = self.persistence.compressed.catalog.manifest(resident.conversation_id)
        return not resident.is_exact and lossy is not None and list(lossy.token_ids) == resident.token_ids

    def reading(self, cache: WorkingCache) -> CacheReading:
        """What the meter shows of a cache."""
        kinds = cache.cold.codecs if cache.cold is not None else frozenset()
        precision = next(iter(kinds)) if len(kinds) == 1 else "mixed" if kinds else cache.loss
        precision = precision or self._model.geometry.precision
        return CacheReading(cache.length, cache.nbytes, precision, self._model.device.type, cache.kept)

    def report(self, request_id: str, conversation_ids: Sequence[str] | None) -> CacheReported:
        return report_caches(request_id, conversation_ids, self, self._model, self._config)

    # -- private ---------------------------------------------------------------------------------------------------

    def _park(self, resident: Resident) -> bool:
        """In the precision that the user wants for all chats; in full where its codec does not take a number.

        Returns whether the memory that it leaves is whole.
        """
        codec = self.codecs.fixed if not resident.has_states else None
        if codec is None:
            resident.park()
            return True
        try:
            resident.park(codec=codec)
            resident.quantize(codec)
        except ValueError:
            resident.park()
        return_freed_memory()
        return False

    def _new_cache(self, num_tokens: int, resident: Resident, num_cold: int = 0) -> WorkingCache:
        """An empty cache for a conversation that becomes active, in the spare memory where that fits.

        `num_cold` of the tokens stay in their blocks. Where memory is too short for the others, it begins small, and is
        encoded as it grows (`keep_within_budget`).
        """
        per_token = self._model.geometry.bytes_per_token
        rows = max(0, num_tokens - num_cold)
        arena = self.spare.take(rows)
        # Its own blocks go once they are copied, and what the spare holds is there already.
        there = resident.own_bytes + (arena.held_bytes(0) if arena is not None else 0)
        self._relief.make_room(max(0, rows * per_token - there), resident.conversation_id)
        if arena is None and self._model.reads_encoded:
            rows = max(min(rows, _LEAST_ROWS), min(rows, (self._relief.room_bytes() + there) // per_token))
        return self._model.new_cache(rows, arena)

    def _begin_compressed(
        self, resident: Resident, token_ids: Sequence[int], is_cancelled: Callable[[], bool] | None
    ) -> Restored | None:
        """Give an empty chat its lossy snapshot, where that is what it begins with; there is room for it then."""
        found = self.choices.lossy_manifest(resident.conversation_id, token_ids)
        if found is None:
            return None
        nbytes = self.persistence.compressed.catalog.disk_bytes(resident.conversation_id)
        self._relief.make_room(nbytes, resident.conversation_id)
        return self.filler.compressed(resident, token_ids, *found, is_cancelled)

    def _resident(self, conversation_id: str, is_incognito: bool) -> Resident:
        resident = self._residents.setdefault(conversation_id, Resident(conversation_id, self.pool))
        resident.is_incognito = resident.is_incognito or is_incognito
        self._clock += 1
        resident.last_used = self._clock
        self.persistence.touch(conversation_id)
        return resident

    def _release_doubled(self) -> None:
        for resident in self._residents.values():
            resident.release_doubled()


def _pair_share(model: LoadedModel) -> float:
    """Attending to one earlier token, as a share of a token's other work: 4 h of about 24 h^2 multiplications."""
    return 1 / (6 * max(1, model.info.num_heads * model.info.head_dim))
