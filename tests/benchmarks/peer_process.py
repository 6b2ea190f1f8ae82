"""Runs one engine of `make peers` in a fresh process and takes what it told, even if it did not come to the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.peer_job import Job

_CHECKOUT = Path(__file__).parents[2]


def measure(module: str, job: Job, timeout_s: float) -> tuple[dict[str, Any], str | None]:
    """What was measured, empty if nothing was, and what went wrong, if anything did."""
    argv = [sys.executable, "-W", "ignore", "-m", f"tests.benchmarks.{module}"]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_CHECKOUT
    )
    try:
        out, err = process.communicate(job.to_json(), timeout_s)
        error = None if process.returncode == 0 else _last_line(err) or f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        error = f"not done after {timeout_s:.0f} s"
        process.kill()
        out, _ = process.communicate()
    finally:
        if process.poll() is None:  # Ctrl+C: nothing may go on measuring behind us
            process.kill()
            process.wait()
    found = last_result(out)
    return found, error or found.get("restart", {}).get("error")


def compile_now() -> None:
    """Ember's kernels, which the set-up compiles; at once done where they are."""
    subprocess.run([sys.executable, "-m", "engine.kernels.compile", "--wait"], check=False, cwd=_CHECKOUT)


def last_result(output: str) -> dict[str, Any]:
    """The last line that is a JSON object; libraries may write between."""
    for line in reversed(output.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def _last_line(text: str) -> str:
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "")
