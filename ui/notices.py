"""What failed in which conversation, or how compressing it went, until the next message is sent there; in the words of
the language in use.
"""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.errors import AppError
from engine.protocol.events import Compressed, Failed, Finished, SnapshotNotSaved
from engine.protocol.misses import SaveProblem
from ui.error_words import error_words, failure_words
from ui.memory.compression_words import CompressionFailed, compressed_words, compression_failure_words
from ui.reason_words import not_saved_words

Notice = AppError | Failed | Compressed | CompressionFailed


class Notices:
    """The key None is for a new chat that is not stored yet."""

    def __init__(self) -> None:
        self._by_conversation: dict[str | None, Notice | SnapshotNotSaved] = {}
        self._cached: set[str] = set()  # conversations of which there is something to save
        self._reasons_told: set[str] = set()

    def put(self, conversation_id: str | None, notice: Notice) -> None:
        self._by_conversation[conversation_id] = notice

    def clear(self, conversation_id: str | None) -> None:
        self._by_conversation.pop(conversation_id, None)

    def words(self, conversation_id: str | None) -> str | None:
        match self._by_conversation.get(conversation_id):
            case None:
                return None
            case Failed() as event:
                return failure_words(event)
            case Compressed() as event:
                return compressed_words(event)
            case CompressionFailed() as failure:
                return compression_failure_words(failure)
            case SnapshotNotSaved() as event:
                template = QCoreApplication.translate("Notices", "The cache of this chat was not saved: {reason}")
                return template.format(reason=not_saved_words(event))
            case error:
                return error_words(error)

    def take_finished(self, event: Finished) -> None:
        if event.statistics.cache.tokens:
            self._cached.add(event.conversation_id)

    def take_not_saved(self, event: SnapshotNotSaved, known_reason: str | None) -> None:
        """Told once for each reason; that there was nothing to save, or that the model cannot, is no news."""
        is_known = event.reason == known_reason or event.code in (SaveProblem.NOTHING_CACHED, SaveProblem.INCOGNITO)
        is_news = event.reason not in self._reasons_told and not is_known
        if event.conversation_id in self._cached and is_news:
            self._reasons_told.add(event.reason)
            self._by_conversation[event.conversation_id] = event
