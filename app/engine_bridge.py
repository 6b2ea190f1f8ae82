"""The engine's events as typed Qt signals. Lives in the GUI thread; only `deliver` runs on the worker's.

An event makes exactly one queued hop and is then given out in the GUI thread, in the order it was told. It stays in the
GUI thread by design: a QObject moved to the worker would run plain receivers there.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt, Signal, Slot

from engine.protocol.events import (
    CacheReported,
    CodecsProbed,
    Compressed,
    EngineStopped,
    Event,
    Failed,
    Finished,
    ModelLoaded,
    ModelLoading,
    PhaseChanged,
    PressureActed,
    SnapshotNotSaved,
    SnapshotSaved,
    StatisticsChanged,
    TextArrived,
)


class EngineBridge(QObject):
    """`event_arrived` tells every event, then the signal named after its kind does. Payloads are the events."""

    event_arrived = Signal(object)
    model_loading = Signal(object)
    model_loaded = Signal(object)
    phase_changed = Signal(object)
    text_arrived = Signal(object)
    statistics_changed = Signal(object)
    finished = Signal(object)
    failed = Signal(object)
    snapshot_saved = Signal(object)
    snapshot_not_saved = Signal(object)
    pressure_acted = Signal(object)
    compressed = Signal(object)
    codecs_probed = Signal(object)
    cache_reported = Signal(object)
    engine_stopped = Signal(object)

    _told = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._retired: set[str] = set()
        self._told.connect(self._on_told, Qt.ConnectionType.QueuedConnection)

    def deliver(self, event: Event) -> None:
        """Hand an event over; any thread."""
        self._told.emit(event)

    def retire(self, request_id: str) -> None:
        """Pass on nothing of this request from now on, not even what is on its way."""
        self._retired.add(request_id)

    @Slot(object)
    def _on_told(self, event: Event) -> None:
        if getattr(event, "request_id", None) in self._retired:
            return
        self.event_arrived.emit(event)
        match event:
            case ModelLoading():
                self.model_loading.emit(event)
            case ModelLoaded():
                self.model_loaded.emit(event)
            case PhaseChanged():
                self.phase_changed.emit(event)
            case TextArrived():
                self.text_arrived.emit(event)
            case StatisticsChanged():
                self.statistics_changed.emit(event)
            case Finished():
                self.finished.emit(event)
            case Failed():
                self.failed.emit(event)
            case SnapshotSaved():
                self.snapshot_saved.emit(event)
            case SnapshotNotSaved():
                self.snapshot_not_saved.emit(event)
            case PressureActed():
                self.pressure_acted.emit(event)
            case Compressed():
                self.compressed.emit(event)
            case CodecsProbed():
                self.codecs_probed.emit(event)
            case CacheReported():
                self.cache_reported.emit(event)
            case EngineStopped():
                self.engine_stopped.emit(event)
