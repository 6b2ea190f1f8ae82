"""Memory as the system sees it, other programs counted."""

from __future__ import annotations

import ctypes
import sys

import psutil

from engine.protocol.events import MemoryReading

_PROCESS = psutil.Process()


def return_freed_memory() -> None:
    """Let the C library give freed memory back to the system, which it does by itself only at the end of its heap.

    Linux with glibc; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(ctypes.c_size_t(0))


def read_memory(device_type: str) -> MemoryReading:
    """Host memory always; device memory only where the model runs on CUDA."""
    host = psutil.virtual_memory()
    device_free: int | None = None
    device_total: int | None = None
    if device_type == "cuda":
        import torch  # noqa: PLC0415 - only ever reached on the inference thread, long after torch is loaded

        device_free, device_total = torch.cuda.mem_get_info()
        device_free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # what torch keeps for its next use
    return MemoryReading(_PROCESS.memory_info().rss, host.available, host.total, device_free, device_total)
