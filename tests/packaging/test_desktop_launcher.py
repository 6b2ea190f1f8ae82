"""`make desktop`: the entry is valid, survives odd folder names, and goes away again."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import desktop_launcher
import freedesktop_entry
import pytest
from progress import Reporter, SetupError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
ODD_FOLDERS = [
    "plain",
    "with space",
    "한글 폴더",
    'quote"d',
    "dollar$HOME",
    "back`tick`",
    "back\\slash",
    "50% off",
    "a'b",
]


def keys_of(entry: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(entry)
    return dict(parser["Desktop Entry"])


def argv_of(exec_value: str) -> list[str]:
    """What a desktop makes of Exec, step by step as the specification describes it (and unlike our own writer)."""
    value = exec_value.replace("\\\\", "\\")  # 1. the value is a string
    arguments = []
    for quoted, plain in re.findall(r'"((?:[^"\\]|\\.)*)"|([^\s"]+)', value):  # 2. quoting
        arguments.append(re.sub(r"\\(.)", r"\1", quoted) if quoted else plain)
    return [argument.replace("%%", "%") for argument in arguments]  # 3. field codes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own with a desktop folder in another language."""
    folder = tmp_path / "home"
    desktop = folder / "바탕화면"
    desktop.mkdir(parents=True)
    config = folder / ".config"
    config.mkdir()
    (config / "user-dirs.dirs").write_text('XDG_DESKTOP_DIR="$HOME/바탕화면"\n', encoding="utf-8")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "my checkout"
    icons = folder / "resources" / "icons"
    icons.mkdir(parents=True)
    (icons / "ember.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (icons / "ember_48.png").write_bytes(b"png")
    (icons / "search.svg").write_text("<svg/>")
    return folder


@pytest.fixture
def reporter(tmp_path: Path) -> Reporter:
    return Reporter(tmp_path / "log", is_terminal=False)


@pytest.mark.parametrize("name", ODD_FOLDERS)
def test_the_entry_starts_the_same_program_from_any_folder(name: str) -> None:
    argv = [f"/home/u/{name}/.venv/bin/python", f"/home/u/{name}/packaging/bootstrap.py", "launch"]
    keys = keys_of(freedesktop_entry.render(argv, "ember"))
    assert argv_of(keys["Exec"])[-3:] == argv
    assert keys["TryExec"].replace("\\\\", "\\") == argv[0]


@pytest.mark.timeout(10)
@pytest.mark.skipif(shutil.which("gio") is None, reason="needs gio")
@pytest.mark.parametrize("name", ODD_FOLDERS)
def test_glib_starts_it_from_any_folder(name: str, tmp_path: Path) -> None:
    """The judge is the library that GNOME and others start entries with, not our own reading of the specification."""
    program = tmp_path / name / "ember"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s|%s" "$0" "$1" > "{tmp_path}/started"\n', encoding="utf-8")
    program.chmod(0o755)
    entry = tmp_path / "probe.desktop"
    entry.write_text(freedesktop_entry.render([str(program), "an argument"], "ember"), encoding="utf-8")
    started = tmp_path / "started"
    os.mkfifo(started)  # reading it waits for the program
    with subprocess.Popen(["gio", "launch", str(entry)]) as gio:
        assert started.read_text(encoding="utf-8") == f"{program}|an argument"
    assert gio.returncode == 0


@pytest.mark.skipif(shutil.which("desktop-file-validate") is None, reason="needs desktop-file-utils")
def test_the_entry_is_valid(tmp_path: Path) -> None:
    entry = tmp_path / "ember.desktop"
    entry.write_text(freedesktop_entry.render(["/a b/python", "/a b/x.py", "launch"], "ember"), encoding="utf-8")
    done = subprocess.run(["desktop-file-validate", entry], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_path_with_a_line_break_is_refused(home: Path, reporter: Reporter) -> None:
    with pytest.raises(SetupError, match="line break"):
        desktop_launcher.install(Path("/a\nb"), Path("/a\nb/python"), reporter)


def test_install_and_remove(home: Path, checkout: Path, reporter: Reporter) -> None:
    desktop_launcher.install(checkout, Path(sys.executable), reporter)
    share = home / ".local/share"
    entry = share / "applications/ember.desktop"
    keys = keys_of(entry.read_text(encoding="utf-8"))
    assert argv_of(keys["Exec"]) == [sys.executable, f"{checkout}/packaging/bootstrap.py", "launch"]
    assert keys["Name[ko]"] == "엠버"
    icons = sorted(str(path.relative_to(share)) for path in (share / "icons").rglob("*") if path.is_file())
    assert icons == ["icons/hicolor/48x48/apps/ember.png", "icons/hicolor/scalable/apps/ember.svg"]

    desktop_launcher.install(checkout, Path(sys.executable), reporter)  # again: the same, nothing doubled
    desktop_launcher.remove(reporter)
    assert not [path for path in home.rglob("*ember*") if path.is_file()]


@pytest.mark.skipif(shutil.which("xdg-user-dir") is None, reason="needs xdg-user-dirs")
def test_the_copy_on_the_desktop_can_be_executed(home: Path, checkout: Path, reporter: Reporter) -> None:
    desktop_launcher.install(checkout, Path(sys.executable), reporter)
    copy = home / "바탕화면/ember.desktop"
    assert copy.stat().st_mode & stat.S_IXUSR


def test_a_home_that_is_its_own_desktop_gets_no_file(home: Path, checkout: Path, reporter: Reporter) -> None:
    (home / ".config/user-dirs.dirs").write_text('XDG_DESKTOP_DIR="$HOME/"\n')
    desktop_launcher.install(checkout, Path(sys.executable), reporter)
    assert not (home / "ember.desktop").exists()


def test_xdg_data_home_is_followed_and_a_relative_one_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/elsewhere")
    assert desktop_launcher.data_home() == Path("/elsewhere")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert desktop_launcher.data_home() == home / ".local/share"
    assert os.environ["HOME"] == str(home)
