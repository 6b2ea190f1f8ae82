"""The stamp decides whether a run costs nothing or an installation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import venv_setup
from progress import Reporter, SetupError
from venv_setup import VirtualEnvironment


class RecordingReporter(Reporter):
    """Runs nothing; `fails` makes the next program fail as pip would."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "bootstrap.log", is_terminal=False)
        self.programs: list[list[str]] = []
        self.fails = False

    def run(self, words, argv, *, cwd, env=None):
        self.programs.append(list(argv))
        if self.fails:
            raise SetupError(f"{words} failed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    return folder


@pytest.fixture
def reporter(tmp_path: Path) -> RecordingReporter:
    return RecordingReporter(tmp_path)


@pytest.fixture(autouse=True)
def made_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real virtual environment in a tenth of a second: without pip, whose place the recorder takes."""
    real_create = VirtualEnvironment._create
    monkeypatch.setattr(
        VirtualEnvironment,
        "_create",
        lambda self, reporter, words, options: real_create(self, reporter, words, [*{*options, "--without-pip"}]),
    )


def test_a_second_run_starts_nothing(checkout: Path, reporter: RecordingReporter) -> None:
    VirtualEnvironment(checkout).prepare(reporter)
    assert len(reporter.programs) == 1
    assert reporter.programs[0][1:4] == ["-m", "pip", "install"]

    second = VirtualEnvironment(checkout)
    assert second.is_current()
    second.prepare(reporter)
    assert len(reporter.programs) == 1


def test_a_changed_pyproject_installs_again(checkout: Path, reporter: RecordingReporter) -> None:
    VirtualEnvironment(checkout).prepare(reporter)
    (checkout / "pyproject.toml").write_text("[project]\nname = 'y'\n")
    assert not VirtualEnvironment(checkout).is_current()
    VirtualEnvironment(checkout).prepare(reporter)
    assert len(reporter.programs) == 2


def test_an_interrupted_installation_is_not_taken_for_done(checkout: Path, reporter: RecordingReporter) -> None:
    reporter.fails = True
    with pytest.raises(SetupError):
        VirtualEnvironment(checkout).prepare(reporter)
    assert not VirtualEnvironment(checkout).is_current()

    reporter.fails = False
    VirtualEnvironment(checkout).prepare(reporter)
    assert VirtualEnvironment(checkout).is_current()


def test_an_interrupted_change_is_not_undone_by_going_back(checkout: Path, reporter: RecordingReporter) -> None:
    """pyproject A installed, B interrupted, back to A: the environment is half B."""
    VirtualEnvironment(checkout).prepare(reporter)
    before = (checkout / "pyproject.toml").read_text()
    (checkout / "pyproject.toml").write_text("[project]\nname = 'b'\n")
    reporter.fails = True
    with pytest.raises(SetupError):
        VirtualEnvironment(checkout).prepare(reporter)
    (checkout / "pyproject.toml").write_text(before)
    assert not VirtualEnvironment(checkout).is_current()


def test_a_moved_checkout_installs_again(checkout: Path, reporter: RecordingReporter) -> None:
    VirtualEnvironment(checkout).prepare(reporter)
    moved = checkout.rename(checkout.parent / "moved")
    assert not VirtualEnvironment(moved).is_current()
    VirtualEnvironment(moved).prepare(reporter)
    assert VirtualEnvironment(moved).is_current()
    assert str(moved) in reporter.programs[-1][0]


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
def test_an_interpreter_that_went_away_is_replaced(checkout: Path, reporter: RecordingReporter) -> None:
    environment = VirtualEnvironment(checkout)
    environment.prepare(reporter)
    environment.python.unlink()
    environment.python.symlink_to("/nonexistent/python3")
    assert not environment.is_current()
    environment.prepare(reporter)
    assert environment.python.exists()


def test_missing_ensurepip_names_the_package(
    checkout: Path, reporter: RecordingReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venv_setup.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(SetupError, match=rf"apt install python3\.{sys.version_info[1]}-venv"):
        VirtualEnvironment(checkout).prepare(reporter)


def test_an_old_python_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert venv_setup.too_old_python() is None
    monkeypatch.setattr(venv_setup.sys, "version_info", (3, 10, 4, "final", 0))
    sentence = venv_setup.too_old_python()
    assert sentence is not None
    assert "3.11 or newer" in sentence
    assert "this is 3.10" in sentence
