"""The strip at the bottom: always there, at most ten repaints a second, none while hidden, spoken every two seconds."""

from __future__ import annotations

from time import monotonic

from PySide6.QtCore import QEvent, Qt, QTimer, Slot
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QWidget

from ui.memory.precision_words import kind_of
from ui.meter.meter_parts import Bar, Dot, Sparkline
from ui.meter.meter_reading import MeterReading
from ui.theme import Theme

PAINT_MS = 100
_SPEAK_S = 2.0
_HEIGHT = 40


class MeterCell(QWidget):
    """A label, a value in figures of equal width, a quiet addition, and a drawing."""

    def __init__(self, drawing: QWidget | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.label = QLabel()
        self.label.setProperty("kind", "muted")
        self.value = QLabel()
        self.value.setProperty("kind", "value")
        self.note = QLabel()
        self.note.setProperty("kind", "muted")
        self.note.hide()
        self.drawing = drawing
        self._row = row = QHBoxLayout(self)
        row.setContentsMargins(18, 0, 18, 0)
        row.setSpacing(9)
        for widget in (self.label, self.value, self.note):
            row.addWidget(widget)
        if drawing is not None:
            row.addWidget(drawing)

    def set_note(self, text: str, is_roomy: bool) -> None:
        self.note.setText(text)
        self.note.setVisible(bool(text) and is_roomy)

    def fit(self) -> None:
        """Make its size that of what it shows now, not at the next event."""
        self._row.invalidate()
        self._row.activate()

    def speak(self, extra: str = "") -> None:
        words = [self.label.text(), self.value.text(), self.note.text(), extra]
        self.setAccessibleName(" ".join(word for word in words if word))


class MeterStrip(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("meterStrip")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(_HEIGHT)
        self._theme = theme
        self._reading = MeterReading()
        self._spoken_at = float("-inf")
        self.num_paints = 0
        self._cache_hint = ""
        self.context = MeterCell(Bar(theme))
        self.cache = MeterCell(Bar(theme))
        self.memory = MeterCell()
        self.sparkline = Sparkline(theme)
        self.speed = MeterCell(self.sparkline)
        self._dot = Dot(theme)
        self.state = QLabel()
        self.state.setProperty("kind", "muted")
        self._timer = QTimer(self, singleShot=True, interval=PAINT_MS)
        self._timer.timeout.connect(self._on_paint_due)
        self._speak_timer = QTimer(self, singleShot=True)
        self._speak_timer.timeout.connect(self._speak)
        self._lay_out()
        theme.changed.connect(self._show_reading)
        self._retranslate()

    @property
    def reading(self) -> MeterReading:
        return self._reading

    def show_reading(self, reading: MeterReading) -> None:
        """Take new values; they are drawn at the next beat."""
        self._reading = reading
        if self.isVisible() and not self._timer.isActive():
            self._timer.start()

    def show_now(self, reading: MeterReading) -> None:
        """Draw at once: another conversation is shown."""
        self._reading = reading
        self._show_reading()

    # Qt overrides

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_reading()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_paint_due(self) -> None:
        if self.isVisible():
            self._show_reading()

    @Slot()
    def _show_reading(self) -> None:
        reading, tokens = self._reading, self._theme.tokens
        self.num_paints += 1
        self.context.value.setText(reading.context_words())
        _bar(self.context).set_segments([(reading.context_fraction() or 0.0, tokens.accent)])
        self.cache.value.setText(reading.cache_words())
        self.cache.setToolTip(
            "\n".join(filter(None, (self._cache_hint, reading.precision_help(), reading.pressure_words())))
        )
        own, others = reading.cache_fractions()
        colour = tokens.precision[kind_of(reading.precision)]
        _bar(self.cache).set_segments([(own, colour), (others, tokens.precision["on_disk"])])
        self.memory.value.setText(reading.memory_words())
        self.memory.setToolTip(reading.memory_tooltip())
        self.speed.value.setText(reading.speed_words())
        self.state.setText(reading.state.words())
        self._dot.set_role(reading.state.light.value)
        self._fit()
        since = monotonic() - self._spoken_at
        if since >= _SPEAK_S:
            self._speak()
        elif not self._speak_timer.isActive():
            self._speak_timer.start(int((_SPEAK_S - since) * 1000))

    @Slot()
    def _speak(self) -> None:
        self._spoken_at = monotonic()
        for cell in (self.context, self.memory, self.speed):
            cell.speak()
        self.cache.speak(self._reading.pressure_words())
        self.state.setAccessibleName(self.tr("State: {state}").format(state=self.state.text()))

    def _fit(self) -> None:
        """Leave out what there is no room for: long words, the first token, the drawings, the precision, the memory."""
        reading = self._reading
        for roominess in (5, 4, 3, 2, 1, 0):
            in_full = roominess >= 5
            self.cache.set_note(reading.precision_words() if in_full else reading.precision_mark(), roominess >= 2)
            self.speed.set_note(reading.first_token_words(), roominess >= 4)
            for cell in (self.context, self.cache, self.speed):
                assert cell.drawing is not None
                cell.drawing.setVisible(roominess >= 3)
            self.memory.setVisible(roominess >= 1)
            self._memory_line.setVisible(roominess >= 1)
            for cell in (self.context, self.cache, self.memory, self.speed):
                cell.fit()
            self._row.invalidate()
            if self._row.minimumSize().width() <= self.width():
                return

    def _retranslate(self) -> None:
        self.context.label.setText(self.tr("Context"))
        self.context.setToolTip(self.tr("Tokens of this chat the model has read, of those it can hold"))
        self.cache.label.setText(self.tr("KV cache"))
        self._cache_hint = self.tr(
            "What the model remembers of this chat; grey in the bar: of other chats. Full is the memory budget."
        )
        self.memory.label.setText(self.tr("Memory"))
        self.speed.label.setText(self.tr("Speed"))
        self.speed.setToolTip(self.tr("Tokens written a second; the time to the first one is not mixed in"))
        self._spoken_at = float("-inf")
        self._show_reading()

    def _lay_out(self) -> None:
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(0, 1, 18, 0)
        self._row.setSpacing(0)
        for cell in (self.context, self.cache, self.memory, self.speed):
            self._row.addWidget(cell)
            line = QFrame()
            line.setProperty("kind", "divider")
            self._row.addWidget(line)
            if cell is self.memory:
                self._memory_line = line
        self._row.addStretch(1)
        self._row.addSpacing(12)
        self._row.addWidget(self._dot)
        self._row.addSpacing(6)
        self._row.addWidget(self.state)


def _bar(cell: MeterCell) -> Bar:
    assert isinstance(cell.drawing, Bar)
    return cell.drawing
