"""Compiled kernels of the CPU: what a Llama-like model's small steps are made of.

Compiling takes seconds, so the machine code is kept in the user's cache folder, one folder for each state of the
sources: numba itself only notices changes of the file that an entry function is in.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs

_HERE = Path(__file__).parent
_NOT_COMPILED = ("__init__.py", "compile.py", "packing.py")


def cache_dir() -> Path:
    """Where the machine code of these very sources is kept."""
    digest = hashlib.sha256()
    for file in sorted(_HERE.glob("*.py")):
        if file.name in _NOT_COMPILED:
            continue
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return Path(platformdirs.user_cache_dir("ember", appauthor=False)) / "kernels" / digest.hexdigest()[:16]


os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_dir()))  # numba reads it when it is imported
