"""What every test gets: no screen needed, a data folder of its own, and no thread left behind."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["QT_QPA_PLATFORM"] = "offscreen"  # before anything imports Qt
os.environ.pop("EMBER_DATA_DIR", None)  # no test may touch the tester's own conversations
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every program that a test starts compiles all sources again
if "PYTEST_XDIST_WORKER" in os.environ:  # a thread that waits leaves its core to the others; read when torch is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_JOIN_S = 5.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest goes first, in whole files: no worker is left with it when the others are done."""
    long = {item.path for item in items if item.get_closest_marker("slow") or item.path.parent.name == "end_to_end"}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def pointer_is_far_away() -> None:
    """Where a test of another file left it, it would enter the next test's window."""
    gui = sys.modules.get("PySide6.QtGui")
    if gui is not None and gui.QGuiApplication.instance() is not None:
        gui.QCursor.setPos(10_000, 10_000)


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    """Threads of Ember's own, and any that would keep the process alive, have to end with the test."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + _JOIN_S
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in before and (not thread.daemon or thread.name.startswith("ember-"))
    ]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    alive = [thread.name for thread in left if thread.is_alive()]
    assert not alive, f"threads left behind: {alive}"
