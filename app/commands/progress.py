"""One changing line on a terminal that says what the engine does; silent where standard error is no terminal."""

from __future__ import annotations

from typing import TextIO

from engine.protocol.events import BenchProgress, Event, LoadStage, ModelLoading, Phase, PhaseChanged

_STAGES = {
    LoadStage.IMPORTING: "Starting the engine",
    LoadStage.CONVERTING: "Converting the model, once",
    LoadStage.TOKENIZER: "Loading the tokenizer",
    LoadStage.WEIGHTS: "Loading the model",
    LoadStage.WARMING_UP: "Warming up",
}
_PHASES = {
    Phase.LOADING: "Loading the model",
    Phase.RESTORING: "Restoring the conversation",
    Phase.PREFILL: "Reading",
    Phase.COMPRESSING: "Compressing",
    Phase.SAVING: "Saving the conversation",
}


class Progress:
    def __init__(self, err: TextIO) -> None:
        self._err = err if err.isatty() else None
        self._width = 0

    def show(self, event: Event) -> None:
        """Say what an event says about progress; other events change nothing."""
        match event:
            case ModelLoading(stage=stage, fraction=fraction):
                self._write(_STAGES[stage] + ("" if fraction is None else f" {fraction:.0%}"))
            case PhaseChanged(phase=Phase.ANSWERING):
                self.clear()
            case PhaseChanged():
                self._write(_phase_words(event))
            case BenchProgress(done=done, total=total):
                self._write(f"Measuring, step {min(done + 1, total):,} of {total:,}")

    def clear(self) -> None:
        """Leave an empty line, before other words come."""
        if self._err is not None and self._width:
            self._err.write("\r" + " " * self._width + "\r")
            self._err.flush()
            self._width = 0

    def _write(self, words: str) -> None:
        if self._err is not None:
            self._err.write("\r" + words.ljust(self._width))
            self._err.flush()
            self._width = len(words)


def _phase_words(event: PhaseChanged) -> str:
    words = _PHASES[event.phase]
    if event.total_tokens:
        words += f" {event.done_tokens or 0:,} of {event.total_tokens:,} tokens"
    if event.remaining_s is not None:
        words += f", {event.remaining_s:.0f} s left"
    return words
