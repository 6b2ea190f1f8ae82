"""What the inference thread does for each command. Imports torch; only `engine.worker` imports this module."""

from __future__ import annotations

import dataclasses
import errno
import gc
from collections.abc import Callable

import psutil
import torch

from engine import bench, verification
from engine.kv.manager import CacheManager
from engine.kv.saver import SaveResult, SnapshotSaver
from engine.kv.snapshots import SnapshotFiles, report_disk
from engine.model.loader import LoadedModel, load_model
from engine.protocol.commands import Generate, LoadModel, ReportCache, RunBench, Verify
from engine.protocol.config import EngineConfig
from engine.protocol.errors import NoModelLoadedError, OutOfMemoryError
from engine.protocol.events import (
    BenchFinished,
    CacheReported,
    Event,
    Finished,
    ModelInfo,
    ModelLoading,
    SnapshotNotSaved,
    SnapshotSaved,
    Verified,
)
from engine.turn import Turn

_CLOSE_SAVER_S = 10.0

OnSaved = Callable[[SnapshotSaved | SnapshotNotSaved | None], None]


class Runtime:
    """The loaded model, its caches and the saver. Every method runs on the inference thread."""

    def __init__(self, config: EngineConfig, emit: Callable[[Event], None], on_saved: OnSaved) -> None:
        torch.set_num_threads(config.num_threads or psutil.cpu_count(logical=False) or 1)
        self._config = config
        self._emit = emit
        self._on_saved = on_saved
        self._files = SnapshotFiles(config.kv_dir)
        self._files.remove_leftovers()
        self._saver = SnapshotSaver(self._save_ended)
        self._model: LoadedModel | None = None
        self._caches: CacheManager | None = None
        self._unreported_load_s = 0.0

    def begin_work(self) -> None:
        """Snapshots are written only while this thread is idle."""
        self._saver.pause()

    def end_work(self) -> None:
        self._saver.resume()

    def load(self, command: LoadModel) -> ModelInfo:
        """Replace the model. Raises ModelError; then no model is loaded."""
        self._unload()
        gc.disable()  # collections while many objects are made stop the window's thread for 0.1 s and more
        try:
            model = load_model(
                command.path,
                command.weights,
                self._config,
                lambda stage: self._emit(ModelLoading(command.request_id, stage, None)),
            )
        finally:
            gc.enable()
        self._model = model
        self._caches = CacheManager(model, self._files, self._saver, self._config.memory_budget_bytes)
        self._unreported_load_s = model.info.load_s
        return model.info

    def generate(self, command: Generate, is_cancelled: Callable[[], bool]) -> Finished:
        model, caches = self._loaded()
        load_s, self._unreported_load_s = self._unreported_load_s, 0.0
        turn = Turn(command, model, caches, self._config.prefill_chunk, load_s, self._emit, is_cancelled)
        try:
            finished = turn.run()
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            caches.drop_others(command.conversation_id)
            raise OutOfMemoryError(
                "Memory ran out while replying; other chats were put away, so send the message again."
            ) from error
        caches.trim()
        return finished

    def save(self, conversation_id: str, request_id: str) -> None:
        """Queue the snapshot after a reply; the outcome comes later as an event."""
        _, caches = self._loaded()
        reason = caches.save(conversation_id, request_id)
        if reason is not None:
            self._emit(SnapshotNotSaved(conversation_id, request_id, reason))

    def forget(self, conversation_id: str) -> None:
        if self._caches is not None:
            self._caches.drop(conversation_id)
        self._saver.release(conversation_id)
        self._files.delete(conversation_id)

    def report(self, command: ReportCache) -> CacheReported:
        if self._caches is None:
            return dataclasses.replace(
                report_disk(self._config.kv_dir, self._config.memory_budget_bytes), request_id=command.request_id
            )
        return self._caches.report(command.request_id, command.conversation_ids)

    def verify(self, command: Verify, is_cancelled: Callable[[], bool]) -> Verified:
        model, caches = self._loaded()
        return verification.verify(command, model, caches, self._config.prefill_chunk, is_cancelled)

    def bench(self, command: RunBench, is_cancelled: Callable[[], bool]) -> BenchFinished:
        model, _ = self._loaded()
        result = bench.run(command, model, self._config, is_cancelled)
        return BenchFinished(command.request_id, result)

    def close(self) -> None:
        """Write what is queued and end the helper threads."""
        self._saver.close(_CLOSE_SAVER_S)
        self._unload()

    def _loaded(self) -> tuple[LoadedModel, CacheManager]:
        if self._model is None or self._caches is None:
            raise NoModelLoadedError("No model is loaded; choose one in the model menu or with --model.")
        return self._model, self._caches

    def _unload(self) -> None:
        if self._caches is not None:
            self._caches.close()
        self._model = self._caches = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _save_ended(self, result: SaveResult) -> None:
        """On the saver's thread."""
        if result.is_cancelled:
            self._on_saved(None)
        elif result.error is not None:
            reason = save_error_words(result.error)
            self._on_saved(SnapshotNotSaved(result.conversation_id, result.request_id, reason))
        else:
            self._on_saved(
                SnapshotSaved(
                    result.conversation_id,
                    result.request_id,
                    result.tokens,
                    result.bytes_written,
                    result.bytes_written,
                    result.save_s,
                )
            )


def save_error_words(error: OSError) -> str:
    """One sentence for a snapshot that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The disk is full: the chat goes on, but its cache was not saved; free some space."
    return f"The chat's cache could not be saved ({error.strerror}); the chat itself is not affected."


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
