"""Imports what the first code block and the first formula would otherwise wait for, in a thread, once all is quiet.

A lexer of Pygments takes 30 to 90 ms to import, what draws formulas 200 to 300: on the window's thread that is seen.
"""

from __future__ import annotations

import threading

from pygments.lexers import get_lexer_by_name

_LANGUAGES = ("python", "javascript", "c++", "bash", "json", "html", "sql", "rust", "go", "java")


def warm_up() -> threading.Thread:
    """Start; the thread ends by itself, and with the program."""
    thread = threading.Thread(target=_import_all, name="warm-up", daemon=True)
    thread.start()
    return thread


def _import_all() -> None:
    for language in _LANGUAGES:
        get_lexer_by_name(language)
    import ui.transcript.maths_engine  # noqa: F401, PLC0415 - that it is imported here, and not at the start, is the point
