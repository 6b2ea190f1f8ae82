"""A failed step says its cause in one sentence and where the whole output is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from progress import Reporter, SetupError, likely_cause


def test_a_step_prints_one_line_and_keeps_the_output_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(tmp_path / "log", is_terminal=False)
    reporter.run("Installing", [sys.executable, "-c", "print('noise')"], cwd=tmp_path)
    out = capsys.readouterr().out
    assert out.startswith("Installing ... ")
    assert out.endswith(" s\n")
    assert "noise" not in out
    assert "noise" in (tmp_path / "log").read_text()


def test_a_failure_names_the_cause_of_this_step_and_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("OSError: No space left on device\n")  # an earlier run's trouble
    reporter = Reporter(log, is_terminal=False)
    program = "import sys; sys.exit('Temporary failure in name resolution')"
    with pytest.raises(SetupError, match="package index cannot be reached") as raised:
        reporter.run("Installing", [sys.executable, "-c", program], cwd=tmp_path)
    assert str(log) in str(raised.value)
    assert "disk is full" not in str(raised.value)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("ERROR: [Errno 28] No space left on device", "the disk is full"),
        ("NewConnectionError(...)\nERROR: No matching distribution found for torch", "cannot be reached"),
        ("ERROR: No matching distribution found for torch<2.14", "no suitable build"),
        ("PermissionError: [Errno 13] Permission denied: '/x'", "cannot be written"),
        ("one\nsomething nobody foresaw\n\n", "something nobody foresaw"),
    ],
)
def test_known_causes(output: str, words: str) -> None:
    assert words in likely_cause(output)
