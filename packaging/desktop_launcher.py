"""Puts Ember where people double-click: the applications menu and the desktop, with its icon; and takes it away again.

Linux is tested. The Windows shortcut and the macOS command file are small, written from the documentation, untested.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import freedesktop_entry
from progress import SetupError

if TYPE_CHECKING:
    from progress import Reporter

ENTRY_NAME = "ember.desktop"
WINDOW_CLASS = "Ember"  # what Qt tells X11; Wayland matches by the name of the entry, ember.desktop


def install(checkout: Path, python: Path, reporter: Reporter) -> None:
    """Idempotent: running it again, from this or a moved checkout, replaces what was there."""
    argv = [str(python), str(checkout / "packaging" / "bootstrap.py"), "launch"]
    if sys.platform == "win32":
        _install_windows(checkout, argv, reporter)
    elif sys.platform == "darwin":
        _install_macos(argv, reporter)
    else:
        _install_freedesktop(checkout, argv, reporter)


def remove(reporter: Reporter) -> None:
    """Removes what `install` made. Conversations and models stay."""
    if sys.platform == "win32":
        places = [windows_desktop() / "Ember.lnk", _start_menu() / "Ember.lnk"]
    elif sys.platform == "darwin":
        places = [Path.home() / "Desktop" / "Ember.command"]
    else:
        places = [data_home() / "applications" / ENTRY_NAME, *_installed_icons()]
        if desktop := desktop_folder():
            places.append(desktop / ENTRY_NAME)
    removed = [place for place in places if place.is_file()]
    for place in removed:
        place.unlink()
        reporter.say(f"Removed {place}")
    if not removed:
        reporter.say("There was no launcher.")


def data_home() -> Path:
    """XDG_DATA_HOME; the specification says that a relative one is ignored."""
    configured = os.environ.get("XDG_DATA_HOME", "")
    return Path(configured) if configured.startswith("/") else Path.home() / ".local" / "share"


def desktop_folder() -> Path | None:
    """The user's desktop folder, whatever its name in their language; None when there is none."""
    if shutil.which("xdg-user-dir") is None:
        folder = Path.home() / "Desktop"
    else:
        told = subprocess.run(["xdg-user-dir", "DESKTOP"], capture_output=True, text=True, check=False)
        folder = Path(told.stdout.strip() or "/nonexistent")
    # A user who wants no desktop folder has it set to the home folder.
    return folder if folder.is_dir() and folder != Path.home() else None


def _install_freedesktop(checkout: Path, argv: list[str], reporter: Reporter) -> None:
    try:
        text = freedesktop_entry.render(argv, WINDOW_CLASS)
    except ValueError as error:
        raise SetupError(f"{error}; move the checkout to another folder") from error
    entry = data_home() / "applications" / ENTRY_NAME
    _write(entry, text)
    _validate(entry)
    reporter.say(f"In the applications menu: {entry}")
    for icon in _install_icons(checkout / "resources" / "icons"):
        reporter.say(f"Icon: {icon}")
    if desktop := desktop_folder():
        copy = desktop / ENTRY_NAME
        _write(copy, text)
        copy.chmod(0o755)
        _trust(copy)
        reporter.say(f"On the desktop: {copy}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _validate(entry: Path) -> None:
    if shutil.which("desktop-file-validate") is None:
        return
    done = subprocess.run(["desktop-file-validate", str(entry)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"the launcher {entry} is not valid, please report this: {done.stdout.strip()}")


def _install_icons(icons: Path) -> list[Path]:
    """ember.svg and every ember_SIZE.png into the hicolor theme."""
    hicolor = data_home() / "icons" / "hicolor"
    installed = []
    for source in sorted(icons.glob("ember_*.png")):
        size = source.stem.rpartition("_")[2]
        if size.isdigit():
            installed.append(_copy(source, hicolor / f"{size}x{size}" / "apps" / "ember.png"))
    if (icons / "ember.svg").is_file():
        installed.append(_copy(icons / "ember.svg", hicolor / "scalable" / "apps" / "ember.svg"))
    if installed:
        os.utime(hicolor)  # desktops look at this time to see that their icon cache is old
    return installed


def _installed_icons() -> list[Path]:
    return sorted((data_home() / "icons" / "hicolor").glob("*/apps/ember.*"))


def _copy(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return target


def _trust(copy: Path) -> None:
    """GNOME and Xfce start an entry on the desktop only when it is marked; without gio the first click asks."""
    if shutil.which("gio") is None:
        return
    checksum = hashlib.sha256(copy.read_bytes()).hexdigest()
    for key, value in (("metadata::trusted", "true"), ("metadata::xfce-exe-checksum", checksum)):
        subprocess.run(["gio", "set", "-t", "string", str(copy), key, value], capture_output=True, check=False)


def windows_desktop() -> Path:
    return Path(_powershell("[Environment]::GetFolderPath('Desktop')"))


def _start_menu() -> Path:
    return Path(_powershell("[Environment]::GetFolderPath('Programs')"))


def _install_windows(checkout: Path, argv: list[str], reporter: Reporter) -> None:
    # pythonw: no console window.
    program = str(Path(argv[0]).with_name("pythonw.exe"))
    for folder in (windows_desktop(), _start_menu()):
        link = folder / "Ember.lnk"
        script = (
            "$s = (New-Object -ComObject WScript.Shell).CreateShortcut($env:EMBER_LINK);"
            "$s.TargetPath = $env:EMBER_PROGRAM; $s.Arguments = $env:EMBER_ARGUMENTS;"
            "$s.WorkingDirectory = $env:EMBER_FOLDER;"
            "if (Test-Path $env:EMBER_ICON) { $s.IconLocation = $env:EMBER_ICON }; $s.Save()"
        )
        _powershell(
            script,
            EMBER_LINK=str(link),
            EMBER_PROGRAM=program,
            EMBER_ARGUMENTS=subprocess.list2cmdline(argv[1:]),
            EMBER_FOLDER=str(checkout),
            EMBER_ICON=str(checkout / "resources" / "icons" / "ember.ico"),
        )
        reporter.say(f"Shortcut: {link}")


def _powershell(script: str, **variables: str) -> str:
    """Values go in as environment variables, so that no path can become part of the script."""
    done = subprocess.run(
        ["powershell", "-NoProfile", "-NonInteractive", "-Command", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    if done.returncode != 0:
        raise SetupError(f"the shortcut cannot be made: {done.stderr.strip()}")
    return done.stdout.strip()


def _install_macos(argv: list[str], reporter: Reporter) -> None:
    command = Path.home() / "Desktop" / "Ember.command"
    _write(command, f"#!/bin/sh\nexec {shlex.join(argv)}\n")
    command.chmod(0o755)
    with contextlib.suppress(OSError):
        subprocess.run(["xattr", "-d", "com.apple.quarantine", str(command)], capture_output=True, check=False)
    reporter.say(f"On the desktop: {command}")
