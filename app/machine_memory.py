"""The memory of this machine, other programs counted."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Bytes of host memory; `free_bytes` is what programs can still get without swapping."""

    free_bytes: int
    total_bytes: int


def read_machine_memory() -> MachineMemory:
    host = psutil.virtual_memory()
    return MachineMemory(host.available, host.total)
