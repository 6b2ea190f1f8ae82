"""Which experiment runs, and what each has found: asks the engine, takes its answers, draws nothing. GUI thread.

One at a time. What is found belongs to the model it was measured with and goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from time import monotonic
from typing import Any
from uuid import uuid4

from PySide6.QtCore import QObject, Signal

from app.engine_port import EnginePort
from engine.protocol.commands import BenchName, RunBench
from engine.protocol.events import (
    BenchFinished,
    BenchProgress,
    Compressed,
    EngineStopped,
    Failed,
    Finished,
    ModelInfo,
    ModelLoaded,
    ModelLoading,
    Phase,
    PhaseChanged,
    Verified,
)
from ui.lab.view import Found


class RunState(StrEnum):
    WAITING = "waiting"  # asked for; something else is at work
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


AT_WORK = (RunState.WAITING, RunState.RUNNING, RunState.STOPPING)
MODEL_CHANGED = "model_changed"
_STOPPED = "bench"  # the engine's code for a measurement that was cancelled


@dataclass(slots=True)
class Measurement:
    """`context`: as asked for, None for what is usual. `seconds`: of the whole run, once it is done."""

    name: BenchName
    request_id: str
    context: int | None
    model: ModelInfo
    asked_at: datetime
    state: RunState = RunState.WAITING
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    result: Mapping[str, Any] = field(default_factory=dict)
    done: int = 0
    total: int = 0
    started_at: float | None = None
    seconds: float | None = None
    failure: Failed | None = None

    @property
    def found(self) -> Found:
        return Found(self.rows, self.result, self.result.get("context", self.context))

    @property
    def told(self) -> Mapping[str, Any]:
        """The result; of a measurement that did not come to its end, what there is of it."""
        if self.result:
            return self.result
        model = self.model
        return {
            "context": self.context,
            "model": model.name,
            "weights": str(model.weights),
            "dtype": model.dtype,
            "device": model.device,
            "rows": self.rows,
        }


class LabRuns(QObject):
    """`changed` names the experiment that has something new; None where it is about all of them."""

    changed = Signal(object)

    def __init__(
        self, engine: EnginePort, model: Callable[[], ModelInfo | None], parent: QObject | None = None
    ) -> None:
        """`model`: the one that is loaded."""
        super().__init__(parent)
        self._engine = engine
        self._model = model
        self._own: set[str] = set()
        self._replies: set[str] = set()
        self._loading: str | None = None
        self._measured: dict[BenchName, Measurement] = {}
        self._of: tuple[object, ...] | None = _identity(model())
        self.running: Measurement | None = None

    def measurement(self, name: BenchName) -> Measurement | None:
        return self._measured.get(name)

    @property
    def model(self) -> ModelInfo | None:
        """None while there is none to measure: not loaded, or just being replaced."""
        return None if self._loading is not None else self._model()

    @property
    def is_loading(self) -> bool:
        return self._loading is not None

    @property
    def is_reply_running(self) -> bool:
        return bool(self._replies)

    def start(self, name: BenchName, context: int | None) -> None:
        """Nothing while another one runs, or there is no model."""
        model = self.model
        if self.running is not None or model is None:
            return
        request_id = uuid4().hex
        self._own.add(request_id)
        asked_at = datetime.now().astimezone()
        self.running = self._measured[name] = Measurement(name, request_id, context, model, asked_at)
        self._engine.submit(RunBench(request_id, name, context))
        self.changed.emit(None)

    def stop(self) -> None:
        """The engine answers when it has."""
        if self.running is not None and self.running.state is not RunState.STOPPING:
            self.running.state = RunState.STOPPING
            self._engine.cancel(self.running.request_id)
            self.changed.emit(None)

    def forget(self) -> None:
        """Cancel what runs, and keep nothing."""
        if self.running is not None:
            self._engine.cancel(self.running.request_id)
            self.running = None
        self._measured.clear()
        self.changed.emit(None)

    def take(self, event: object) -> bool:
        """Whether the event is about a measurement, and so nobody else's."""
        match event:
            case BenchProgress() | BenchFinished() | Failed() if event.request_id in self._own:
                self._take_own(event)
                return True
            case PhaseChanged():
                if event.phase is Phase.SAVING:
                    self._replies.discard(event.request_id)
                else:
                    self._replies.add(event.request_id)
                self._tell_waiting()
            case Finished() | Compressed() | Verified():
                self._replies.discard(event.request_id)
                self._tell_waiting()
            case ModelLoading():
                if self._loading != event.request_id:
                    self._loading = event.request_id
                    self.changed.emit(None)
            case ModelLoaded():
                self._loading = None
                self._use(event.model)
            case Failed():
                self._replies.discard(event.request_id)
                if event.request_id == self._loading:
                    self._loading = None
                    self._use(None)
            case EngineStopped():
                self._replies.clear()
                if self.running is not None:
                    self.running.state = RunState.STOPPED
                    self.running = None
                    self.changed.emit(None)
        return False

    def _use(self, model: ModelInfo | None) -> None:
        """What was found goes with its model; of what is amid its run, it is told that it was for nothing."""
        identity = _identity(model)
        if identity == self._of:
            self.changed.emit(None)
            return
        self._of = identity
        lost = self.running
        self.forget()
        if lost is not None:
            lost.rows = []
            lost.state = RunState.FAILED
            lost.failure = Failed(lost.request_id, None, MODEL_CHANGED, "The model was changed while measuring.", {})
            self._measured[lost.name] = lost
            self.changed.emit(None)

    def _tell_waiting(self) -> None:
        if self.running is not None and self.running.state is RunState.WAITING:
            self.changed.emit(self.running.name)

    def _take_own(self, event: BenchProgress | BenchFinished | Failed) -> None:
        if not isinstance(event, BenchProgress):
            self._own.discard(event.request_id)
        run = self.running
        if run is None or run.request_id != event.request_id:
            return  # given up before
        if run.started_at is None:
            run.started_at = monotonic()
        match event:
            case BenchProgress():
                run.done, run.total = event.done, event.total
                if event.row is not None:
                    run.rows.append(event.row)
                if run.state is RunState.WAITING:
                    run.state = RunState.RUNNING
                self.changed.emit(run.name)
                return
            case BenchFinished():
                run.result = event.result
                rows = event.result.get("rows")
                if isinstance(rows, list):
                    run.rows = rows
                run.state = RunState.DONE
                run.seconds = monotonic() - run.started_at
            case Failed():
                is_stopped = run.state is RunState.STOPPING or event.code == _STOPPED
                run.state = RunState.STOPPED if is_stopped else RunState.FAILED
                run.failure = event
        self.running = None
        self.changed.emit(None)


def _identity(model: ModelInfo | None) -> tuple[object, ...] | None:
    return None if model is None else (model.path, model.weights, model.device)
