"""How many threads compute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.thread_count import pick_thread_count, thread_count


@pytest.mark.parametrize(
    ("physical", "allowed", "quota", "asked", "expected"),
    [
        (4, 8, "", "", 4),  # two threads a core: the cores count
        (8, 3, "", "", 3),  # bound to some processors
        (None, 6, "", "", 6),  # a system that does not tell its cores
        (8, 16, "max 100000\n", "", 8),  # a container without a limit
        (8, 16, "250000 100000\n", "", 2),  # one that was given 2.5 processors
        (8, 16, "50000 100000\n", "", 1),  # or half of one
        (8, 16, "garbage", "", 8),
        (8, 16, "100000 0", "", 8),
        (4, 8, "", "2", 2),  # the user asked for fewer
        (4, 8, "", "6", 6),  # or more than the cores
        (4, 8, "", "64", 8),  # but not for more than there are
        (4, 8, "", " 3,1", 3),  # a list of nested levels
        (4, 8, "", "0", 4),
        (4, 8, "", "many", 4),
        (0, 0, "", "", 1),
    ],
)
def test_threads(physical: int | None, allowed: int, quota: str, asked: str, expected: int) -> None:
    environment = {"OMP_NUM_THREADS": asked} if asked else {}
    assert thread_count(physical, allowed, quota, environment) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound here")
def test_a_process_bound_to_one_processor_computes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert pick_thread_count() == 1
    finally:
        os.sched_setaffinity(0, before)


_SAYS_HOW_IT_WAITS = """
import ctypes, os, sys
from engine.protocol.config import EngineConfig
from engine.worker import EngineWorker
from engine.protocol.commands import LoadModel
from engine.protocol.config import Weights
from pathlib import Path
events = []
worker = EngineWorker(EngineConfig(Path("kv"), Path("converted")), events.append)
worker.start()
worker.submit(LoadModel("load", Path("nowhere"), Weights.BITS_16))
worker.shutdown(120)
assert "torch" in sys.modules
import torch
torch.ones(64, 64) @ torch.ones(64, 64)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP")
@pytest.mark.parametrize(
    ("chosen", "spins"), [({}, "10000"), ({"OMP_WAIT_POLICY": "passive"}, "0"), ({"GOMP_SPINCOUNT": "777"}, "777")]
)
def test_the_threads_wait_briefly_unless_the_user_chose(tmp_path: Path, chosen: dict[str, str], spins: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment |= chosen | {"OMP_DISPLAY_ENV": "VERBOSE", "PYTHONPATH": str(Path.cwd())}
    ran = subprocess.run(
        [sys.executable, "-c", _SAYS_HOW_IT_WAITS],
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"GOMP_SPINCOUNT = '{spins}'" in ran.stderr, "what the library itself says once it is loaded"
