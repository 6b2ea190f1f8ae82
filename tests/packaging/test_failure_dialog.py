"""Started with a double click there is no terminal to read: the sentence is shown, and kept in the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import failure_dialog
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")


def fake(folder: Path, name: str, code: int) -> None:
    program = folder / name
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name}" "$@" >> "{folder}/shown"\nexit {code}\n')
    program.chmod(0o755)


def test_the_first_program_that_works_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "zenity", 1)  # there, but without a display
    fake(tmp_path, "notify-send", 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert failure_dialog.show_failure("Install libegl1 & <start> again.")
    shown = (tmp_path / "shown").read_text().splitlines()
    assert shown[0] == "zenity"
    assert shown[-3:] == ["--urgency=critical", "Ember", "Install libegl1 & <start> again."]


def test_nothing_to_show_it_with_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not failure_dialog.show_failure("Words.")


def test_a_failed_launch_is_shown_and_kept(tmp_path: Path) -> None:
    """The whole way in a process of its own, in a folder that looks like a checkout whose pip fails."""
    checkout = tmp_path / "checkout"
    (checkout / "packaging").mkdir(parents=True)
    for source in (CHECKOUT / "packaging").glob("*.py"):
        (checkout / "packaging" / source.name).write_bytes(source.read_bytes())
    (checkout / "pyproject.toml").write_text("this is no TOML")
    fake(tmp_path, "zenity", 0)
    done = subprocess.run(
        [sys.executable, checkout / "packaging/bootstrap.py", "launch"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "failed" in done.stderr
    sentence = done.stderr.strip()
    assert (tmp_path / "shown").read_text().splitlines()[-1] == sentence
    assert sentence in (checkout / ".venv/bootstrap.log").read_text()
