"""What the engine is doing for each conversation, gathered from its events. Qt-free; the GUI thread's.

A chat whose cache is being compressed is treated as one that is answering, with a reply that has no text.
The store lags up to a second behind a reply that streams; this does not, so a chat that is opened meanwhile is whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.protocol.events import (
    Compressed,
    Failed,
    Finished,
    LoadStage,
    ModelLoaded,
    ModelLoading,
    Phase,
    PhaseChanged,
    SnapshotNotSaved,
    SnapshotSaved,
    StatisticsChanged,
    TextArrived,
)
from ui.meter.meter_reading import EngineState


@dataclass(slots=True)
class LiveReply:
    """`text` begins with `text_before` where a reply that was cut short goes on. `behind`: the measurement of the cache
    lab that was asked for before it, by its request id.
    """

    request_id: str
    text_before: str = ""
    text: str = ""
    phase: PhaseChanged | None = None
    statistics: StatisticsChanged | None = None
    behind: str | None = None


class LiveReplies:
    def __init__(self) -> None:
        self._replies: dict[str, LiveReply] = {}
        self._loading: ModelLoading | None = None
        self._load_request: str | None = ""  # "": the start-up's load, whose id the window does not know
        self._saving: set[str] = set()
        self._ended: LiveReply | None = None  # the last one
        self.has_model = False
        self.measurement: str | None = None  # of the cache lab, at work or waiting for it: the request id
        self.is_measurement_ending = False  # it was told to stop

    def of(self, conversation_id: str | None) -> LiveReply | None:
        return self._replies.get(conversation_id) if conversation_id else None

    @property
    def is_loading(self) -> bool:
        return self._load_request is not None

    def load_requested(self, request_id: str) -> None:
        self._load_request = request_id
        self._loading = None

    def text_before(self, request_id: str) -> str:
        """What the reply that has just ended already said before its request."""
        return self._ended.text_before if self._ended is not None and self._ended.request_id == request_id else ""

    def reply_requested(self, conversation_id: str, request_id: str, text_before: str = "") -> None:
        self._replies[conversation_id] = LiveReply(request_id, text_before, text_before, behind=self.measurement)
        self._saving.discard(conversation_id)

    def forget(self, conversation_id: str) -> None:
        self._replies.pop(conversation_id, None)
        self._saving.discard(conversation_id)

    def stop_all(self) -> None:
        """The engine has ended."""
        self._replies.clear()
        self._saving.clear()
        self._loading = self._load_request = self.measurement = None
        self.has_model = False

    def take(self, event: object) -> bool:
        """False: the event is of no request that is awaited, and is to be ignored."""
        match event:
            case ModelLoading():
                if self._load_request not in (event.request_id, ""):
                    return False
                self._load_request = event.request_id
                self._loading = event
            case ModelLoaded():
                self.has_model = True
                if self._load_request in (event.request_id, ""):
                    self._loading = self._load_request = None
            case SnapshotSaved() | SnapshotNotSaved():
                self._saving.discard(event.conversation_id)
            case PhaseChanged(phase=Phase.SAVING):
                self._saving.add(event.conversation_id)
            case PhaseChanged() | StatisticsChanged() | TextArrived():
                return self._take_for_reply(event)
            case Finished() | Compressed():
                return self._end(event.conversation_id, event.request_id)
            case Failed():
                return self._take_failure(event)
        return True

    def state_for(self, conversation_id: str | None) -> EngineState:
        """What the meter says while `conversation_id` is shown."""
        own = self.of(conversation_id)
        reply = own or next(iter(self._replies.values()), None)
        is_running = reply is not None and reply.phase is not None  # a load that was asked for waits behind it
        if self._loading is not None or (self.is_loading and not is_running):
            stage = self._loading.stage if self._loading else LoadStage.IMPORTING
            fraction = self._loading.fraction if self._loading else None
            return EngineState(Phase.LOADING, stage, fraction, has_model=self.has_model)
        if reply is None:
            phase = Phase.SAVING if conversation_id in self._saving else None
            return EngineState(phase, is_measuring=self.measurement is not None, has_model=self.has_model)
        return self._reply_state(reply, is_elsewhere=own is None)

    def _reply_state(self, reply: LiveReply, is_elsewhere: bool) -> EngineState:
        event = reply.phase
        if event is None:
            is_measuring = self.measurement is not None and reply.behind == self.measurement
            return EngineState(
                is_waiting=True, is_elsewhere=is_elsewhere, is_measuring=is_measuring, has_model=self.has_model
            )
        fraction = None
        if event.done_tokens is not None and event.total_tokens:
            fraction = event.done_tokens / event.total_tokens
        return EngineState(
            event.phase,
            fraction=fraction,
            remaining_s=event.remaining_s,
            is_thinking=event.phase is Phase.ANSWERING and reply.text == reply.text_before,
            is_elsewhere=is_elsewhere,
            has_model=self.has_model,
        )

    def _take_for_reply(self, event: PhaseChanged | StatisticsChanged | TextArrived) -> bool:
        reply = self._replies.get(event.conversation_id)
        if reply is None or reply.request_id != event.request_id:
            return False
        match event:
            case PhaseChanged():
                reply.phase = event
            case StatisticsChanged():
                reply.statistics = event
            case TextArrived():
                reply.text += event.text
        return True

    def _end(self, conversation_id: str, request_id: str) -> bool:
        reply = self._replies.get(conversation_id)
        if reply is None or reply.request_id != request_id:
            return False
        self._ended = self._replies.pop(conversation_id)
        return True

    def _take_failure(self, event: Failed) -> bool:
        if event.conversation_id is not None:
            return self._end(event.conversation_id, event.request_id)
        if self._load_request in (event.request_id, ""):
            self._loading = self._load_request = None
            self.has_model = False
            return True
        return not event.request_id  # no model was found to load; another id: of a load replaced meanwhile, or of none
