"""Imports one file without stopping the window: read in a thread, stored chat by chat in the GUI thread.

SQLite is the GUI thread's, so storing is done in slices between events. All of the file is kept or nothing: what was
stored is taken away again when a later slice fails, when the window closes in the middle, or, where the program was
killed, at its next start. Whatever goes wrong, the job ends, with one failure to tell.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import cast

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.conversation_store import ConversationStore
from app.errors import AppError
from app.exchange.failures import unreadable
from app.exchange.import_file import ImportResult, import_file
from app.exchange.incoming import IncomingConversation

_SLICE_S = 0.03
_POLL_MS = 20
_PAUSE_MS = 5  # between slices: the window's own events come first
_log = logging.getLogger(__name__)


class ImportJob(QObject):
    progressed = Signal(int, int)  # chats stored, of so many
    finished = Signal(object)  # ImportResult
    failed = Signal(object)  # AppError

    def __init__(self, store: ConversationStore, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store = store
        self._path = path
        self._answer: SimpleQueue[tuple[_Collector, ImportResult] | Exception] = SimpleQueue()
        self._chats: Sequence[IncomingConversation] = ()
        self._num_stored = 0
        self._result: ImportResult | None = None
        self._timer = QTimer(self, interval=_POLL_MS)
        self._timer.timeout.connect(self._on_timeout)

    @property
    def is_running(self) -> bool:
        return self._timer.isActive()

    def start(self) -> None:
        threading.Thread(target=self._read, name="ember-import", daemon=True).start()
        self._timer.start()

    def stop(self) -> None:
        """Nothing of the file is kept."""
        if self.is_running:
            self._timer.stop()
            self._take_back()

    def _read(self) -> None:
        """In the thread. It touches neither the store nor a widget."""
        collector = _Collector()
        try:
            result = import_file(cast(ConversationStore, collector), self._path)
        except Exception as error:  # noqa: BLE001  # told, or raised, in the GUI thread
            self._answer.put(error)
        else:
            self._answer.put((collector, result))

    @Slot()
    def _on_timeout(self) -> None:
        if self._result is None:
            try:
                answer = self._answer.get_nowait()
            except Empty:
                return
            self._begin(answer)
        else:
            self._store_slice()

    def _begin(self, answer: tuple[_Collector, ImportResult] | Exception) -> None:
        if isinstance(answer, Exception):
            self._end_with(answer)
            return
        try:
            self._store.take_back_import()  # what an earlier file has left, if it could not be taken back then
        except AppError as error:
            self._end_with(error)
            return
        collector, self._result = answer
        self._chats = collector.chats
        self._timer.setInterval(_PAUSE_MS)

    def _store_slice(self) -> None:
        until = time.monotonic() + _SLICE_S
        try:
            while self._num_stored < len(self._chats) and time.monotonic() < until:
                self._store_next()
        except Exception as error:  # noqa: BLE001  # a bug must not stop the files that follow
            self._take_back()
            self._end_with(error)
            return
        self.progressed.emit(self._num_stored, len(self._chats))
        if self._num_stored == len(self._chats) and self.is_running:
            self._timer.stop()
            self.finished.emit(self._result)

    def _store_next(self) -> None:
        with self._store.transaction():
            self._store.add_imported([self._chats[self._num_stored]], is_part=True)
            if self._num_stored + 1 == len(self._chats):
                self._store.finish_import()
        self._num_stored += 1

    def _end_with(self, error: Exception) -> None:
        self._timer.stop()
        if not isinstance(error, AppError):
            _log.error("A file cannot be imported", exc_info=error)
            error = unreadable(self._path, str(error) or type(error).__name__)
        self.failed.emit(error)

    def _take_back(self) -> None:
        try:
            self._store.take_back_import()
        except AppError as error:
            _log.warning("An import cannot be taken back before the next start: %s", error)


class _Collector:
    """Stands in for the store while a file is read: it keeps what is to be stored."""

    def __init__(self) -> None:
        self.chats: Sequence[IncomingConversation] = ()

    def add_imported(self, chats: Sequence[IncomingConversation]) -> None:
        self.chats = chats
