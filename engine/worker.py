"""The inference thread: takes commands in order, tells events, and alone touches torch once it runs.

Importing this module does not import torch; the thread does, so that the window is up first. `submit`, `cancel` and
`shutdown` may be called from any thread; everything else belongs to the worker thread.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.inbox import Inbox, Question, SaveEnded
from engine.kv.store.deletion import delete_from_disk, delete_unknown
from engine.kv.store.page_map import report_stored_blocks
from engine.kv.store.report import report_disk
from engine.native_libraries import preload_torch
from engine.protocol.commands import (
    Command,
    Compress,
    Configure,
    Estimate,
    Forget,
    ForgetUnknown,
    FreeNow,
    Generate,
    LoadModel,
    Pin,
    ReportBlocks,
    ReportCache,
    RunBench,
    Undo,
    Verify,
)
from engine.protocol.config import EngineConfig
from engine.protocol.errors import EngineError, NoModelLoadedError, OutOfMemoryError
from engine.protocol.events import (
    BlocksReported,
    EngineStopped,
    Event,
    Failed,
    Finished,
    LoadStage,
    ModelLoaded,
    ModelLoading,
    Phase,
    PhaseChanged,
)
from engine.quick_imports import import_transformers
from engine.thread_count import wait_briefly

if TYPE_CHECKING:
    from engine.runtime import Runtime

_log = logging.getLogger(__name__)


_READ_AHEAD_S = 1.5  # so long an estimate waits for the chat's own read-ahead, which is about to change the answer


class EngineWorker:
    """Owns the inference thread. `on_event` is called on that thread, in order."""

    def __init__(self, config: EngineConfig, on_event: Callable[[Event], None]) -> None:
        self._config = config
        self._on_event = on_event
        self._inbox = Inbox()
        self._cancelled: dict[str, threading.Event] = {}
        self._pinned: frozenset[str] = frozenset()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ember-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Queue a command. Dropped after `shutdown`."""
        if self._is_closing.is_set():
            return
        if isinstance(command, Generate | Verify | RunBench | Compress | Undo):
            self._cancelled[command.request_id] = threading.Event()
        self._inbox.put(command)

    def cancel(self, request_id: str) -> None:
        """Stop a request at its next token or chunk, or before it starts. Unknown ids are ignored."""
        event = self._cancelled.get(request_id)
        if event is not None:
            event.set()

    def shutdown(self, timeout_s: float = 15.0) -> None:
        """Refuse new work, cancel what runs, save what is unsaved, end the thread."""
        self._is_closing.set()
        for event in list(self._cancelled.values()):
            event.set()
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        runtime: Runtime | None = None
        while (item := self._inbox.get()) is not None:
            if isinstance(item, SaveEnded):
                self._on_event(item.event)
                continue
            if isinstance(item, Question):
                if not self._is_closing.is_set():
                    self._answer(runtime, item)
                continue
            if runtime is None and self._answers_from_disk(item):
                continue
            if runtime is None:
                runtime = self._start_runtime(item)
            if runtime is not None:
                self._handle(runtime, item)
        if runtime is not None:
            runtime.close()
            self._tell_saves()
        self._on_event(EngineStopped())

    def _answers_from_disk(self, command: Command) -> bool:
        """Before any model, some commands need no torch: they concern nothing but the files."""
        match command:
            case ReportCache():
                report = report_disk(self._config.kv_dir, self._config.memory_budget_bytes)
                self._on_event(dataclasses.replace(report, request_id=command.request_id))
            case FreeNow():
                pass  # nothing is in memory
            case Pin():
                self._pinned = command.conversation_ids
            case Configure():
                self._config = self._with_present_places(command.config)
            case Forget():
                try:
                    delete_from_disk(self._config.kv_dir, command.conversation_id)
                except OSError:
                    _log.exception("snapshots of %s could not be deleted", command.conversation_id)
            case ForgetUnknown():
                self._forget_unknown(command)
            case _:
                return False
        return True

    def _with_present_places(self, config: EngineConfig) -> EngineConfig:
        """Folders and threads stay as they were at the start."""
        now = self._config
        return dataclasses.replace(
            config, kv_dir=now.kv_dir, converted_dir=now.converted_dir, num_threads=now.num_threads
        )

    def _forget_unknown(self, command: ForgetUnknown) -> None:
        try:
            deleted = delete_unknown(self._config.kv_dir, command.known_ids)
        except OSError:
            _log.exception("snapshots of deleted conversations could not be removed")
        else:
            if deleted:
                _log.info("removed what was left of %d deleted conversations", len(deleted))

    def _start_runtime(self, command: Command) -> Runtime | None:
        """Import torch and everything that needs it; a broken installation becomes an event."""
        if isinstance(command, LoadModel):
            self._on_event(ModelLoading(command.request_id, LoadStage.IMPORTING, None))
        wait_briefly(os.environ)
        preload_torch()
        gc.disable()  # a collection amid thousands of new modules stops every thread for 0.1 to 0.2 s
        try:
            import_transformers()
            from engine.runtime import Runtime  # noqa: PLC0415 - imports torch: on this thread, behind the window
        except Exception as error:  # noqa: BLE001 - part of the loop top: a broken installation fails in any way
            _log.exception("torch or transformers cannot be imported")
            self._fail(command, "engine", f"The inference libraries cannot be loaded ({error}); install Ember again.")
            return None
        finally:
            gc.freeze()
            gc.enable()
        runtime = Runtime(self._config, self._on_event, lambda event: self._inbox.put(SaveEnded(event)))
        runtime.pin(self._pinned)
        return runtime

    def _handle(self, runtime: Runtime, command: Command) -> None:
        """Run one command; a known failure becomes an event, an unknown one too, with its traceback in the log."""
        started = time.perf_counter()
        runtime.begin_work()
        try:
            self._dispatch(runtime, command)
        except EngineError as error:
            self._fail(command, error.code, str(error), error.params)
        except MemoryError:
            self._fail(command, OutOfMemoryError.code, "Memory ran out; close other programs or use a smaller model.")
        except Exception:  # noqa: BLE001 - one of the two loop tops: a bug must not end the thread
            _log.exception("%s failed", type(command).__name__)
            self._fail(command, "bug", "Something went wrong inside Ember; the log file tells more.")
        finally:
            runtime.end_work()
            if isinstance(command, Generate | Verify | RunBench | Compress | Undo):
                self._cancelled.pop(command.request_id, None)
        _log.debug("%s took %.3f s", type(command).__name__, time.perf_counter() - started)

    def _dispatch(self, runtime: Runtime, command: Command) -> None:
        match command:
            case LoadModel():
                self._on_event(ModelLoaded(command.request_id, runtime.load(command)))
            case Generate():
                self._take_turn(runtime, command)
            case Compress() | Undo():
                self._on_event(runtime.compress(command, self._stops(runtime, command)))
                runtime.save(command)
            case Pin():
                runtime.pin(command.conversation_ids)
            case Configure():
                self._config = self._with_present_places(command.config)
                runtime.configure(self._config)
            case Forget():
                try:
                    runtime.forget(command.conversation_id)
                except OSError:
                    _log.exception("snapshots of %s could not be deleted", command.conversation_id)
            case ForgetUnknown():
                pass  # belongs before the first model: later the store's own catalog is open
            case ReportCache():
                self._on_event(runtime.report(command))
            case FreeNow():
                runtime.free_now(command)
            case Verify():
                self._on_event(runtime.verify(command, self._stops(runtime, command)))
            case RunBench():
                self._on_event(runtime.bench(command, self._stops(runtime, command)))

    def _take_turn(self, runtime: Runtime, command: Generate) -> None:
        """The reply, and then what is done while nobody waits."""
        finished = runtime.generate(command, self._stops(runtime, command))
        self._on_event(finished)
        self._log_turn(finished)
        self._on_event(PhaseChanged(command.conversation_id, command.request_id, Phase.SAVING))
        until = time.perf_counter() + _READ_AHEAD_S

        def is_wanted() -> bool:
            self._answer_waiting(runtime, command.conversation_id if time.perf_counter() < until else None)
            return self._inbox.is_wanted() or self._is_closing.is_set()

        runtime.read_ahead(command, finished, is_wanted)
        runtime.save(command)
        until = 0.0  # the chat itself changes no more
        runtime.compress_if_short(command, is_wanted)
        runtime.probe_codecs(is_wanted)

    def _stops(self, runtime: Runtime, command: Generate | Compress | Undo | Verify | RunBench) -> Callable[[], bool]:
        """Asked between tokens and chunks whether to stop; what can be answered meanwhile is."""
        cancelled = self._cancelled[command.request_id]

        def is_cancelled() -> bool:
            if not self._inbox.is_empty:
                self._answer_waiting(runtime, None if isinstance(command, RunBench) else command.conversation_id)
            return cancelled.is_set()

        return is_cancelled

    def _answer_waiting(self, runtime: Runtime, busy_id: str | None) -> None:
        """Amid other work, between two of its steps; the chat of `busy_id` is in the middle of a change."""
        if threading.current_thread() is not self._thread or self._is_closing.is_set():
            return  # files are read on other threads
        for question in self._inbox.take_questions(busy_id):
            self._answer(runtime, question)

    def _answer(self, runtime: Runtime | None, question: Question) -> None:
        try:
            if isinstance(question, ReportBlocks):
                self._on_event(self._blocks(runtime, question))
                return
            if runtime is None:
                raise NoModelLoadedError("No model is loaded; choose one in the model menu or with --model.")
            if isinstance(question, Estimate):
                self._on_event(runtime.estimate(question))
            else:
                self._on_event(runtime.count_tokens(question))
        except EngineError as error:
            self._fail(question, error.code, str(error), error.params)
        except Exception:  # noqa: BLE001 - part of the loop top: a bug in a forecast must not end a reply
            _log.exception("%s failed", type(question).__name__)
            self._fail(question, "bug", "Something went wrong inside Ember; the log file tells more.")

    def _blocks(self, runtime: Runtime | None, question: ReportBlocks) -> BlocksReported:
        return runtime.report_blocks(question) if runtime else report_stored_blocks(question.request_id, self._config)

    def _log_turn(self, finished: Finished) -> None:
        """One line a turn: numbers and reasons, never a word of the chat."""
        one = finished.statistics
        _log.info(
            "conversation %s: %d of %d tokens reused, %d fed, %d new%s",
            finished.conversation_id,
            one.reused_tokens,
            one.prompt_tokens,
            one.prefilled_tokens,
            one.new_tokens,
            f"; read again: {one.miss_reason}" if one.miss_reason else "",
        )

    def _tell_saves(self) -> None:
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, SaveEnded):
                self._on_event(item.event)

    def _fail(self, command: Command, code: str, message: str, params: dict[str, str] | None = None) -> None:
        request_id = getattr(command, "request_id", "")
        conversation_id = getattr(command, "conversation_id", None)
        self._on_event(Failed(request_id, conversation_id, code, message, params or {}))
