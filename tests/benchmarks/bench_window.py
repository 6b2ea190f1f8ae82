"""How the window feels: visible and answering how soon, and how long its thread did not run, phase by phase.

make bench ARGS="tests/benchmarks/bench_window.py -k double_click"
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QObject, QTimer
from pytestqt.qtbot import QtBot

from app.paths import DataPaths
from engine.protocol.events import Finished, ModelLoaded, ModelLoading, PhaseChanged, SnapshotSaved
from tests.end_to_end.conftest import long_message
from tests.end_to_end.test_window import Program

BEAT_MS = 2
START_ROUNDS = 5


def start(data_dir: Path, message: str = "") -> dict[str, float]:
    """One start of the real program in a process of its own; seconds by what was reached."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.start_probe", str(data_dir), message],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "QT_QPA_PLATFORM": os.environ.get("QT_QPA_PLATFORM", "offscreen")},
    )
    marks: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return marks


@pytest.mark.timeout(600)
def test_from_the_double_click_to_the_first_words(data_dir: Path, default_model: Path, tmp_path: Path) -> None:
    """A warm start, and a message that is sent as soon as the window takes one; each time in a new chat."""
    start(data_dir)  # what the first start ever does, and files into memory
    runs = []
    for number in range(START_ROUNDS):
        own = tmp_path / f"start-{number}"
        shutil.copytree(data_dir, own)
        runs.append(start(own, "What is a harbour?"))
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    totals = [run["first text visible"] for run in runs]
    painted = [run["window painted"] for run in runs]
    print(
        f"\nfirst words visible {statistics.median(totals):.2f} s after the start (median),"
        f" {max(totals):.2f} s (worst of {START_ROUNDS}); window painted after {statistics.median(painted):.2f} s,"
        f" {max(painted):.2f} s at worst"
    )
    before = 0.0
    for name, reached in sorted(medians.items(), key=lambda item: item[1]):
        print(f"  {reached:6.2f} s  (+{reached - before:.3f})  {name}")
        before = reached
    assert medians["window painted"] < medians["model loaded"] < medians["first text visible"]


class Heartbeat(QObject):
    """Measures the longest gap between beats of the GUI thread, by what the engine is doing."""

    def __init__(self, phase: Callable[[], str]) -> None:
        super().__init__()
        self.worst: dict[str, float] = {}
        self._phase = phase
        self._last = time.perf_counter()
        self._timer = QTimer(self, interval=BEAT_MS)
        self._timer.timeout.connect(self._on_beat)
        self._timer.start()

    def _on_beat(self) -> None:
        now = time.perf_counter()
        phase = self._phase()
        self.worst[phase] = max(self.worst.get(phase, 0.0), now - self._last)
        self._last = now

    def stop(self) -> None:
        self._timer.stop()


@pytest.mark.timeout(600)
def test_the_gui_thread_keeps_beating(qtbot: QtBot, data_dir: Path, default_model: Path) -> None:
    sys.setswitchinterval(0.0005)
    program: Program | None = None

    def phase() -> str:
        for event in reversed(program.events if program else []):
            match event:
                case ModelLoading():
                    return f"load: {event.stage}"
                case PhaseChanged():
                    return str(event.phase)
                case ModelLoaded() | SnapshotSaved():
                    return "idle"
        return "start"

    program = Program(qtbot, DataPaths(data_dir))
    heartbeat = Heartbeat(phase)
    program.wait(ModelLoaded)
    program.send(long_message(60))
    program.wait(PhaseChanged)
    qtbot.waitUntil(lambda: phase() == "answering", timeout=300_000)
    qtbot.wait(4_000)
    program.window.page.composer.button.click()
    program.wait(Finished)
    program.wait(SnapshotSaved)
    heartbeat.stop()
    program.close()
    print("\nlongest gap of the GUI thread:")
    for name, gap in heartbeat.worst.items():
        print(f"  {name:20} {gap * 1e3:6.1f} ms")


@pytest.mark.timeout(600)
def test_saving_does_not_delay_the_next_turn(default_model: Path, tmp_path: Path) -> None:
    """Time to the first token of a turn sent while 90 MB are being written, against one sent at rest."""
    from engine.protocol.commands import ChatMessage, Role
    from engine.protocol.config import EngineConfig
    from tests.engine.conftest import Engine, user

    engine = Engine(EngineConfig(tmp_path / "kv", tmp_path / "converted"))
    engine.load(default_model)
    messages: list[ChatMessage] = [user(long_message(125))]
    engine.reply("a", messages, max_new_tokens=4)
    rows: dict[bool, list[float]] = {True: [], False: []}
    for round_ in range(12):
        is_saving = round_ % 2 == 0
        if is_saving:
            engine.reply("a", [*messages, user("x")], max_new_tokens=1, is_saved=False)
        else:
            engine.reply("a", [*messages, user("x")], max_new_tokens=1)
        follow = [*messages, user("x"), ChatMessage(Role.ASSISTANT, "y"), user("and then?")]
        statistics = engine.reply("a", follow, max_new_tokens=2).statistics
        assert statistics.ttft_s is not None
        rows[is_saving].append(statistics.ttft_s)
    engine.close()
    rest, saving = (sorted(rows[key]) for key in (False, True))
    print(
        f"\nfirst token at rest {rest[len(rest) // 2] * 1e3:.0f} ms, while saving"
        f" {saving[len(saving) // 2] * 1e3:.0f} ms (medians); worst {rest[-1] * 1e3:.0f} and {saving[-1] * 1e3:.0f} ms"
    )
