"""One set-up of a checkout at a time: a file lock that the system drops when its holder ends, however it ends."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from progress import Reporter

POLL_S = 0.5


@contextmanager
def setup_lock(checkout: Path, reporter: Reporter) -> Iterator[None]:
    """Wait for another set-up of this checkout, then hold the lock. The file stays; the lock on it does not."""
    with (checkout / ".ember-setup.lock").open("w") as file:
        if not _try_lock(file):
            reporter.say("Another set-up of this checkout is running; waiting for it.")
            while not _try_lock(file):
                time.sleep(POLL_S)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
