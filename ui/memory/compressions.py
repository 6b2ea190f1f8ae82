"""Compressing a chat's memory and undoing it: when it can be done, asking how, and telling how it went. GUI thread."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt, Signal, Slot
from PySide6.QtWidgets import QWidget

from app.chat_session import ChatSession
from app.errors import AppError
from engine.protocol.events import CacheState, Compressed, EngineStopped, Failed
from ui.chat_controller import ChatController
from ui.live_replies import LiveReplies
from ui.memory.compress_dialog import CacheSizes, CompressChoice, CompressDialog
from ui.memory.compression_words import CompressionFailed
from ui.memory.precision_words import is_full
from ui.sidebar.conversation_model import ConversationModel
from ui.sidebar.warmth import Warmth
from ui.turn_watch import TurnWatch

_LEAST_RECENT, _MOST_RECENT, _RECENT_PART = 128, 512, 16  # tokens at the end that the engine keeps whole, about


class Compressions(QObject):
    """Invariant: `LiveReplies` and the session have taken an event before this does."""

    asked = Signal()
    ended = Signal()

    def __init__(
        self,
        session: ChatSession,
        controller: ChatController,
        watch: TurnWatch,
        live: LiveReplies,
        conversations: ConversationModel,
        window: QWidget,
    ) -> None:
        super().__init__(window)
        self._session = session
        self._controller = controller
        self._watch = watch
        self._live = live
        self._conversations = conversations
        self._window = window
        self._requests: set[str] = set()
        self.dialog: CompressDialog | None = None

    def can_compress(self, conversation_id: str | None) -> bool:
        """A model is there, something is kept of the chat, and nothing is being done in it."""
        return self._cache_at_rest(conversation_id) is not None

    def can_undo(self, conversation_id: str | None) -> bool:
        warmth = self._cache_at_rest(conversation_id)
        return warmth is not None and not is_full(warmth.precision)

    @Slot(str)
    def ask_how(self, conversation_id: str, window: QWidget | None = None) -> None:
        """Open the dialog, before `window` or the program's main one."""
        warmth, model = self._cache_at_rest(conversation_id), self._session.model
        if warmth is None or model is None:
            return
        title = self._conversations.title_of(conversation_id)
        dialog = CompressDialog(title, _sizes(warmth, model.kv_bytes_per_token), window or self._window)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.chosen.connect(lambda choice: self._compress(conversation_id, choice))
        dialog.destroyed.connect(self._on_dialog_destroyed)
        self.dialog = dialog
        dialog.open()

    @Slot(str)
    def undo(self, conversation_id: str) -> None:
        if not self.can_undo(conversation_id):
            return
        try:
            self._requested(conversation_id, self._session.cache.undo_compression(conversation_id))
        except AppError as error:
            self._controller.show_error(error)

    @Slot()
    def ask_how_current(self) -> None:
        if self._controller.current is not None:
            self.ask_how(self._controller.current)

    @Slot()
    def undo_current(self) -> None:
        if self._controller.current is not None:
            self.undo(self._controller.current)

    def take(self, event: object) -> bool:
        """Whether the event was the answer to a request of this; nobody else needs to hear of it then."""
        match event:
            case Compressed() if event.request_id in self._requests:
                self._end(event.conversation_id, event)
            case Failed() if event.request_id in self._requests and event.conversation_id is not None:
                self._end(event.conversation_id, CompressionFailed(event))
            case EngineStopped():
                self._requests.clear()
                return False
            case _:
                return False
        return True

    @Slot()
    def _on_dialog_destroyed(self) -> None:
        self.dialog = None

    def _compress(self, conversation_id: str, choice: CompressChoice) -> None:
        try:
            request_id = self._session.cache.compress(
                conversation_id, keep=choice.keep, method=choice.method, is_int8=choice.is_int8
            )
        except AppError as error:
            self._controller.show_error(error)
        else:
            self._requested(conversation_id, request_id)

    def _requested(self, conversation_id: str, request_id: str) -> None:
        self._requests.add(request_id)
        self._watch.compression_requested(conversation_id, request_id)
        self.asked.emit()

    def _end(self, conversation_id: str, outcome: Compressed | CompressionFailed) -> None:
        self._requests.discard(outcome.request_id if isinstance(outcome, Compressed) else outcome.event.request_id)
        self._watch.compression_ended(conversation_id, outcome)
        self.ended.emit()

    def _cache_at_rest(self, conversation_id: str | None) -> Warmth | None:
        if conversation_id is None or not self._live.has_model or self._live.is_loading:
            return None
        if self._session.is_busy(conversation_id) or self._session.is_compressing(conversation_id):
            return None
        warmth = self._conversations.warmth.get(conversation_id)
        return None if warmth is None or warmth.state is CacheState.COLD else warmth


def _sizes(warmth: Warmth, bytes_per_token: int) -> CacheSizes | None:
    """What is on disk is beside the whole cache there, so its bytes say nothing of what it takes in memory."""
    if not warmth.tokens:
        return None
    full = warmth.tokens * bytes_per_token
    recent = min(warmth.tokens, max(_LEAST_RECENT, min(_MOST_RECENT, warmth.tokens // _RECENT_PART)))
    now = warmth.num_bytes if warmth.state is CacheState.WARM and warmth.num_bytes else full
    return CacheSizes(full, recent * bytes_per_token, now)
