"""Imports what the first code block and the first formula would otherwise wait for, in a thread, once all is quiet.

A lexer of Pygments takes 30 to 90 ms to import, what draws formulas 200 to 300: on the window's thread that is seen.
"""

from __future__ import annotations

import logging
import threading
from importlib import import_module

_log = logging.getLogger(__name__)
_LEXERS = ("python", "javascript", "c_cpp", "shell", "data", "html", "sql", "rust", "go", "jvm")
_MODULES = (*(f"pygments.lexers.{name}" for name in _LEXERS), "ui.transcript.maths_engine")


def warm_up() -> threading.Thread:
    """Start; the thread ends by itself, and with the program."""
    thread = threading.Thread(target=_import_all, name="warm-up", daemon=True)
    thread.start()
    return thread


def _import_all() -> None:
    for name in _MODULES:
        try:
            import_module(name)
        except ImportError as error:
            _log.warning("%s cannot be imported: %s", name, error)
