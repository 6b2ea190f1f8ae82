"""Imports one file without stopping the window: read in a thread, stored chat by chat in the GUI thread.

SQLite is the GUI thread's, so storing is done in slices between events. All of the file is kept or nothing: what was
stored is taken away again when a later slice fails, or when the window closes in the middle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import cast

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.conversation_store import ConversationStore
from app.errors import AppError
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
        self._before: frozenset[str] = frozenset()
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
        if isinstance(answer, AppError):
            self._end_with(answer)
        elif isinstance(answer, Exception):
            self._timer.stop()
            raise answer
        else:
            collector, self._result = answer
            self._chats = collector.chats
            try:
                self._before = frozenset(one.id for one in self._store.conversations())
            except AppError as error:
                self._end_with(error)
                return
            self._timer.setInterval(_PAUSE_MS)

    def _store_slice(self) -> None:
        until = time.monotonic() + _SLICE_S
        try:
            while self._num_stored < len(self._chats) and time.monotonic() < until:
                chat = self._chats[self._num_stored]
                self._store.add_imported([chat])
                self._num_stored += 1
        except AppError as error:
            self._take_back()
            self._end_with(error)
            return
        self.progressed.emit(self._num_stored, len(self._chats))
        if self._num_stored == len(self._chats):
            self._timer.stop()
            self.finished.emit(self._result)

    def _end_with(self, error: AppError) -> None:
        self._timer.stop()
        self.failed.emit(error)

    def _take_back(self) -> None:
        """Delete the chats stored by now: those not there before that are alike in title, length and beginning."""
        stored = Counter(
            _fingerprint(one.title, len(one.messages), one.created_at) for one in self._chats[: self._num_stored]
        )
        try:
            for one in self._store.conversations():
                alike = {
                    _fingerprint(one.title, one.num_messages, one.created_at),
                    _fingerprint(one.title, one.num_messages, None),
                }
                own = next((each for each in alike if stored[each]), None)
                if one.id not in self._before and own is not None:
                    stored[own] -= 1
                    self._store.delete_conversation(one.id)
        except AppError as error:
            _log.warning("An import cannot be taken back: %s", error)


def _fingerprint(title: str, num_messages: int, created_at: datetime | None) -> tuple[str, int, datetime | None]:
    """`created_at` None: the file does not say."""
    return title, num_messages, created_at


class _Collector:
    """Stands in for the store while a file is read: it keeps what is to be stored."""

    def __init__(self) -> None:
        self.chats: Sequence[IncomingConversation] = ()

    def add_imported(self, chats: Sequence[IncomingConversation]) -> None:
        self.chats = chats
