"""What a measurement ran on: the processor, its cores and memory, and the versions of everything that counts."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import psutil

BUSY_PERCENT = 15.0  # other programs that take more than this disturb a measurement
_PACKAGES = ("ember-chat", "torch", "transformers", "bitsandbytes", "numba", "llama-cpp-python")
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16")
_CPUINFO = Path("/proc/cpuinfo")
_CHECKOUT = Path(__file__).parents[2]


def describe(threads: int) -> dict[str, object]:
    """For a report; holds no name of a person, a folder or a network."""
    return {
        "cpu": cpu_name(),
        "cpu_features": _features(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := version_of(name))},
        "commit": _commit(),
    }


def cpu_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def busy_percent(seconds: float = 0.5) -> float:
    """How much of the processor is in use now: asked while we do nothing, what other programs take."""
    return float(psutil.cpu_percent(seconds))


def _features() -> list[str]:
    known = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    return [flag for flag in _FLAGS if flag in known]


def _cpuinfo(name: str) -> str:
    """The first value of that name, as Linux tells; empty elsewhere."""
    if not _CPUINFO.is_file():
        return ""
    lines = (line.partition(":") for line in _CPUINFO.read_text(encoding="utf-8").splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _commit() -> str | None:
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True, cwd=_CHECKOUT
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
