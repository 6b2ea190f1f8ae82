"""One Ember for one data folder, and a second start that brings the first window forward."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.errors import AlreadyRunningError, ReadOnlyError
from app.instance_lock import InstanceLock
from app.paths import DataPaths
from app.single_instance import InstanceServer, raise_first_instance, server_name

HOLD = """
import sys
from pathlib import Path
from app.instance_lock import InstanceLock
from app.paths import DataPaths
with InstanceLock(DataPaths(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(data_dir: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(data_dir)],
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_folder_is_held_by_one_process_and_free_once_it_was_killed(data_dir):
    with holder(data_dir) as process:
        with pytest.raises(AlreadyRunningError, match="--data-dir"), InstanceLock(DataPaths(data_dir)):
            pass
        process.kill()
        process.wait()
    with InstanceLock(DataPaths(data_dir)):
        pass


def test_a_call_waits_briefly_for_one_that_ends(data_dir):
    with holder(data_dir) as process:
        started = time.monotonic()
        with pytest.raises(AlreadyRunningError), InstanceLock(DataPaths(data_dir), wait_s=0.3):
            pass
        assert 0.3 <= time.monotonic() - started < 3
        assert process.stdin is not None
        process.stdin.close()
        with InstanceLock(DataPaths(data_dir), wait_s=30):
            pass


def test_the_lock_is_free_again_after_leaving(data_dir):
    for _ in range(2):
        with InstanceLock(DataPaths(data_dir)):
            assert (data_dir / "ember.lock").exists()


def test_another_folder_is_another_ember(data_dir, tmp_path):
    with InstanceLock(DataPaths(data_dir)), InstanceLock(DataPaths(tmp_path / "other")):
        pass


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ReadOnlyError), InstanceLock(DataPaths(tmp_path / "file" / "data")):
        pass


def test_a_second_start_raises_the_first_window(qtbot, data_dir):
    server = InstanceServer(DataPaths(data_dir))
    try:
        with qtbot.waitSignal(server.raise_asked):
            assert raise_first_instance(DataPaths(data_dir / ".." / data_dir.name))
    finally:
        server.close()


def test_without_a_first_window_there_is_nothing_to_raise(qtbot, data_dir):
    assert not raise_first_instance(DataPaths(data_dir))


def test_a_server_whose_process_was_killed_is_replaced(qtbot, data_dir):
    paths = DataPaths(data_dir)
    dead = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys; from PySide6.QtCore import QCoreApplication; from PySide6.QtNetwork import QLocalServer;"
            "a = QCoreApplication([]); s = QLocalServer(); print(s.listen(sys.argv[1]), flush=True); os._exit(0)",
            server_name(paths),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert dead.stdout == "True\n"
    server = InstanceServer(paths)
    try:
        with qtbot.waitSignal(server.raise_asked):
            assert raise_first_instance(paths)
    finally:
        server.close()


def test_folders_have_servers_of_their_own(tmp_path):
    assert server_name(DataPaths(tmp_path / "a")) != server_name(DataPaths(tmp_path / "b"))
