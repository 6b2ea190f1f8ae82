"""Nothing is cut off at any usual scale, on a small screen, in both languages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCREEN = {"screens": [{"name": "small", "x": 0, "y": 0, "width": 1366, "height": 768, "dpr": 1}]}


@pytest.mark.parametrize("scale", [1, 1.25, 1.5, 2])
def test_nothing_is_cut_off(scale: float, tmp_path: Path) -> None:
    (tmp_path / "screen.json").write_text(json.dumps(SCREEN))
    environment = os.environ | {
        "QT_QPA_PLATFORM": f"offscreen:configfile={tmp_path / 'screen.json'}",
        "QT_SCALE_FACTOR": str(scale),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.ui.scale_check", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    assert answer["scale"] == scale
    assert len(answer["found"]) > 20
    assert {part: faults for part, faults in answer["found"].items() if faults} == {}
