"""The strip at the bottom: always there, at most ten repaints a second, none while hidden, spoken every two seconds.

A button as well: a click, Enter or the space bar opens the memory panel.
"""

from __future__ import annotations

from time import monotonic

from PySide6.QtCore import QEvent, QSize, Qt, QTimer, Slot
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QAbstractButton, QFrame, QHBoxLayout, QLabel, QStyle, QStyleOption, QWidget

from engine.protocol.events import Phase
from ui.memory.precision_words import kind_of
from ui.meter.meter_cell import MeterCell
from ui.meter.meter_parts import Bar, Dot, Sparkline
from ui.meter.meter_reading import EngineState, MeterReading
from ui.theme import Theme

PAINT_MS = 100
_SPEAK_S = 2.0
_HEIGHT = 40


class MeterStrip(QAbstractButton):
    """`clicked`: the memory panel is wanted."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("meterStrip")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(_HEIGHT)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self._theme = theme
        self._reading = MeterReading()
        self._spoken_at = float("-inf")
        self.num_paints = 0
        self._cache_hint = self._context_hint = self._speed_hint = ""
        self._spoken_state: tuple[object, ...] = ()
        self._state_of_room: tuple[object, ...] = ()
        self._fitted: tuple[object, ...] = ()
        self._usual_state_width = 0
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

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        option = QStyleOption()
        option.initFrom(self)
        self.style().drawPrimitive(QStyle.PrimitiveElement.PE_Widget, option, painter, self)
        if self.hasFocus():
            painter.setPen(QPen(self._theme.color("accent"), 2))
            painter.drawRect(self.rect().adjusted(1, 1, -1, -1))
        painter.end()

    def sizeHint(self) -> QSize:
        return QSize(self._row.sizeHint().width(), _HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, _HEIGHT)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.click()
        else:
            super().keyPressEvent(event)

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
        context, cache, memory, speed = reading.widest_words()
        self.context.set_value(reading.context_words(), context)
        self.context.setToolTip("\n".join(filter(None, (self._context_hint, reading.turn_words()))))
        _bar(self.context).set_segments([(reading.context_fraction() or 0.0, tokens.accent)])
        self.cache.set_value(reading.cache_words(), cache)
        self.cache.setToolTip(
            "\n".join(filter(None, (self._cache_hint, reading.precision_help(), reading.pressure_words())))
        )
        own, others = reading.cache_fractions()
        colour = tokens.precision[kind_of(reading.precision)]
        _bar(self.cache).set_segments([(own, colour), (others, tokens.precision["on_disk"])])
        self.memory.set_value(reading.memory_words(), memory)
        self.memory.setToolTip(reading.memory_tooltip())
        self.speed.set_value(reading.speed_words(), speed)
        self.speed.setToolTip("\n".join(filter(None, (self._speed_hint, reading.first_token_words()))))
        self._show_state(reading.state)
        self._fit()
        since = monotonic() - self._spoken_at
        spoken = (reading.state.phase, reading.state.is_waiting, reading.state.is_elsewhere, reading.state.has_model)
        is_at_rest = reading.state.phase is None and not reading.state.is_waiting
        if since >= _SPEAK_S or is_at_rest or spoken != self._spoken_state:
            self._spoken_state = spoken
            self._speak()
        elif not self._speak_timer.isActive():
            self._speak_timer.start(int((_SPEAK_S - since) * 1000))

    def _show_state(self, state: EngineState) -> None:
        """While it counts percent and seconds its room only grows, so that the dot stands still."""
        words = state.words()
        room = 0
        if state.fraction is not None:
            room = self.state.fontMetrics().horizontalAdvance(words)
            if (state.phase, state.stage) == self._state_of_room:
                room = max(room, self.state.minimumWidth())
        self._state_of_room = (state.phase, state.stage)
        if room != self.state.minimumWidth():
            self.state.setMinimumWidth(room)
        self.state.setText(words)
        self._dot.set_role(state.light.value)

    @Slot()
    def _speak(self) -> None:
        """Figures that change all the time are said every two seconds; anything else at once."""
        self._spoken_at = monotonic()
        self._speak_timer.stop()
        for cell in (self.context, self.memory, self.speed):
            cell.speak()
        self.cache.speak(self._reading.pressure_words())
        self.state.setAccessibleName(self.tr("State: {state}").format(state=self.state.text()))

    def _fit(self) -> None:
        """Leave out what there is no room for: long words, the first token, the drawings, the precision, the memory."""
        reading = self._reading
        cells = (self.context, self.cache, self.memory, self.speed)
        notes = (reading.precision_words(), reading.precision_mark(), reading.first_token_words())
        fitted = (self.width(), self.state.text(), self.state.minimumWidth(), *notes, *(cell.room for cell in cells))
        if fitted == self._fitted:
            return
        self._fitted = fitted
        for roominess in (5, 4, 3, 2, 1, 0, -1, -2):
            in_full = roominess >= 5
            self.cache.set_note(notes[0] if in_full else notes[1], roominess >= 2)
            self.speed.set_note(notes[2], roominess >= 4)
            for cell in (self.context, self.cache, self.speed):
                assert cell.drawing is not None
                cell.drawing.setVisible(roominess >= 3)
            self.memory.setVisible(roominess >= 1)
            self._memory_line.setVisible(roominess >= 1)
            self.speed.label.setVisible(roominess >= -1)  # its unit says what it is
            for cell in cells:
                cell.fit(is_tight=roominess < 0)
            self._row.invalidate()
            # The state's words come and go: nothing is left out, or comes back, because of "Ready" or "Answering".
            spare = max(0, self._usual_state_width - self.state.minimumSizeHint().width())
            if self._row.minimumSize().width() + spare <= self.width():
                return

    def _retranslate(self) -> None:
        self.context.label.setText(self.tr("Context"))
        for cell in (self.context, self.cache, self.memory, self.speed):
            cell.forget_widest()
        self._fitted = ()
        usual = [EngineState(has_model=True), EngineState(is_waiting=True)]
        usual += [EngineState(phase) for phase in (Phase.RESTORING, Phase.ANSWERING, Phase.SAVING)]
        metrics = self.state.fontMetrics()
        self._usual_state_width = max(metrics.horizontalAdvance(state.words()) for state in usual)
        self.setAccessibleName(self.tr("Meter: opens the memory panel"))
        self._context_hint = self.tr("Tokens of this chat the model has read, of those it can hold")
        self.cache.label.setText(self.tr("KV cache"))
        self._cache_hint = self.tr(
            "What the model remembers of this chat; grey in the bar: of other chats. Full is the memory budget."
        )
        self.memory.label.setText(self.tr("Memory"))
        self.speed.label.setText(self.tr("Speed"))
        self._speed_hint = self.tr("Tokens written a second; the time to the first one is not mixed in")
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
