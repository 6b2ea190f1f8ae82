"""Reads files away from the GUI thread, one at a time; the window hears of each in its own time.

The threads never touch Qt: results wait in a queue that a timer looks into while anything is awaited, so it does not
matter when the window goes. A thread ends with its file, and soon when nobody waits for that any more.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.attachments import ReadingEndedError, read_attachment, shown_name
from app.conversation import Attachment
from app.errors import AttachmentError, FileUnreadableError

_LOOK_MS = 20
ReadFile = Callable[..., Attachment]  # the shape of `read_attachment`
_Results = queue.SimpleQueue[tuple[int, Attachment | AttachmentError]]


class FileReader(QObject):
    """`done` carries the id that `read` returned, and the Attachment or the AttachmentError."""

    done = Signal(int, object)

    def __init__(self, parent: QObject | None = None, *, read: ReadFile = read_attachment) -> None:
        super().__init__(parent)
        self._read = read
        self._ids = count(1)
        self._awaited: dict[int, threading.Event] = {}  # set: called off
        self._results: _Results = queue.SimpleQueue()
        self._one_at_a_time = threading.Lock()
        self._timer = QTimer(self, interval=_LOOK_MS)
        self._timer.timeout.connect(self._on_look_due)
        awaited = self._awaited  # not `self`, which is gone by then
        self.destroyed.connect(lambda: _call_off(awaited))

    def read(self, path: Path) -> int:
        """Ask for a file. Returns an id."""
        job_id = next(self._ids)
        self._awaited[job_id] = threading.Event()
        work = (self._read, path, self._awaited[job_id].is_set, self._one_at_a_time, self._results, job_id)
        threading.Thread(target=_work, args=work, name="ember-file", daemon=True).start()
        self._timer.start()
        return job_id

    def cancel(self, job_id: int) -> None:
        """Nobody waits for it any more; nothing is told of it."""
        called_off = self._awaited.pop(job_id, None)
        if called_off is not None:
            called_off.set()

    def cancel_all(self) -> None:
        for job_id in list(self._awaited):
            self.cancel(job_id)

    @Slot()
    def _on_look_due(self) -> None:
        while not self._results.empty():
            job_id, result = self._results.get()
            if self._awaited.pop(job_id, None) is not None:
                self.done.emit(job_id, result)
        if not self._awaited:
            self._timer.stop()


def _call_off(awaited: dict[int, threading.Event]) -> None:
    for called_off in awaited.values():
        called_off.set()


def _work(
    read: ReadFile,
    path: Path,
    is_called_off: Callable[[], bool],
    one_at_a_time: threading.Lock,
    results: _Results,
    job_id: int,
) -> None:
    name, reason = shown_name(path), "an unexpected fault, which is in the log"
    result: Attachment | AttachmentError = FileUnreadableError(
        f"{name} cannot be read ({reason}); try again, or choose a copy.", name=name, reason=reason
    )
    try:
        with one_at_a_time:
            result = read(path, is_cancelled=is_called_off)
    except AttachmentError as error:
        result = error
    except ReadingEndedError:
        return
    finally:
        results.put((job_id, result))
