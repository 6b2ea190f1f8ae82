from __future__ import annotations

import threading

import pytest
from PySide6.QtCore import QThread

from app.engine_bridge import EngineBridge
from engine.protocol.errors import GenerationError
from engine.protocol.events import (
    CacheReported,
    CodecsProbed,
    Compressed,
    EngineStopped,
    LoadStage,
    MemoryReading,
    ModelLoaded,
    ModelLoading,
    Phase,
    PhaseChanged,
    PressureActed,
    SnapshotNotSaved,
    SnapshotSaved,
    StatisticsChanged,
)
from tests.fakes import CACHE, a_model, failed, finished, text_arrived

EVENTS = {
    "model_loading": ModelLoading("r", LoadStage.WEIGHTS, 0.5),
    "model_loaded": ModelLoaded("r", a_model()),
    "phase_changed": PhaseChanged("c", "r", Phase.PREFILL),
    "text_arrived": text_arrived("r", "글", 1),
    "statistics_changed": StatisticsChanged("c", "r", 1, 2, CACHE, 2**40, MemoryReading(1, 2, 3), None, None),
    "finished": finished("r", "done", 1),
    "failed": failed("r", GenerationError("Broken.")),
    "snapshot_saved": SnapshotSaved("c", "r", 1, 2, 3, 0.1),
    "snapshot_not_saved": SnapshotNotSaved("c", "r", "full"),
    "pressure_acted": PressureActed("c", "drop", 2**40, None, 1, 2),
    "compressed": Compressed("c", "r", 12, 0.3, "kvzip", 2**40, 2**38, 0.8),
    "codecs_probed": CodecsProbed({"compact": 0.3}, ("compact",)),
    "cache_reported": CacheReported("r", 0, 0, 0, 0, 0.0, ()),
    "engine_stopped": EngineStopped(),
}


def deliver_from_a_thread(bridge: EngineBridge, *events: object) -> None:
    thread = threading.Thread(target=lambda: [bridge.deliver(event) for event in events])
    thread.start()
    thread.join()


@pytest.mark.parametrize("name", EVENTS)
def test_each_event_comes_as_itself_on_the_signal_of_its_kind_alone(qtbot, name):
    bridge = EngineBridge()
    came: list[tuple[str, object]] = []
    for signal in EVENTS:
        getattr(bridge, signal).connect(lambda event, signal=signal: came.append((signal, event)))
    with qtbot.waitSignal(bridge.event_arrived) as first:
        deliver_from_a_thread(bridge, EVENTS[name])
    assert first.args == [EVENTS[name]]
    assert came == [(name, EVENTS[name])]


def test_events_are_told_in_the_gui_thread_in_order_however_the_receiver_is_made(qtbot):
    bridge = EngineBridge()
    came: list[tuple[str, bool]] = []

    class Plain:
        def receive(self, event):
            came.append((event.text, QThread.currentThread() is bridge.thread()))

    plain = Plain()
    bridge.text_arrived.connect(plain.receive)
    deliver_from_a_thread(bridge, *(text_arrived("r", str(number), number) for number in range(1000)))
    assert came == [], "nothing runs in the worker's thread"
    qtbot.waitUntil(lambda: len(came) == 1000)
    assert came == [(str(number), True) for number in range(1000)]


def test_the_general_signal_comes_first(qtbot):
    bridge = EngineBridge()
    order: list[str] = []
    bridge.finished.connect(lambda event: order.append("typed"))
    bridge.event_arrived.connect(lambda event: order.append("general"))
    deliver_from_a_thread(bridge, EVENTS["finished"])
    qtbot.waitUntil(lambda: len(order) == 2)
    assert order == ["general", "typed"]


def test_nothing_of_a_retired_request_is_told_not_even_what_was_on_its_way(qtbot):
    bridge = EngineBridge()
    came: list[object] = []
    bridge.event_arrived.connect(came.append)
    last = ModelLoaded("other", a_model())
    deliver_from_a_thread(bridge, EVENTS["text_arrived"], EVENTS["finished"], EVENTS["snapshot_saved"], last)
    bridge.retire("r")
    qtbot.waitUntil(lambda: last in came)
    assert came == [last]
