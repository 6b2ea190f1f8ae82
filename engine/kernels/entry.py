"""The decorator of kernels that Python calls: compiled once, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from engine.kernels.machine_code import machine_code_dir


def entry(function: Callable[..., Any]) -> Any:
    """Compile `function` when it is first called, or load it from `machine_code_dir`."""
    numba.config.CACHE_DIR = str(machine_code_dir())  # read when the function is decorated
    return numba.njit(nogil=True, cache=True)(function)
