"""What the meter knows and how it says it. Filled from events, read by the strip; holds no widget."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import CacheReading, LoadStage, MemoryReading, Phase, PressureActed, TurnStatistics
from ui import numbers
from ui.memory.precision_words import kind_of, precision_help, precision_mark, precision_words
from ui.meter.pressure_words import pressure_words

_WIDEST_BYTES, _WIDEST_SPEED = 888_000_000, 888.0


def _tr(source: str) -> str:
    return QCoreApplication.translate("Meter", source)


class Light(Enum):
    """The colour of the state's dot."""

    READY = "ready"
    WORKING = "working"
    OFF = "muted"


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the engine does now, for the conversation that is shown or (`is_elsewhere`) for another one. `is_measuring`:
    the cache lab is at work, which what waits here comes after.
    """

    phase: Phase | None = None
    stage: LoadStage | None = None
    fraction: float | None = None
    remaining_s: float | None = None
    is_waiting: bool = False
    is_thinking: bool = False
    is_elsewhere: bool = False
    is_measuring: bool = False
    has_model: bool = False

    @property
    def light(self) -> Light:
        if self.phase is not None or self.is_waiting:
            return Light.READY if self.phase is Phase.ANSWERING and not self.is_thinking else Light.WORKING
        if self.is_measuring:
            return Light.WORKING
        return Light.READY if self.has_model else Light.OFF

    def words(self) -> str:
        if self.phase is Phase.LOADING:
            return self._loading_words()
        if self.is_elsewhere and (self.phase is not None or self.is_waiting):
            return _tr("Busy in another chat")
        match self.phase:
            case Phase.RESTORING:
                return _tr("Restoring")
            case Phase.PREFILL:
                return self._progress_words(_tr("Reading"), _tr("Reading {percent}"))
            case Phase.COMPRESSING if not self.fraction:  # how much there is to do is known after its first part
                return _tr("Compressing")
            case Phase.COMPRESSING:
                return self._progress_words(_tr("Compressing"), _tr("Compressing {percent}"))
            case Phase.ANSWERING:
                return _tr("Thinking") if self.is_thinking else _tr("Answering")
            case Phase.SAVING:
                return _tr("Saving")
        if self.is_waiting:
            return _tr("Waiting")
        if self.is_measuring:
            return _tr("Measuring")
        return _tr("Ready") if self.has_model else _tr("No model")

    def _loading_words(self) -> str:
        match self.stage:
            case LoadStage.IMPORTING:
                word = _tr("Starting engine")
            case LoadStage.CONVERTING:
                word = _tr("Converting model")
            case LoadStage.TOKENIZER:
                word = _tr("Loading tokenizer")
            case LoadStage.WARMING_UP:
                word = _tr("Warming up")
            case _:
                word = _tr("Loading model")
        percent = numbers.percent(self.fraction)
        return word if percent == numbers.DASH else f"{word} {percent}"

    def _progress_words(self, word: str, with_percent: str) -> str:
        percent, time = numbers.percent(self.fraction), numbers.whole_seconds(self.remaining_s)
        if percent == numbers.DASH:
            return word
        words = with_percent.format(percent=percent)
        return words if time == numbers.DASH else f"{words} · {_tr('{time} left').format(time=time)}"


@dataclass(slots=True)
class MeterReading:
    """The last values of the conversation that is shown. None is a dash."""

    context_tokens: int | None = None
    context_length: int | None = None
    cache: CacheReading | None = None
    all_caches_bytes: int | None = None
    budget_bytes: int | None = None
    memory: MemoryReading | None = None
    ttft_s: float | None = None
    decode_tps: float | None = None
    turn: TurnStatistics | None = None  # of the last reply
    pressure: PressureActed | None = None  # the newest step
    pressure_title: str = ""  # of the chat it was taken on
    state: EngineState = EngineState()  # frozen

    def context_words(self) -> str:
        return f"{numbers.count(self.context_tokens)} / {numbers.count(self.context_length or None)}"

    def turn_words(self) -> str:
        """What the last reply read and wrote, to the token; "" before there was one."""
        if self.turn is None:
            return ""
        words = _tr("Last reply: {reused} tokens reused, {read} read, {written} written")
        return words.format(
            reused=numbers.count(self.turn.reused_tokens),
            read=numbers.count(self.turn.prefilled_tokens),
            written=numbers.count(self.turn.new_tokens),
        )

    def context_fraction(self) -> float | None:
        if self.context_tokens is None or not self.context_length:
            return None
        return self.context_tokens / self.context_length

    def cache_words(self) -> str:
        return numbers.size(self.cache.bytes if self.cache else None)

    @property
    def precision(self) -> str:
        """ "" while nothing is cached."""
        return self.cache.precision if self.cache and self.cache.bytes else ""

    def precision_words(self) -> str:
        return precision_words(self.precision, self.cache.kept if self.cache else 1.0)

    def precision_mark(self) -> str:
        """In short, but never a bare number."""
        kept = self.cache.kept if self.cache else 1.0
        if kind_of(self.precision) == "kvzip" and kept < 1.0:
            return _tr("{share} kept").format(share=numbers.share(kept))
        return precision_mark(self.precision, kept)

    def precision_help(self) -> str:
        """How the cache is kept, and its price; "" while nothing is cached."""
        words, price = self.precision_words(), precision_help(self.precision)
        return _tr("{precision}: {price}").format(precision=words, price=price) if price else words

    def pressure_words(self) -> str:
        return pressure_words(self.pressure, self.pressure_title) if self.pressure else ""

    def cache_fractions(self) -> tuple[float, float]:
        """Shares of the budget: this conversation's cache, and all other ones."""
        if not self.budget_bytes or self.cache is None:
            return (0.0, 0.0)
        own = self.cache.bytes / self.budget_bytes
        others = max(0, (self.all_caches_bytes or self.cache.bytes) - self.cache.bytes) / self.budget_bytes
        return (min(1.0, own), min(1.0, others))

    def memory_words(self) -> str:
        """Used of all there is, other programs counted: the device's where there is one, else the machine's."""
        if self.memory is None:
            return numbers.DASH
        total, free = self._memory()
        return numbers.size_of(total - free, total)

    def memory_tooltip(self) -> str:
        if self.memory is None:
            return ""
        memory = self.memory
        lines = [
            _tr("Ember itself: {size}").format(size=numbers.size(memory.process_bytes)),
            _tr("Free on this computer: {free} of {total}").format(
                free=numbers.size(memory.host_free_bytes), total=numbers.size(memory.host_total_bytes)
            ),
        ]
        if memory.device_free_bytes is not None and memory.device_total_bytes is not None:
            lines.append(
                _tr("Free on the graphics card: {free} of {total}").format(
                    free=numbers.size(memory.device_free_bytes), total=numbers.size(memory.device_total_bytes)
                )
            )
        lines.append(_tr("Other programs are counted."))
        return "\n".join(lines)

    def widest_for(self) -> tuple[int | None, int | None]:
        """What `widest_words` depend on, besides the language."""
        return self.context_length, self._memory()[0] if self.memory is not None else None

    def widest_words(self) -> tuple[str, str, str, str]:
        """The longest that context, cache, memory and speed come to in this window: room for them is always kept."""
        length = self.context_length or 0
        context = f"{numbers.count(length)} / {numbers.count(length)}"
        memory = numbers.DASH
        if self.memory is not None:
            total = self._memory()[0]
            memory = numbers.size_of(total, total)
        return context, numbers.size(_WIDEST_BYTES), memory, numbers.speed(_WIDEST_SPEED)

    def speed_words(self) -> str:
        return numbers.speed(self.decode_tps)

    def first_token_words(self) -> str:
        time = numbers.seconds(self.ttft_s)
        return "" if time == numbers.DASH else _tr("first token {time}").format(time=time)

    def _memory(self) -> tuple[int, int]:
        assert self.memory is not None
        memory = self.memory
        if memory.device_total_bytes is not None and memory.device_free_bytes is not None:
            return memory.device_total_bytes, memory.device_free_bytes
        return memory.host_total_bytes, memory.host_free_bytes
