"""The real process: what is imported when, one window for one folder, and an orderly end. No model is loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.conversation_store import ConversationStore
from app.paths import DataPaths
from app.settings import Settings, load_settings, save_settings
from app.single_instance import raise_first_instance
from engine.protocol.commands import Role

ROOT = Path(__file__).resolve().parents[2]
START_MS = 60_000  # a busy machine, not a wish

WATCH = """
import sys
import engine.worker, ui.main_window

class Worker(engine.worker.EngineWorker):
    def start(self):
        print("engine", "torch" in sys.modules, flush=True)
        super().start()

class Window(ui.main_window.MainWindow):
    def paintEvent(self, event):
        print("painted", "torch" in sys.modules, self.isVisible(), flush=True)
        super().paintEvent(event)

engine.worker.EngineWorker = Worker
ui.main_window.MainWindow = Window
from app.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def paths(data_dir: Path) -> DataPaths:
    """A data folder whose model does not exist, so that no test waits for torch."""
    paths = DataPaths(data_dir)
    save_settings(paths.settings, Settings(model="no-such-model"))
    return paths


@contextmanager
def window(paths: DataPaths, *command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *(command or ("-m", "app")), "--data-dir", str(paths.data_dir)],
        cwd=ROOT,
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


def test_the_window_is_painted_before_the_engine_starts_and_torch_is_imported(paths):
    with window(paths, "-c", WATCH) as process:
        assert process.stdout is not None
        lines = []
        while (line := process.stdout.readline()) and "engine" not in line:
            lines.append(line)
        assert lines[0] == "painted False True\n"
        assert line == "engine False\n"
        process.kill()


def test_a_second_start_raises_the_first_window_and_ends_well(qtbot, paths):
    with window(paths) as first:
        qtbot.waitUntil(lambda: raise_first_instance(paths), timeout=START_MS)
        with window(paths) as second:
            _, err = second.communicate()
            assert (second.returncode, err) == (0, "")
        assert first.poll() is None, "the first lives on"
        first.send_signal(signal.SIGINT)
        assert first.wait() == 0
    ConversationStore(paths.database).close()
    assert load_settings(paths.settings).model == "no-such-model"


def test_calls_of_the_command_line_respect_an_open_window(qtbot, paths):
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "app", "--data-dir", str(paths.data_dir), *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    with window(paths) as first:
        qtbot.waitUntil(lambda: raise_first_instance(paths), timeout=START_MS)
        read = call("conversations", "--json")
        assert (read.returncode, read.stdout) == (0, '{"conversations": []}\n')
        written = call("ask", "Hello")
        assert (written.returncode, written.stdout) == (5, "")
        assert "Another Ember is using" in written.stderr
        first.kill()


def test_a_window_that_was_killed_leaves_nothing_in_the_way(qtbot, paths):
    with window(paths) as process:
        qtbot.waitUntil(lambda: raise_first_instance(paths), timeout=START_MS)
        process.kill()
        process.wait()
    with window(paths) as process:
        qtbot.waitUntil(lambda: raise_first_instance(paths), timeout=START_MS)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_damaged_database_is_one_sentence_and_no_window(paths):
    paths.database.write_bytes(b"<html>")
    with window(paths) as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (4, "")
    assert err.startswith("ember: Ember cannot read ")
    assert err.count("\n") == 1
    assert paths.database.read_bytes() == b"<html>"


def test_replies_cut_off_are_closed_when_the_window_opens(qtbot, paths):
    from app.conversation import MessageState

    store = ConversationStore(paths.database)
    conversation = store.create_conversation()
    store.add_message(conversation.id, Role.ASSISTANT, "half", state=MessageState.STREAMING)
    with window(paths) as process:
        qtbot.waitUntil(lambda: raise_first_instance(paths), timeout=START_MS)
        assert store.messages(conversation.id)[0].state is MessageState.COMPLETE
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    store.close()


@pytest.mark.parametrize("arguments", [["--help"], ["ask", "--help"], ["models", "add", "--help"]], ids=" ".join)
def test_help_is_printed_in_any_locale(arguments):
    result = subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: ember")
