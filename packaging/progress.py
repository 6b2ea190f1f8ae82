"""What the set-up tells: one short line a step with its time, everything else into a log. Standard library only."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

TICK_S = 1.0

NOT_OFFERED = (
    "the package index offers no suitable build for this Python and machine; "
    "Python 3.11 to 3.14 on 64-bit Linux, Windows or Apple silicon has them all"
)
# What pip or the system wrote -> what to do about it. The first match speaks: without a connection pip ends with
# "No matching distribution", so the connection is looked for before it.
KNOWN_CAUSES = (
    (("No space left on device", "not enough space on the disk"), "the disk is full; free some space and run it again"),
    (
        (
            "Failed to establish a new connection",
            "NewConnectionError",
            "NameResolutionError",
            "Temporary failure in name resolution",
            "Name or service not known",
            "getaddrinfo failed",
            "nodename nor servname provided",
            "Network is unreachable",
            "Connection refused",
            "Read timed out",
            "ConnectTimeoutError",
            "ProxyError",
        ),
        "the package index cannot be reached; connect to the internet (or set pip's proxy) and run it again",
    ),
    (("No matching distribution found", "Could not find a version that satisfies"), NOT_OFFERED),
    (("Permission denied", "Access is denied"), "a file cannot be written; check who owns this folder"),
)


class SetupError(Exception):
    """The set-up cannot go on; the message is one sentence that says what to do."""


class Reporter:
    """Prints the steps and keeps the log. On a terminal the running step shows its seconds."""

    def __init__(self, log_path: Path, *, is_terminal: bool | None = None) -> None:
        self.log_path = log_path
        self._is_terminal = sys.stdout.isatty() if is_terminal is None else is_terminal

    def say(self, sentence: str) -> None:
        print(sentence, flush=True)

    def note(self, text: str) -> None:
        """Into the log only."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("a", encoding="utf-8") as log:
            log.write(text.rstrip("\n") + "\n")

    @contextmanager
    def step(self, words: str) -> Iterator[None]:
        """A step without a program of its own."""
        started = time.monotonic()
        print(f"{words} ...", end="", flush=True)
        try:
            yield
        except BaseException:
            print(flush=True)
            raise
        print(f" {time.monotonic() - started:.1f} s", flush=True)

    def run(self, words: str, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        """Run a program as a step, its output into the log. Raises SetupError with the likely cause when it fails."""
        with self.step(words):
            before = self._log_size()
            code = self._run_into_log(words, argv, cwd, env)
            if code != 0:
                raise SetupError(f"{words} failed: {self._cause(before, argv)}")

    def _run_into_log(self, words: str, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None) -> int:
        self.note(f"\n== {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(argv)}")
        started = time.monotonic()
        with self.log_path.open("a", encoding="utf-8") as log:
            child = subprocess.Popen(
                list(argv), cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
            while True:
                try:
                    return child.wait(TICK_S)
                except subprocess.TimeoutExpired:
                    if self._is_terminal:
                        print(f"\r{words} ... {time.monotonic() - started:.0f} s", end="", flush=True)
                except BaseException:
                    child.terminate()
                    child.wait()
                    raise

    def _log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def _cause(self, start: int, argv: Sequence[str]) -> str:
        with self.log_path.open("rb") as log:
            log.seek(start)
            text = log.read().decode("utf-8", "replace")
        return f"{likely_cause(text, argv)} (the whole output is in {self.log_path})"


def likely_cause(output: str, argv: Sequence[str] = ()) -> str:
    """One clause for a failed program's output; the program's own last line when nothing is recognised."""
    for needles, words in KNOWN_CAUSES:
        if any(needle in output for needle in needles):
            return words
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("==")]
    return lines[-1] if lines else f"{argv[0] if argv else 'the program'} said nothing"
