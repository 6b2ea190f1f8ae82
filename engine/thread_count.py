"""How many threads compute, one for each physical core that this process may use, and how they wait. No torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import psutil

_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")  # of a container that was given a share of the processors
_SPINS = "10000"  # about half a millisecond: longer than the pauses within a pass


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads (GNU's, as torch has them) sleep soon after a pass. Before torch is loaded.

    They would spin for some milliseconds, on processors that other programs wait for: beside busy ones Ember then reads
    several times slower, alone as fast. What the user chose stays.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = _SPINS


def pick_thread_count() -> int:
    """The number for this machine and process."""
    quota = ""
    with contextlib.suppress(OSError):
        quota = _QUOTA_FILE.read_text("ascii")
    is_bound = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if is_bound else os.cpu_count() or 1
    return thread_count(psutil.cpu_count(logical=False), allowed, quota, os.environ)


def thread_count(physical_cores: int | None, allowed_cpus: int, quota: str, environment: Mapping[str, str]) -> int:
    """What the user asked OpenMP for, else the physical cores; never more than the process is allowed.

    physical_cores: None where the system does not tell. quota: what Linux's `cpu.max` says, "microseconds period" or
    "max period". OMP_NUM_THREADS may be a list, one number a level of nesting: the first counts.
    """
    most = max(1, min(allowed_cpus, _quota_cpus(quota) or allowed_cpus))
    asked = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return min(int(asked), most)
    return min(physical_cores or most, most)


def _quota_cpus(quota: str) -> int | None:
    """Whole processors that the quota gives, at least one; None without a quota."""
    time_us, _, period_us = quota.strip().partition(" ")
    if not time_us.isdecimal() or not period_us.isdecimal() or int(period_us) == 0:
        return None
    return max(1, int(time_us) // int(period_us))
