"""The words at the end of the strip: what the engine does now."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel, QWidget

from engine.protocol.events import Phase
from ui.meter.meter_reading import EngineState


class StateWords(QLabel):
    """While it counts percent and seconds its room only grows, so that the dot before it stands still."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "muted")
        self._counts: tuple[object, ...] = ()
        self._usual_width = 0

    def show_state(self, state: EngineState) -> None:
        words, counts = state.words(), (state.phase, state.stage)
        if words == self.text() and counts == self._counts:
            return
        room = 0
        if state.fraction is not None:
            room = self.width_of(words)
            if counts == self._counts:
                room = max(room, self.minimumWidth())
        self._counts = counts
        if room != self.minimumWidth():
            self.setMinimumWidth(room)
        self.setText(words)

    def retranslate(self) -> None:
        self._counts = ()
        usual = [EngineState(has_model=True), EngineState(is_waiting=True)]
        usual += [EngineState(phase) for phase in (Phase.RESTORING, Phase.ANSWERING, Phase.SAVING)]
        self._usual_width = max(self.width_of(state.words()) for state in usual)

    def width_of(self, words: str) -> int:
        """In its font, in pixels."""
        self.ensurePolished()  # else its font is not yet the style sheet's
        return self.fontMetrics().horizontalAdvance(words)

    @property
    def spare(self) -> int:
        """What the widest of the words that come and go all the time would take more."""
        return max(0, self._usual_width - self.minimumSizeHint().width())
