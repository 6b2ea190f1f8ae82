"""The engine for one call of the command line: started, asked, listened to in the main thread, and ended in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from app.chat_session import ChatSession
from app.commands.call import Call
from app.commands.progress import Progress
from app.conversation_store import ConversationStore
from app.engine_port import engine_config
from app.errors import EngineFailedError, InterruptedCallError, StorageError
from engine.protocol.config import Weights
from engine.protocol.errors import ModelError
from engine.protocol.events import EngineStopped, Event, Failed, ModelLoaded

_POLL_S = 0.2  # on Windows a waiting main thread sees Ctrl+C only between waits
_SAVE_S = 15.0
_HURRY_S = 1.0
_Answer = TypeVar("_Answer")


class Interrupted:
    """Stands among the events where the user, or the system, asked the call to end."""


class EngineRun:
    """A context: the engine runs inside, and on leaving everything that came is kept.

    The first Ctrl+C (or SIGTERM) becomes an `Interrupted` among the events, a second one a KeyboardInterrupt.
    """

    def __init__(self, call: Call, store: ConversationStore) -> None:
        settings = call.settings()
        self._inbox: SimpleQueue[Event | Interrupted] = SimpleQueue()  # its put may be called from a signal handler
        self.engine = call.make_engine(engine_config(call.paths, settings), self._inbox.put)
        self.storage_errors: list[StorageError] = []
        self.session = ChatSession(store, self.engine, settings, on_storage_error=self.storage_errors.append)
        self.progress = Progress(call.err)
        self._library = None if getattr(call.arguments, "incognito", False) else call.library()  # keeps what loads took
        self.late_events: list[Event] = []
        self._is_interrupted = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._on_signal)
        self.engine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.clear()
        is_saving = self.session.model is not None and kind is not KeyboardInterrupt
        try:
            self.engine.shutdown(_SAVE_S if is_saving else _HURRY_S)
            self._take_late_events()
        finally:
            self.session.close()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def events(self) -> Iterator[Event | Interrupted | None]:
        """Everything that comes, in order, already kept by the session; None now and then while nothing comes."""
        while True:
            try:
                event = self._inbox.get(timeout=_POLL_S)
            except Empty:
                yield None
                continue
            if not isinstance(event, Interrupted):
                self.session.handle(event)
                if self._library is not None:
                    self._library.handle(event)
                self.progress.show(event)
            yield event
            if isinstance(event, EngineStopped):
                raise RuntimeError("the engine ended in the middle of a call")

    def load_now(self, call: Call, model: str, weights: Weights) -> None:
        """Load a model by name or path and wait for it. Raises ModelError, InterruptedCallError."""
        request_id = self.session.load_model(call.library().resolve(model), weights)
        try:
            self.answer(request_id, ModelLoaded)
        except EngineFailedError as error:
            raise ModelError(str(error)) from error

    def answer(self, request_id: str, kind: type[_Answer]) -> _Answer:
        """Wait for the answer to a request. Raises EngineFailedError, InterruptedCallError."""
        for event in self.events():
            if isinstance(event, Interrupted):
                raise InterruptedCallError("Interrupted.")
            if getattr(event, "request_id", None) != request_id:
                continue
            if isinstance(event, Failed):
                raise EngineFailedError(event.code, event.message)
            if isinstance(event, kind):
                return event
        raise AssertionError("events never end")

    def _take_late_events(self) -> None:
        while True:
            try:
                event = self._inbox.get_nowait()
            except Empty:
                return
            if not isinstance(event, Interrupted):
                self.session.handle(event)
                self.late_events.append(event)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        self._inbox.put(Interrupted())
