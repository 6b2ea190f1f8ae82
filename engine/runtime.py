"""What the inference thread does for each command. Imports torch; only `engine.worker` imports this module."""

from __future__ import annotations

import dataclasses
import errno
import gc
import shutil
from collections.abc import Callable, Sequence

import torch

from engine import bench, compression, estimate, verification
from engine.kv.chat_key import chat_key, conversation_of
from engine.kv.manager import CacheManager
from engine.kv.store.collector import Eviction
from engine.kv.store.deletion import delete_conversation
from engine.kv.store.files import StoreFiles
from engine.kv.store.page_map import report_stored_blocks
from engine.kv.store.records import FORMAT_VERSION
from engine.kv.store.report import report_disk
from engine.kv.store.writer import SaveResult
from engine.lab.lab import SCRATCH
from engine.model.forward import is_out_of_memory
from engine.model.loader import LoadedModel, load_model
from engine.prompt import Prompt
from engine.protocol.commands import (
    Compress,
    CountTokens,
    Estimate,
    FreeNow,
    Generate,
    LoadModel,
    ReportBlocks,
    ReportCache,
    RunBench,
    Undo,
    Verify,
)
from engine.protocol.config import EngineConfig
from engine.protocol.errors import NoModelLoadedError, OutOfMemoryError
from engine.protocol.events import (
    BenchFinished,
    BenchProgress,
    BlocksReported,
    CacheReported,
    CodecsProbed,
    Compressed,
    Estimated,
    Event,
    Finished,
    ModelInfo,
    ModelLoading,
    PressureActed,
    SnapshotNotSaved,
    SnapshotSaved,
    TokensCounted,
    Verified,
)
from engine.protocol.misses import SaveProblem
from engine.quick_imports import compiler_left_out
from engine.read_ahead import read_ahead
from engine.thread_count import pick_thread_count
from engine.turn import Turn

_CLOSE_SAVER_S = 10.0

_OUT_OF_MEMORY_NOTE = "Memory ran out; other chats were put away and the step was repeated."

OnSaved = Callable[[Event], None]


