"""Whether the kernels are compiled for this processor, and compiling them: `python -m engine.kernels.compile`.

It runs in a process of its own, because compiling holds the interpreter lock and with it the window.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import filelock

from engine.kernels.machine_code import machine_code_dir

BUSY = 3
_MARK = "complete"
_WAIT_S = 300.0
_KEPT_S = 30 * 24 * 3600.0


def has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


def is_compiled() -> bool:
    """Whether the kernels load from disk at once."""
    return has_numba() and _mark().is_file()


def compile_now() -> None:
    """Compile every entry for the types it is called with; then tidy away what has not been used for long."""
    from engine.kernels import team, unpack  # noqa: PLC0415 - they import numba

    team.compile_entries()
    unpack.compile_entries()
    mark = _mark()
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        os.utime(mark.parent)
        for folder in mark.parent.parent.iterdir():
            if time.time() - folder.stat().st_mtime > _KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)


def start_compiling(*options: str) -> subprocess.Popen[bytes] | None:
    """Compile in a process of its own, of low priority unless `--wait`; None where none can be started."""
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "engine.kernels.compile", *options],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},  # these sources
        )
    except OSError:
        return None


def compile_and_wait(limit_s: float = _WAIT_S) -> bool:
    """For what is of no use without the kernels: compile them now, or wait for who does; whether they are there."""
    until = time.monotonic() + limit_s
    while has_numba() and not is_compiled() and time.monotonic() < until:
        process = start_compiling("--wait")
        if process is None:
            break
        try:
            if process.wait(until - time.monotonic()) != 0:
                break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            break
    return is_compiled()


def _mark() -> Path:
    import llvmlite.binding  # noqa: PLC0415 - 0.05 s, only where kernels are asked for

    return machine_code_dir() / f"{_MARK}-{llvmlite.binding.get_host_cpu_name()}"


def main(arguments: list[str]) -> int:
    """Command line entry: does nothing when all is compiled; BUSY while another process compiles, unless `--wait`."""
    if not has_numba() or is_compiled():
        return 0
    if hasattr(os, "nice") and "--wait" not in arguments:
        os.nice(10)
    folder = machine_code_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / "compiling.lock", timeout=_WAIT_S if "--wait" in arguments else 0):
            if not is_compiled():
                compile_now()
    except filelock.Timeout:
        return BUSY
    except OSError as error:
        print(f"The kernels cannot be kept in {folder} ({error.strerror}); replies are slower.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
