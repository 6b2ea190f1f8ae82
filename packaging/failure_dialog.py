"""A sentence shown to someone who started Ember with a double click and has no terminal to read."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys

TITLE = "Ember"
# The first one found shows it. `notify-send` does not wait, the others do.
LINUX_DIALOGS = (
    ("zenity", ["--error", "--no-markup", "--title", TITLE, "--text"]),
    ("kdialog", ["--title", TITLE, "--error"]),
    ("xmessage", ["-center", "-title", TITLE]),
    ("notify-send", ["--urgency=critical", TITLE]),
)


def show_failure(sentence: str) -> bool:
    """Whether anything could show it; the sentence is in the log in any case."""
    if sys.platform == "win32":
        ctypes.windll.user32.MessageBoxW(None, sentence, TITLE, 0x10)
        return True
    if sys.platform == "darwin":
        script = "on run argv\ndisplay alert item 1 of argv message item 2 of argv as critical\nend run"
        return subprocess.call(["osascript", "-e", script, TITLE, sentence]) == 0
    for program, options in LINUX_DIALOGS:
        if shutil.which(program) and subprocess.call([program, *options, sentence]) == 0:
            return True
    return False
