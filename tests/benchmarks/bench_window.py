"""How the window feels: visible how soon, and the longest time its thread did not run, phase by phase."""

from __future__ import annotations

import os
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
START = """
import sys, time
began = float(sys.argv[2])
from PySide6.QtCore import QCoreApplication, QEvent, QObject, QTimer
from PySide6.QtWidgets import QApplication
class Watch(QObject):
    def eventFilter(self, watched, event):
        if event.type() == QEvent.Type.Paint and watched.isWindow() is False and not hasattr(self, "done"):
            self.done = True
            print(f"{time.time() - began:.3f}", flush=True)
            QTimer.singleShot(0, QCoreApplication.instance().quit)
        return False
watch = Watch()
original = QApplication.exec
def run(*args):
    QCoreApplication.instance().installEventFilter(watch)
    return original()
QApplication.exec = run
from app.__main__ import main
sys.exit(main(["--data-dir", sys.argv[1]]))
"""


def test_the_window_is_visible_within_a_second(data_dir: Path, default_model: Path) -> None:
    times = []
    for _ in range(5):
        process = subprocess.run(
            [sys.executable, "-c", START, str(data_dir), str(time.time())],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "QT_QPA_PLATFORM": os.environ.get("QT_QPA_PLATFORM", "offscreen")},
        )
        times.append(float(process.stdout.split()[0]))
    print(f"\nwindow painted after {sorted(times)[len(times) // 2]:.2f} s (median), {max(times):.2f} s (worst of 5)")


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
