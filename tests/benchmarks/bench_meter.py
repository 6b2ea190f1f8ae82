"""What the strip and the memory panel cost an answer: the GUI thread's time for each update, and the speed of decoding
with the strip seen, with the panel open as well, and with neither.

make bench ARGS="tests/benchmarks/bench_meter.py"
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication
from pytestqt.qtbot import QtBot

from app.paths import DataPaths, resources_dir
from app.settings import Settings, save_settings
from engine.protocol.events import CacheReading, Finished, MemoryReading, ModelLoaded, Phase, SnapshotSaved
from tests.end_to_end.conftest import long_message
from tests.end_to_end.test_window import WAIT_MS, Program
from ui.memory.memory_panel import MemoryPanel
from ui.meter.meter_reading import EngineState, MeterReading
from ui.meter.strip import MeterStrip
from ui.theme import Theme

UPDATES, UPDATES_A_SECOND = 200, 10
ROUNDS, NEW_TOKENS = 5, 120


def test_what_an_update_of_the_strip_costs(qtbot: QtBot, theme: Theme) -> None:
    strip = MeterStrip(theme)
    qtbot.addWidget(strip)
    strip.resize(1280, 40)
    strip.show()
    qtbot.waitExposed(strip)
    started = time.thread_time()
    for number in range(UPDATES):
        reading = MeterReading(
            context_tokens=6000 + number,
            context_length=8192,
            cache=CacheReading(6000 + number, (6000 + number) * 23_040, "bf16", "cpu"),
            all_caches_bytes=300_000_000,
            budget_bytes=2_000_000_000,
            memory=MemoryReading(10**9, 4 * 10**9 + number * 10**6, 8 * 10**9),
            ttft_s=0.06,
            decode_tps=120 + number % 17,
            state=EngineState(Phase.ANSWERING, has_model=True),
        )
        strip.sparkline.add(120 + number % 17)
        strip.show_now(reading)
        QCoreApplication.processEvents()
    each_s = (time.thread_time() - started) / UPDATES
    share = each_s * UPDATES_A_SECOND
    print(
        f"\nan update of the strip takes {each_s * 1e3:.2f} ms of one core: {share:.2%} at {UPDATES_A_SECOND} a second"
    )


@pytest.fixture
def theme(qtbot: QtBot) -> Theme:
    theme = Theme(resources_dir() / "themes")
    theme.set_mode("light")
    return theme


@pytest.mark.timeout(900)
def test_decoding_is_as_fast_with_the_strip_in_sight(qtbot: QtBot, data_dir: Path, default_model: Path) -> None:
    """In turns, so that whatever else the machine does falls on all of them; the same question each time."""
    data_dir.mkdir(parents=True, exist_ok=True)
    paths = DataPaths(data_dir)
    settings = Settings(language="en", theme="light", temperature=0.0, max_new_tokens=NEW_TOKENS)
    save_settings(paths.settings, settings)
    program = Program(qtbot, paths)
    window = program.window
    panel = MemoryPanel(
        program.engine,
        window.sidebar.model,
        window.changes,
        window.compressions,
        window.preferences,
        window.theme,
        window,
        is_busy=program.session.is_busy,
    )
    program.bridge.event_arrived.connect(panel.take)
    program.wait(ModelLoaded)
    ways = {"neither": (False, False), "strip": (True, False), "strip and panel": (True, True)}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, (has_strip, has_panel) in ways.items():
            window.meter.setVisible(has_strip)
            if has_panel:
                panel.open()
            else:
                panel.close()
            done = sum(isinstance(event, SnapshotSaved) for event in program.events)
            window.controller.open(None)
            program.send(long_message(2) + " Tell the whole story.")
            program.wait(SnapshotSaved, done + 1)
            qtbot.waitUntil(lambda: not window.page.composer.is_busy, timeout=WAIT_MS)
            finished = [event for event in program.events if isinstance(event, Finished)][-1]
            if number and finished.statistics.decode_tps is not None:  # the first round warms up
                speeds[name].append(finished.statistics.decode_tps)
    panel.close()
    program.close()
    print()
    for name, found in speeds.items():
        ratios = [one / other for one, other in zip(found, speeds["neither"], strict=True)]
        print(
            f"{name:16} {statistics.median(found):6.1f} tok/s (median of {ROUNDS}),"
            f" {statistics.median(ratios):.3f} times the speed of neither (median of pairs)"
        )
