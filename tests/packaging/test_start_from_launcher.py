"""A double click on what `make desktop` made: Exec is started on a real X server and the window shows."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import desktop_launcher
import pytest
from progress import Reporter
from venv_setup import VirtualEnvironment

CHECKOUT = Path(__file__).resolve().parents[2]
PYTHON = VirtualEnvironment(CHECKOUT).python
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only"),
    pytest.mark.skipif(not all(map(shutil.which, ("Xvfb", "xdotool"))), reason="needs Xvfb and xdotool"),
    pytest.mark.skipif(not VirtualEnvironment(CHECKOUT).is_current(), reason="needs a checkout set up by bootstrap.py"),
]


@pytest.fixture
def display() -> Iterator[str]:
    reader, writer = os.pipe()
    with subprocess.Popen(
        ["Xvfb", "-displayfd", str(writer), "-screen", "0", "1280x900x24", "-nolisten", "tcp"],
        pass_fds=[writer],
        stderr=subprocess.DEVNULL,
    ) as server:
        os.close(writer)
        with os.fdopen(reader) as told:
            number = told.readline().strip()
        assert number, "Xvfb did not start"
        yield f":{number}"
        server.terminate()


def key_of(entry: Path, key: str) -> str:
    (value,) = [line.partition("=")[2] for line in entry.read_text().splitlines() if line.startswith(f"{key}=")]
    return value


def test_a_double_click_shows_the_window(tmp_path: Path, display: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("HOME", str(tmp_path))
    desktop_launcher.install(CHECKOUT, PYTHON, Reporter(tmp_path / "log", is_terminal=False))
    entry = tmp_path / "share/applications/ember.desktop"

    # As a desktop session does it: its own environment, the user's home as the folder, nothing of this checkout.
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("QT_", "PYTHON"))}
    variables |= {"DISPLAY": display, "EMBER_DATA_DIR": str(tmp_path / "data")}
    # Quotes inside Exec are a shell's when the path has no odd characters; test_desktop_launcher.py has those.
    argv = ["/bin/sh", "-c", f"exec {key_of(entry, 'Exec')}"]
    with subprocess.Popen(argv, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as ember:
        try:
            search = ["xdotool", "search", "--sync", "--onlyvisible", "--class", f"^{key_of(entry, 'StartupWMClass')}$"]
            found = subprocess.run(search, env=variables, capture_output=True, text=True, timeout=60, check=True)
            window = found.stdout.split()[0]
            owner = subprocess.run(
                ["xdotool", "getwindowpid", window], env=variables, capture_output=True, text=True, check=True
            )
            assert int(owner.stdout) == ember.pid  # the set-up program became the window's program
        finally:
            ember.send_signal(signal.SIGTERM)
            _, errors = ember.communicate(timeout=60)
    assert ember.returncode == 0, errors
    assert "Traceback" not in errors
