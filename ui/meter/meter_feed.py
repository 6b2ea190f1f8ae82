"""Fills the meter from the engine's events, for the conversation that is shown. GUI thread."""

from __future__ import annotations

from collections.abc import Callable

from app.conversation import Message
from engine.protocol.events import (
    CacheReading,
    CacheReported,
    CacheState,
    Compressed,
    ConversationCache,
    Finished,
    ModelInfo,
    ModelLoaded,
    PressureActed,
    StatisticsChanged,
    TextArrived,
)
from ui.live_replies import LiveReplies
from ui.memory.precision_words import is_full
from ui.meter.meter_reading import MeterReading
from ui.meter.strip import MeterStrip


class MeterFeed:
    """Invariant: `LiveReplies` has taken an event before this does."""

    def __init__(self, strip: MeterStrip, live: LiveReplies, title_of: Callable[[str], str]) -> None:
        self._strip = strip
        self._live = live
        self._title_of = title_of
        self._reading = MeterReading()
        self._conversation_id: str | None = None
        self._model: ModelInfo | None = None
        self._reported: dict[str, CacheReading] = {}  # by conversation, where it says more than the last reply did

    def show_conversation(self, conversation_id: str | None, messages: list[Message]) -> None:
        """Begin with what the last reply cost, which was stored with it, and with what was done to its cache since."""
        before = self._reading
        self._conversation_id = conversation_id
        self._strip.sparkline.clear()
        self._reading = MeterReading(
            context_length=self._model.context_length if self._model else None,
            all_caches_bytes=before.all_caches_bytes,
            budget_bytes=before.budget_bytes,
            memory=before.memory,
            pressure=before.pressure,
            pressure_title=before.pressure_title,
        )
        if conversation_id is None:
            self._reading.context_tokens = 0 if self._model else None
        statistics = next((message.statistics for message in reversed(messages) if message.statistics), None)
        if statistics is not None:
            self._reading.context_tokens = statistics.cache.tokens
            self._reading.cache = statistics.cache
            self._reading.decode_tps = statistics.decode_tps
            self._reading.ttft_s = statistics.ttft_s
            self._reading.turn = statistics
        reported = self._reported.get(conversation_id) if conversation_id is not None else None
        if reported is not None and _says_more(reported, self._reading.cache):
            self._take_cache(reported)
        reply = self._live.of(conversation_id)
        if reply is not None and reply.statistics is not None:
            self._take_statistics(reply.statistics)
        self._refresh_state()
        self._strip.show_now(self._reading)

    def reply_requested(self, conversation_id: str) -> None:
        """The speed and first token of the reply before no longer hold. A new chat gets its id here."""
        self._conversation_id = conversation_id
        self._reading.decode_tps = self._reading.ttft_s = None
        self._strip.sparkline.clear()
        self.refresh()

    def refresh(self) -> None:
        self._refresh_state()
        self._strip.show_reading(self._reading)

    def take(self, event: object) -> None:
        if isinstance(event, TextArrived) and not self._reading.state.is_thinking:
            return  # thirty a second, and nothing of them is in the meter but that the first one has come
        match event:
            case StatisticsChanged():
                self._reading.memory = event.memory
                self._reading.all_caches_bytes = event.all_caches_bytes
                if event.conversation_id == self._conversation_id:
                    self._take_statistics(event)
                    if event.decode_tps is not None:
                        self._strip.sparkline.add(event.decode_tps)
            case Finished() if event.conversation_id == self._conversation_id:
                statistics = event.statistics
                self._reading.context_tokens = statistics.cache.tokens
                self._reading.cache = statistics.cache
                self._reading.decode_tps = statistics.decode_tps
                self._reading.ttft_s = statistics.ttft_s
                self._reading.turn = statistics
                self._reported.pop(event.conversation_id, None)
            case Finished():
                self._reported.pop(event.conversation_id, None)
            case Compressed():
                self._take_compressed(event)
            case ModelLoaded():
                self._model = event.model
                self._reading.context_length = event.model.context_length
                if self._conversation_id is None:
                    self._reading.context_tokens = 0
                self._reading.pressure = None
                self._reported.clear()
            case PressureActed():
                self._reading.pressure = event
                self._reading.pressure_title = self._title_of(event.conversation_id)
            case CacheReported():
                self._reading.budget_bytes = event.budget_bytes
                self._reading.all_caches_bytes = event.memory_bytes
                self._reading.memory = event.memory or self._reading.memory
                for cache in event.conversations:
                    self._take_report(cache)
        self.refresh()

    def _take_compressed(self, event: Compressed) -> None:
        before = self._reading.cache if event.conversation_id == self._conversation_id else None
        place = before.place if before else ""
        cache = CacheReading(event.tokens, event.bytes_after, event.precision, place, event.kept)
        self._reported[event.conversation_id] = cache
        if event.conversation_id == self._conversation_id:
            self._take_cache(cache)

    def _take_report(self, cache: ConversationCache) -> None:
        """A chat on disk keeps its last reply's reading, unless it was compressed since."""
        is_warm = cache.state is CacheState.WARM
        if cache.state is CacheState.COLD or (not is_warm and is_full(cache.precision)):
            return
        num_bytes = cache.memory_bytes - cache.waste_bytes
        if not is_warm:  # what it takes when it is back; the disk holds the full cache as well
            per_token = self._model.kv_bytes_per_token if self._model is not None else 0
            num_bytes = round(cache.kept * cache.tokens * per_token) or cache.disk_bytes
        reading = CacheReading(cache.tokens, num_bytes, cache.precision, cache.place, cache.kept)
        self._reported[cache.conversation_id] = reading
        is_shown = cache.conversation_id == self._conversation_id and self._live.of(self._conversation_id) is None
        if is_shown and _says_more(reading, self._reading.cache):
            self._take_cache(reading)

    def _take_cache(self, cache: CacheReading) -> None:
        self._reading.context_tokens = cache.tokens
        self._reading.cache = cache

    def _take_statistics(self, event: StatisticsChanged) -> None:
        self._reading.context_tokens = event.context_tokens
        self._reading.context_length = event.context_length
        self._reading.cache = event.cache
        self._reading.decode_tps = event.decode_tps
        self._reading.ttft_s = event.ttft_s

    def _refresh_state(self) -> None:
        self._reading.state = self._live.state_for(self._conversation_id)


def _says_more(reported: CacheReading, told: CacheReading | None) -> bool:
    """Than the last reply did: its form has changed since. A report may be of another version of the chat."""
    return told is None or (told.precision, told.kept) != (reported.precision, reported.kept)
