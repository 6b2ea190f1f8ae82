"""Which conversations' caches are being compressed or brought back. Used by `app.chat_session` only; its thread."""

from __future__ import annotations

from app.engine_port import EnginePort
from engine.protocol.commands import Compress, Undo
from engine.protocol.events import Compressed, EngineStopped, Event, Failed


class Compressions:
    """At most one a conversation; the engine does them in turn with the replies."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self._requests: dict[str, str] = {}  # by conversation id

    def is_running(self, conversation_id: str) -> bool:
        return conversation_id in self._requests

    def ask(self, command: Compress | Undo) -> None:
        self._requests[command.conversation_id] = command.request_id
        self._engine.submit(command)

    def stop(self, conversation_id: str) -> None:
        """The engine answers with `Failed`, or with `Compressed` where it was done already."""
        if request_id := self._requests.get(conversation_id):
            self._engine.cancel(request_id)

    def take(self, event: Event) -> None:
        match event:
            case Compressed() | Failed():
                ended = [one for one, request_id in self._requests.items() if request_id == event.request_id]
                for conversation_id in ended:
                    del self._requests[conversation_id]
            case EngineStopped():
                self._requests.clear()
