"""Where the machine code of the kernels is kept.

Compiling takes seconds, so the code is kept in the user's cache folder, one folder for each state of the sources: numba
itself only notices changes of the file that an entry function is in. No numba here.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

import platformdirs

_HERE = Path(__file__).parent
_NOT_COMPILED = ("__init__.py", "compile.py", "packing.py", "machine_code.py", "pace.py")


@cache
def machine_code_dir() -> Path:
    """The folder for these very sources at this very place: numba tells places apart. NUMBA_CACHE_DIR overrides it."""
    if folder := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(folder)
    digest = hashlib.sha256(os.fsencode(_HERE))
    for file in sorted(_HERE.glob("*.py")):
        if file.name not in _NOT_COMPILED:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return Path(platformdirs.user_cache_dir("ember", appauthor=False)) / "kernels" / digest.hexdigest()[:16]
