"""The cache lab in the real window, with the real model: what one sees and saves is what the engine measured."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.chat_session import ChatSession
from app.conversation_store import ConversationStore
from app.engine_bridge import EngineBridge
from app.engine_port import engine_config
from app.model_library import ModelLibrary
from app.paths import DataPaths, resources_dir
from app.settings import Settings
from engine.lab import use_cache
from engine.protocol.commands import BenchName
from engine.protocol.config import Weights
from engine.protocol.events import BenchFinished, BenchProgress, Event
from engine.worker import EngineWorker
from tests.ui.lab_bench import RESULTS
from ui.lab.lab_runs import RunState
from ui.lab.lab_window import CacheLab
from ui.lab.result_files import shown_of
from ui.theme import Theme

pytestmark = pytest.mark.timeout(400)
WAIT_MS = 240_000
CONTEXT = 128


class RealLab:
    """The lab on the engine as the program composes it, without the rest of the window."""

    def __init__(self, data_dir: Path) -> None:
        self.events: list[Event] = []
        paths, settings = DataPaths(data_dir), Settings()
        self.store = ConversationStore(paths.database)
        self.bridge = EngineBridge()
        self.engine = EngineWorker(engine_config(paths, settings), self.bridge.deliver)
        library = ModelLibrary(resources_dir(), data_dir)
        self.session = ChatSession(self.store, self.engine, settings)
        theme = Theme(resources_dir() / "themes")
        theme.set_mode("light")
        self.parent = QWidget()
        self.lab = CacheLab(self.engine, self.session, library, theme, self.parent)
        self.bridge.event_arrived.connect(self.session.handle)
        self.bridge.event_arrived.connect(self.events.append)
        self.bridge.event_arrived.connect(self.lab.take)
        self.engine.start()
        self.session.load_model(library.resolve(""), Weights.BITS_16)

    @property
    def finished(self) -> list[BenchFinished]:
        return [event for event in self.events if isinstance(event, BenchFinished)]

    def close(self) -> None:
        self.lab.close()
        self.engine.shutdown()
        for _ in range(3):
            QCoreApplication.sendPostedEvents()
            QCoreApplication.processEvents()
        self.session.close()
        self.store.close()
        self.parent.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


@pytest.fixture
def real(qtbot: QtBot, data_dir: Path, default_model: Path) -> Iterator[RealLab]:
    lab = RealLab(data_dir)
    yield lab
    lab.close()


def test_cache_on_and_off_is_shown_and_saved_as_it_was_measured(
    real: RealLab, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_cache, "_CACHED_TOKENS", 2)  # one time is as good as another here
    monkeypatch.setattr(use_cache, "_BARE_TOKENS", 1)
    monkeypatch.setattr(use_cache, "_COMPARED_PROMPT", 24)
    qtbot.waitUntil(lambda: real.lab.runs.model is not None, timeout=WAIT_MS)
    real.lab.open()
    window = real.lab.window
    assert window is not None
    page = window.show_page(BenchName.USE_CACHE)
    page.choose_context(CONTEXT)
    assert page.run_button.isEnabled()
    page.run_button.click()
    qtbot.waitUntil(
        lambda: any(isinstance(event, BenchProgress) and event.row for event in real.events), timeout=WAIT_MS
    )
    page.stop_button.click()
    qtbot.waitUntil(lambda: real.lab.runs.running is None, timeout=WAIT_MS)
    stopped = real.lab.runs.measurement(BenchName.USE_CACHE)
    assert stopped is not None
    assert stopped.state is RunState.STOPPED
    page.run_button.click()
    qtbot.waitUntil(lambda: any(isinstance(event, BenchFinished) for event in real.events), timeout=WAIT_MS)
    finished = next(event for event in real.events if isinstance(event, BenchFinished))
    qtbot.waitUntil(lambda: real.lab.runs.running is None)
    rows = finished.result["rows"]
    assert isinstance(rows, list)
    plot = page.plots.views[0].plot
    assert plot is not None
    assert plot.xs == tuple(row["length"] for row in rows) == (16, 32, 64, 96, 128)
    lines = {series.name: series.values for series in plot.series if not series.is_fit}
    assert lines["without a cache"] == tuple(row["without_ms"] for row in rows)
    assert lines["with the cache"] == tuple(row["with_ms"] for row in rows)
    run = real.lab.runs.measurement(BenchName.USE_CACHE)
    assert run is not None
    saved_as = shown_of(page.view, run)
    window.files.save_table_to(tmp_path / "table.csv", saved_as)
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        saved = list(csv.DictReader(file))
    for name in ("length", "without_ms", "with_ms", "factor", "kv_bytes"):
        assert [float(row[name]) for row in saved] == [row[name] for row in rows]
    assert saved[-1]["kv_bytes"] == str(CONTEXT * 23_040)
    with (tmp_path / "table-differences.csv").open(encoding="utf-8", newline="") as file:
        differences = {row["what"]: row for row in csv.DictReader(file)}
    assert float(differences["fit_slope"]["without"]) == finished.result["fits"]["without"]["slope"]
    assert "Both ways chose the same 16 tokens." in page.found_words.text()
    window.files.save_picture_to(tmp_path / "plot.png", saved_as)
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_what_an_experiment_tells_is_what_the_window_knows_how_to_show(real: RealLab, qtbot: QtBot) -> None:
    """The other tests of the lab show rows that were kept: they have to be those of the engine."""
    qtbot.waitUntil(lambda: real.lab.runs.model is not None, timeout=WAIT_MS)
    real.lab.open()
    assert real.lab.window is not None
    for number, (name, context) in enumerate(((BenchName.LOOP, None), (BenchName.MEMORY, 1024)), 1):
        page = real.lab.window.show_page(name)
        if context is not None:
            page.choose_context(context)
        page.run_button.click()
        qtbot.waitUntil(lambda number=number: len(real.finished) == number, timeout=WAIT_MS)  # type: ignore[misc]
        qtbot.waitUntil(lambda: real.lab.runs.running is None)
        result = real.finished[-1].result
        rows = result["rows"]
        assert isinstance(rows, list)
        assert rows[0].keys() == RESULTS[name]["rows"][0].keys()
        assert result.keys() == RESULTS[name].keys()
        assert page.tables[0].rowCount() == len(rows)
        assert page.found_words.text()