class Runtime:
    """The loaded model, its caches and the saver. Every method runs on the inference thread."""

    def __init__(self, config: EngineConfig, emit: Callable[[Event], None], on_saved: OnSaved) -> None:
        torch.set_num_threads(config.num_threads or pick_thread_count())
        self._config = config
        self._emit = emit
        self._on_saved = on_saved
        self._files = StoreFiles(config.kv_dir, FORMAT_VERSION)
        for left in config.kv_dir.glob(f"{SCRATCH}*"):  # by a measurement that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._pinned: frozenset[str] = frozenset()
        self._model: LoadedModel | None = None
        self._caches: CacheManager | None = None
        self._memory_bytes = 0  # after the last command; the saver's thread must not walk the caches
        self._unreported_load_s = 0.0
        self._prompt: Prompt | None = None  # of the last turn

    def begin_work(self) -> None:
        """Snapshots are written only while this thread is idle."""
        if self._caches is not None:
            self._caches.persistence.writer.pause()

    def end_work(self) -> None:
        if self._caches is not None:
            self._memory_bytes = self._caches.memory_bytes
            self._caches.persistence.writer.resume()

    def pin(self, conversation_ids: frozenset[str]) -> None:
        """These conversations' caches go last, now and with the models loaded later."""
        self._pinned = conversation_ids
        if self._caches is not None:
            self._caches.pin(conversation_ids)

    def configure(self, config: EngineConfig) -> None:
        """Use other budgets, caps, precision and chunk from now on; what is over them goes."""
        self._config = config
        if self._caches is not None:
            self._tell_evictions(self._caches.configure(config), self._emit)

    def load(self, command: LoadModel) -> ModelInfo:
        """Replace the model. Raises ModelError; then no model is loaded."""
        self._unload()
        gc.disable()  # collections while many objects are made stop the window's thread for 0.1 s and more
        try:
            with compiler_left_out():
                model = load_model(
                    command.path,
                    command.weights,
                    self._config,
                    lambda stage: self._emit(ModelLoading(command.request_id, stage, None)),
                )
        finally:
            gc.enable()
        self._model = model
        self._caches = CacheManager(model, self._config, self._save_ended, self._tell)
        self._caches.pin(self._pinned)
        self._unreported_load_s = model.info.load_s
        return model.info

    def generate(self, command: Generate, is_cancelled: Callable[[], bool]) -> Finished:
        model, caches = self._loaded()
        model.poll()
        load_s, self._unreported_load_s = self._unreported_load_s, 0.0
        given_way_before, key = caches.times_given_way, chat_key(command.conversation_id, command.branch)
        model.forward.on_out_of_memory = lambda: self._free_memory(key)
        turn = Turn(command, model, caches, self._config.prefill_chunk, load_s, self._emit, is_cancelled)
        self._prompt = None
        try:
            finished = turn.run()
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            caches.give_way(key)
            raise OutOfMemoryError(
                "Memory ran out while replying; other chats were put away, so send the message again."
            ) from error
        self._prompt = turn.prompt
        if caches.times_given_way > given_way_before:
            finished = dataclasses.replace(finished, notes=(*finished.notes, _OUT_OF_MEMORY_NOTE))
        return finished

    def read_ahead(self, command: Generate, finished: Finished, is_wanted: Callable[[], bool]) -> None:
        """After a turn: bring the cache to what the next prompt will begin with, while nobody waits.

        Given up between chunks when `is_wanted` says that the user acts, and where it would be long.
        """
        model, caches = self._loaded()
        key = chat_key(command.conversation_id, command.branch)
        active, prompt = caches.active_cache(key), self._prompt
        if active is not None and prompt is not None and model.can_persist and finished.text and not is_wanted():
            read_ahead(command, finished, prompt, model, caches, self._emit, is_wanted)
        caches.settle(key)

    def probe_codecs(self, is_wanted: Callable[[], bool]) -> None:
        """While nobody waits: measure which codecs this model bears, unless that is known."""
        _, caches = self._loaded()
        caches.persistence.writer.resume()
        caches.codecs.probe(is_wanted)

    def save(self, command: Generate | Compress | Undo) -> None:
        """Queue the snapshot after a reply, or a compression; the outcome comes later, as an event. Then tidy up."""
        _, caches = self._loaded()
        conversation_id, request_id = command.conversation_id, command.request_id
        key = chat_key(conversation_id, command.branch)
        problem = caches.save(key, request_id)
        if problem is not None:
            code, detail = problem
            params = {"detail": detail} if detail else {}
            self._emit(SnapshotNotSaved(conversation_id, request_id, save_problem_words(code, detail), code, params))
        caches.park_others(key)
        caches.rates.write()

    def compress_if_short(self, command: Generate, is_wanted: Callable[[], bool]) -> None:
        """Between turns: where encoding was not enough and the settings allow it, the active chat is compressed."""
        model, caches = self._loaded()
        key = chat_key(command.conversation_id, command.branch)
        resident = caches.resident(key)
        if not self._config.allows_compression or not caches.is_tight or resident is None:
            return
        before = caches.memory_bytes
        if compression.relieve(model, caches, resident, command.messages, caches.most_bytes, is_wanted):
            self._emit(
                PressureActed(
                    command.conversation_id,
                    "compress",
                    max(0, before - caches.memory_bytes),
                    None,
                    caches.memory_bytes,
                    self._config.memory_budget_bytes,
                    resident.precision(model.geometry.precision),
                )
            )
            caches.save(key, "")

    def compress(self, command: Compress | Undo, is_cancelled: Callable[[], bool]) -> Compressed:
        """Or bring back. Raises EngineError; nothing has changed then."""
        model, caches = self._loaded()
        model.poll()
        key = chat_key(command.conversation_id, command.branch)
        model.forward.on_out_of_memory = lambda: self._free_memory(key)
        try:
            if isinstance(command, Undo):
                return compression.undo(command, model, caches, self._config.prefill_chunk, self._emit, is_cancelled)
            return compression.compress(command, model, caches, self._config.prefill_chunk, self._emit, is_cancelled)
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemoryError("Memory ran out; the chat's cache is as it was, so close other programs.") from error

    def forget(self, conversation_id: str) -> None:
        """Raises OSError when a file cannot be removed."""
        if self._caches is not None:
            self._caches.forget(conversation_id)
        else:
            delete_conversation(self._files, conversation_id)

    def report(self, command: ReportCache) -> CacheReported:
        if self._caches is None:
            return dataclasses.replace(
                report_disk(self._config.kv_dir, self._config.memory_budget_bytes), request_id=command.request_id
            )
        return self._caches.report(command.request_id, command.conversation_ids)

    def report_blocks(self, command: ReportBlocks) -> BlocksReported:
        """Changes nothing, and is quick: may come in between steps of other work."""
        if self._caches is None:
            return report_stored_blocks(command.request_id, self._config)
        return self._caches.page_map.report(command.request_id, self._config)

    def free_now(self, command: FreeNow) -> None:
        self._loaded()[1].free_now(command.conversation_ids)

    def estimate(self, command: Estimate) -> Estimated:
        """Changes nothing, so that it may come in between steps of other work. Raises EngineError."""
        return estimate.estimate(command, *self._loaded())

    def count_tokens(self, command: CountTokens) -> TokensCounted:
        """The same."""
        return estimate.count_tokens(command, self._loaded()[0])

    def verify(self, command: Verify, is_cancelled: Callable[[], bool]) -> Verified:
        model, caches = self._loaded()
        return verification.verify(command, model, caches, self._config.prefill_chunk, is_cancelled, self._emit)

    def bench(self, command: RunBench, is_cancelled: Callable[[], bool]) -> BenchFinished:
        model, _ = self._loaded()
        model.poll()

        def tell(done: int, total: int, row: dict[str, object] | None) -> None:
            self._emit(BenchProgress(command.request_id, done, total, row))

        result = bench.run(command, model, self._config, is_cancelled, tell)
        return BenchFinished(command.request_id, result)

    def close(self) -> None:
        """Write what is queued and end the helper threads."""
        self._unload()

    def _loaded(self) -> tuple[LoadedModel, CacheManager]:
        if self._model is None or self._caches is None:
            raise NoModelLoadedError("No model is loaded; choose one in the model menu or with --model.")
        return self._model, self._caches

    def _unload(self) -> None:
        if self._model is not None:
            self._model.close()
        if self._caches is not None:
            self._caches.close(_CLOSE_SAVER_S)
        self._model = self._caches = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _free_memory(self, key: str) -> bool:
        """A forward pass ran out of memory: put other chats away; whether to try again."""
        model, caches = self._loaded()
        has_freed = caches.give_way(key)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return has_freed and model.can_persist  # another model may have state that the failed pass left half changed

    def _tell(self, event: PressureActed | CodecsProbed) -> None:
        """The manager knows branches by their keys; others know conversations."""
        if isinstance(event, PressureActed):
            event = dataclasses.replace(event, conversation_id=conversation_of(event.conversation_id))
        self._emit(event)

    def _tell_evictions(self, evictions: Sequence[Eviction], tell: Callable[[Event], None]) -> None:
        for one in evictions:
            memory, budget = self._memory_bytes, self._config.memory_budget_bytes
            conversation_id = conversation_of(one.conversation_id)
            tell(PressureActed(conversation_id, "evict_disk", one.nbytes, None, memory, budget))

    def _save_ended(self, result: SaveResult) -> None:
        """On the saver's thread."""
        caches = self._caches
        if caches is not None:
            caches.saved(result)
        self._tell_evictions(result.evicted, self._on_saved)
        if result.is_cancelled:
            return
        conversation_id = conversation_of(result.conversation_id)
        if result.error is not None:
            is_full = result.error.errno in (errno.ENOSPC, errno.EDQUOT)
            code = SaveProblem.DISK_FULL if is_full else SaveProblem.DISK_ERROR
            detail = result.error.strerror or type(result.error).__name__
            self._on_saved(
                SnapshotNotSaved(
                    conversation_id,
                    result.request_id,
                    save_problem_words(code, detail),
                    code,
                    {"detail": detail},
                )
            )
            return
        self._on_saved(
            SnapshotSaved(
                conversation_id,
                result.request_id,
                result.tokens,
                result.bytes_written,
                result.bytes_total,
                result.save_s,
            )
        )


def save_problem_words(code: SaveProblem, detail: str) -> str:
    """One English sentence for a snapshot that was not saved."""
    match code:
        case SaveProblem.DISK_FULL:
            return "The disk is full: the chat goes on, but its cache was not saved; free some space."
        case SaveProblem.DISK_ERROR:
            return f"The chat's cache could not be saved ({detail}); the chat itself is not affected."
        case SaveProblem.CANNOT_RESUME:
            return detail
        case SaveProblem.INCOGNITO:
            return "This chat is incognito: its cache is not saved."
        case SaveProblem.NOTHING_CACHED:
            return "Nothing is cached for this conversation yet."
