"""The real default model, and the program as a person starts it: new processes on one data folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.paths import resources_dir

TIMEOUT_S = 300  # a call takes 3 to 20 s; a busy machine may need ten times that


@dataclass(frozen=True)
class Ember:
    """`python -m app` on one data folder."""

    data_dir: Path
    prefix: tuple[str, ...] = ()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "app", "--data-dir", str(self.data_dir), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def run(self, *arguments: str, text: str = "", code: int = 0) -> str:
        """Standard output of a call that ends with `code`; with another code, its errors fail the test."""
        process = self.start(*arguments)
        out, err = process.communicate(text, timeout=TIMEOUT_S)
        assert process.returncode == code, err
        return out if code == 0 else err

    def json(self, *arguments: str, text: str = "") -> Any:
        return json.loads(self.run(*arguments, "--json", text=text))

    def ask(self, message: str, *arguments: str, tokens: int = 12) -> dict[str, Any]:
        return dict(self.json("ask", "--greedy", "--max-new-tokens", str(tokens), *arguments, "-", text=message))


@pytest.fixture(scope="session")
def default_model() -> Path:
    model = resources_dir() / "models" / "SmolLM2-135M-Instruct"
    if not (model / "config.json").is_file():
        pytest.fail("the default model is missing: run `make test` once, which fetches it")
    return model


@pytest.fixture
def ember(data_dir: Path, default_model: Path) -> Ember:
    return Ember(data_dir)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)


def long_message(num_sentences: int) -> str:
    """About 31 tokens a sentence, none like another."""
    return " ".join(
        f"On day {day} the ferry number {day * 7 % 13} left at {day % 24}:{day * 17 % 60:02d} with {day * 3 % 41}"
        " passengers, and the keeper wrote down the weather."
        for day in range(num_sentences)
    )
