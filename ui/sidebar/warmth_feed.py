"""Which chats are warm, from the engine's events, for the marks in the conversation list."""

from __future__ import annotations

from dataclasses import replace

from engine.protocol.events import (
    CacheReported,
    CacheState,
    Compressed,
    ConversationCache,
    Finished,
    ModelLoaded,
    SnapshotSaved,
)
from ui.sidebar.conversation_model import ConversationModel
from ui.sidebar.warmth import Warmth


class WarmthFeed:
    def __init__(self, model: ConversationModel) -> None:
        self._model = model
        self._whole_report: str | None = None

    def whole_report_requested(self, request_id: str) -> None:
        """The answer to this request speaks of every conversation: one it leaves out is cold."""
        self._whole_report = request_id

    def forget(self, conversation_id: str) -> None:
        self._model.set_warmth(conversation_id, None)

    def take(self, event: object) -> None:
        match event:
            case CacheReported():
                self._take_report(event)
            case Finished() if event.statistics.cache.bytes:
                cache = event.statistics.cache
                warmth = Warmth(CacheState.WARM, cache.tokens, cache.bytes, cache.precision, cache.kept)
                self._model.set_warmth(event.conversation_id, warmth)
            case Compressed():
                warmth = Warmth(CacheState.WARM, event.tokens, event.bytes_after, event.precision, event.kept)
                self._model.set_warmth(event.conversation_id, warmth)
            case SnapshotSaved():
                before = self._model.warmth.get(event.conversation_id)
                if before is None or before.state is not CacheState.WARM:
                    warmth = Warmth(CacheState.ON_DISK, event.tokens, event.bytes_total)
                    self._model.set_warmth(event.conversation_id, warmth)
                else:
                    self._model.set_warmth(event.conversation_id, replace(before, tokens=event.tokens))
            case ModelLoaded():
                self._whole_report = None

    def _take_report(self, event: CacheReported) -> None:
        for cache in event.conversations:
            self._model.set_warmth(cache.conversation_id, _warmth_of(cache))
        if event.request_id is not None and event.request_id == self._whole_report:
            self._model.set_cold_except({cache.conversation_id for cache in event.conversations})


def _warmth_of(cache: ConversationCache) -> Warmth:
    num_bytes = cache.memory_bytes if cache.state is CacheState.WARM else cache.disk_bytes
    return Warmth(cache.state, cache.tokens, num_bytes, cache.precision, cache.kept)
