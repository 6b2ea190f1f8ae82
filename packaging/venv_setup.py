"""The checkout's own virtual environment: made, filled and recognised as up to date by a stamp that is written last."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from progress import SetupError

if TYPE_CHECKING:
    from pathlib import Path

    from progress import Reporter

MINIMUM_PYTHON = (3, 11)


class VirtualEnvironment:
    """`.venv` in the checkout. The stamp names what it was made from: pyproject.toml, the Python, the folder's path."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self.path = checkout / ".venv"
        self._stamp_path = self.path / "ember-stamp"

    @property
    def python(self) -> Path:
        return self.path / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def is_current(self) -> bool:
        """Reads two small files and starts nothing, so that a second run costs nothing."""
        if not self.python.exists():
            return False
        try:
            return self._stamp_path.read_text(encoding="utf-8") == self._stamp()
        except OSError:
            return False

    def prepare(self, reporter: Reporter) -> None:
        """Make what is missing. Interrupted anywhere, the next call finds no stamp and goes on."""
        if self.is_current():
            return
        self._stamp_path.unlink(missing_ok=True)
        if self._runs():
            # A moved checkout: the packages are as good as before, the paths in pyvenv.cfg and the scripts are not.
            self._create(reporter, "Refreshing the virtual environment", ["--without-pip"])
        else:
            self._create(reporter, "Making a virtual environment in .venv", ["--clear"])
        reporter.run(
            "Installing Ember and its libraries (several minutes the first time)",
            [str(self.python), "-m", "pip", "install", "--no-input", "--editable", ".[dev]"],
            cwd=self._checkout,
        )
        self._write_stamp()

    def _create(self, reporter: Reporter, words: str, options: list[str]) -> None:
        if missing := missing_venv_support():
            raise SetupError(missing)
        # Not sys.executable: started from inside .venv it would be the very file that is being replaced.
        base = getattr(sys, "_base_executable", None) or sys.executable
        # The output is kept in memory: --clear would delete a log inside .venv under our hands.
        with reporter.step(words):
            done = subprocess.run(
                [base, "-m", "venv", *options, str(self.path)], capture_output=True, text=True, check=False
            )
        reporter.note(done.stdout + done.stderr)
        if done.returncode != 0:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise SetupError(f"{words} failed: {''.join(last)} (the whole output is in {reporter.log_path})")

    def _runs(self) -> bool:
        """Whether the interpreter starts, has pip, and is the one the folder was made for."""
        if not self.python.exists():
            return False
        program = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
        try:
            done = subprocess.run(
                [str(self.python), "-c", program], capture_output=True, text=True, check=False, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0 and done.stdout.strip() == self._version()

    def _version(self) -> str:
        """Major and minor version from pyvenv.cfg, "" when there is none."""
        try:
            lines = (self.path / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
        except OSError:
            return ""
        for line in lines:
            key, _, value = line.partition("=")
            if key.strip() in ("version", "version_info"):
                return ".".join(value.strip().split(".")[:2])
        return ""

    def _stamp(self) -> str:
        digest = hashlib.sha256((self._checkout / "pyproject.toml").read_bytes()).hexdigest()
        return f"pyproject {digest}\npython {self._version()}\ncheckout {self._checkout}\n"

    def _write_stamp(self) -> None:
        partial = self._stamp_path.with_suffix(".partial")
        partial.write_text(self._stamp(), encoding="utf-8")
        partial.replace(self._stamp_path)


def too_old_python() -> str | None:
    """The sentence for a Python that is too old, or None."""
    if sys.version_info[:2] >= MINIMUM_PYTHON:
        return None
    return (
        f"Ember needs Python 3.11 or newer and this is {sys.version_info[0]}.{sys.version_info[1]}; "
        "start it with a newer one, for example: python3.12 packaging/bootstrap.py run (or make run PYTHON=python3.12)"
    )


def missing_venv_support() -> str | None:
    """Debian and Ubuntu ship Python without ensurepip; the sentence that says so, or None."""
    if all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        return None
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return (
        "Python's venv module is incomplete here; install it with "
        f"'sudo apt install python{version}-venv' (Debian, Ubuntu) or your system's package for venv and run it again"
    )
