"""Loads torch's large native library before Python imports it, so that the window keeps running meanwhile.

Loading it takes 0.2 to 0.3 s. Python's import does that with the interpreter lock held, and every thread stands still;
a call through ctypes gives the lock away (measured: longest gap of the window's thread 250 ms before, 34 ms after).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from pathlib import Path


def preload_torch() -> None:
    """Best effort, and only where libraries are loaded by `dlopen`; the import that follows works without it."""
    if sys.platform != "linux":
        return
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    with contextlib.suppress(AttributeError, OSError):
        dlopen = ctypes.CDLL(None).dlopen
        dlopen.restype = ctypes.c_void_p
        dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
        dlopen(os.fsencode(library), os.RTLD_NOW)
