"""What runs in the chats, from its request to its end: the page, the meter and the notices follow. GUI thread.

Invariant: the session has stored an event, and `LiveReplies` has not refused it, before it comes here.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from app.chat_session import ChatSession
from engine.protocol.events import (
    Compressed,
    EngineStopped,
    Failed,
    Finished,
    ModelLoaded,
    SnapshotNotSaved,
    TextArrived,
    ViewMoved,
)
from ui.chat_controller import ChatController
from ui.live_replies import LiveReplies
from ui.memory.compression_words import CompressionFailed
from ui.meter.meter_feed import MeterFeed
from ui.notices import Notices
from ui.state_words import StateWords
from ui.transcript.transcript import Transcript


class TurnWatch(QObject):
    turn_ended = Signal()

    def __init__(
        self,
        session: ChatSession,
        controller: ChatController,
        transcript: Transcript,
        meter: MeterFeed,
        live: LiveReplies,
        notices: Notices,
        words: StateWords,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._controller = controller
        self._transcript = transcript
        self._meter = meter
        self._live = live
        self._notices = notices
        self._words = words

    def reply_requested(self, conversation_id: str, request_id: str, text_before: str = "") -> None:
        """The session was asked for a reply; Send is Stop there until it has come. `text_before`: it goes on."""
        self._live.reply_requested(conversation_id, request_id, text_before)
        self._notices.clear(conversation_id)
        self._notices.clear(None)
        if conversation_id == self._controller.current:
            self._controller.set_busy(True)
        self._meter.reply_requested(conversation_id)
        self._words.refresh()

    def compression_requested(self, conversation_id: str, request_id: str) -> None:
        """Its cache is about to be compressed or brought back; Send is Stop there until that has ended."""
        self._live.reply_requested(conversation_id, request_id)
        self._notices.clear(conversation_id)
        if conversation_id == self._controller.current:
            self._controller.set_busy(True, is_reply=False)
        self._meter.refresh()
        self._words.refresh()

    def compression_ended(self, conversation_id: str, outcome: Compressed | CompressionFailed) -> None:
        self._notices.put(conversation_id, outcome)
        if conversation_id == self._controller.current:
            self._controller.set_busy(False)
            self._controller.cost_changed.emit()
        self._words.refresh()

    def take(self, event: object) -> None:
        current = self._controller.current
        match event:
            case TextArrived() if event.conversation_id == current:
                self._transcript.append_text(event.text)
            case Finished():
                self._on_finished(event)
            case Failed() if event.conversation_id is not None:
                self._on_failed(event, event.conversation_id)
            case ModelLoaded():
                self._controller.cost_changed.emit()
            case ViewMoved() if event.conversation_id == current:
                self._controller.refresh()
            case SnapshotNotSaved():
                model = self._session.model
                self._notices.take_not_saved(event, model.cannot_resume_reason if model else None)
            case EngineStopped():
                self._live.stop_all()
                self._controller.set_busy(False)
                self._transcript.finish_live(None, None, None)

    def _on_finished(self, event: Finished) -> None:
        self._notices.take_finished(event)
        if event.conversation_id == self._controller.current:
            before = self._live.text_before(event.request_id)
            self._transcript.finish_live(
                before + event.text, event.statistics, event.finish_reason, self._controller.last_message()
            )
            self._controller.set_busy(False)
            self._controller.cost_changed.emit()
        self._controller.conversations_changed.emit()
        self.turn_ended.emit()

    def _on_failed(self, event: Failed, conversation_id: str) -> None:
        self._notices.put(conversation_id, event)
        if conversation_id == self._controller.current:
            self._controller.show_again()
        self._controller.conversations_changed.emit()
        self.turn_ended.emit()
