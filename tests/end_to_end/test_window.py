"""The real window with the real model: send, watch, stop, send again, close, reopen, go on; the meter is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from pytestqt.qtbot import QtBot

from app.chat_session import ChatSession
from app.conversation_store import ConversationStore
from app.engine_bridge import EngineBridge
from app.engine_port import engine_config
from app.live_settings import LiveSettings
from app.model_library import ModelLibrary
from app.paths import DataPaths, resources_dir
from app.presets import Presets
from app.settings import Settings, load_settings, save_settings
from engine.protocol.config import Weights
from engine.protocol.events import (
    CacheReported,
    CacheState,
    Event,
    Failed,
    Finished,
    FinishReason,
    ModelLoaded,
    Phase,
    PhaseChanged,
    SnapshotSaved,
    StatisticsChanged,
    TextArrived,
)
from engine.worker import EngineWorker
from tests.end_to_end.conftest import long_message
from ui.main_window import MainWindow
from ui.transcript.messages import AssistantMessage

pytestmark = pytest.mark.timeout(400)
WAIT_MS = 120_000


@dataclass
class Program:
    """What `python -m app` composes, in this process, so that a test can look inside and start it twice."""

    qtbot: QtBot
    paths: DataPaths
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.paths.settings.exists():
            save_settings(self.paths.settings, Settings(language="en", theme="light", temperature=0.0))
        settings = load_settings(self.paths.settings)
        self.store = ConversationStore(self.paths.database)
        self.store.close_interrupted_replies()
        self.bridge = EngineBridge()
        self.engine = EngineWorker(engine_config(self.paths, settings), self.bridge.deliver)
        library = ModelLibrary(resources_dir(), self.paths.data_dir)
        self.session = ChatSession(self.store, self.engine, settings, find_model=library.resolve)
        self.bridge.event_arrived.connect(self.session.handle)
        self.bridge.event_arrived.connect(self.events.append)
        live_settings = LiveSettings(self.paths, settings, self.session, self.engine)
        self.window = MainWindow(
            self.session,
            self.store,
            self.bridge,
            self.engine,
            library,
            settings,
            live_settings.change,
            Presets(self.paths.presets),
        )
        self.window.resize(1200, 800)
        self.window.show()
        self.engine.start()
        self.session.load_model(library.resolve(""), Weights.BITS_16)

    def wait(self, kind: type[Event], count: int = 1) -> Event:
        def arrived() -> bool:
            assert not [e for e in self.events if isinstance(e, Failed)]
            return sum(isinstance(event, kind) for event in self.events) >= count

        self.qtbot.waitUntil(arrived, timeout=WAIT_MS)
        return [event for event in self.events if isinstance(event, kind)][count - 1]

    def send(self, text: str) -> None:
        self.window.page.composer.edit.setPlainText(text)
        self.window.page.composer.button.click()

    def last_reply(self) -> AssistantMessage:
        reply = self.window.page.transcript.built()[-1]
        assert isinstance(reply, AssistantMessage)
        return reply

    def close(self) -> None:
        self.window.close()
        self.engine.shutdown()
        for _ in range(3):
            QCoreApplication.sendPostedEvents()
            QCoreApplication.processEvents()
        self.session.close()
        self.store.close()
        self.window.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


@pytest.fixture
def start(qtbot: QtBot, data_dir: Path, default_model: Path) -> Iterator[Callable[[], Program]]:
    running: list[Program] = []

    def started() -> Program:
        while running:
            running.pop().close()
        running.append(Program(qtbot, DataPaths(data_dir)))
        return running[-1]

    yield started
    while running:
        running.pop().close()


def meter_equals_the_last_events(program: Program) -> None:
    """Every gauge shows what the engine told last: nothing rounded away, nothing invented."""
    reading = program.window.meter.reading
    told = [event for event in program.events if isinstance(event, StatisticsChanged)][-1]
    finished = [event for event in program.events if isinstance(event, Finished)][-1]
    assert reading.context_tokens == told.context_tokens == finished.statistics.cache.tokens
    assert program.session.model is not None
    assert reading.cache == told.cache == finished.statistics.cache
    assert told.cache.bytes == told.cache.tokens * program.session.model.kv_bytes_per_token
    assert reading.decode_tps == finished.statistics.decode_tps
    assert reading.ttft_s == finished.statistics.ttft_s
    program.qtbot.waitUntil(lambda: program.window.meter.context.value.text() == reading.context_words(), timeout=2000)
    assert f"{told.context_tokens:,} / 8,192" == program.window.meter.context.value.text().replace("\u00a0", " ")


def test_a_chat_lives_through_stop_and_restart(start: Callable[[], Program]) -> None:
    program = start()
    program.wait(ModelLoaded)
    program.send(long_message(15) + " Tell me about the ferries.")
    program.wait(TextArrived, 3)
    shown = program.last_reply()
    program.qtbot.waitUntil(lambda: len(shown.body.plain_text()) > 5, timeout=WAIT_MS)
    program.window.page.composer.button.click()
    stopped = program.wait(Finished)
    assert isinstance(stopped, Finished)
    assert stopped.finish_reason is FinishReason.CANCELLED
    program.wait(SnapshotSaved)
    meter_equals_the_last_events(program)
    program.send("And one more thing, briefly.")
    program.wait(TextArrived, 6)
    program.window.page.composer.button.click()
    second = program.wait(Finished, 2)
    assert isinstance(second, Finished)
    assert second.statistics.prefilled_tokens < 25
    assert second.statistics.miss_reason is None
    program.wait(SnapshotSaved, 2)
    meter_equals_the_last_events(program)
    phases = [event.phase for event in program.events if isinstance(event, PhaseChanged)]
    assert {Phase.RESTORING, Phase.PREFILL, Phase.ANSWERING, Phase.SAVING} <= set(phases)
    conversation = second.conversation_id
    texts = [message.text for message in program.store.messages(conversation)]
    assert texts[1] == stopped.text
    assert texts[3] == second.text

    program = start()
    assert program.window.controller.current == conversation
    assert [widget.text for widget in program.window.page.transcript.built()] == texts
    program.wait(ModelLoaded)
    report = program.wait(CacheReported)
    assert isinstance(report, CacheReported)
    assert [row.state for row in report.conversations] == [CacheState.ON_DISK]
    assert program.window.meter.reading.decode_tps == second.statistics.decode_tps
    program.send("Are you still there?")
    program.wait(TextArrived)
    program.window.page.composer.button.click()
    resumed = program.wait(Finished)
    assert isinstance(resumed, Finished)
    assert resumed.statistics.miss_reason is None
    assert resumed.statistics.restore_s > 0
    assert resumed.statistics.reused_tokens > 450
    assert resumed.statistics.prefilled_tokens < 25
    program.wait(SnapshotSaved)
    meter_equals_the_last_events(program)


def test_closing_in_the_middle_of_a_reply_keeps_what_was_said(start: Callable[[], Program]) -> None:
    program = start()
    program.send("Tell me a long story about a lighthouse.")  # before the model is there
    program.wait(TextArrived, 4)
    program = start()
    messages = program.store.messages(program.store.conversations()[0].id)
    assert messages[0].text == "Tell me a long story about a lighthouse."
    assert messages[1].finish_reason is FinishReason.CANCELLED
    assert messages[1].text
    program.wait(ModelLoaded)
    program.send("Go on.")
    finished = program.wait(TextArrived)
    assert finished
