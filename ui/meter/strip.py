"""The strip at the bottom: always there, at most five updates a second, none while hidden or minimised; spoken every
two seconds. What an update leaves as it is is not made again: neither words nor widths nor paint.

A button as well: a click, Enter or the space bar opens the memory panel.
"""

from __future__ import annotations

from math import ceil
from time import monotonic

from PySide6.QtCore import QEvent, QSize, Qt, QTimer, Slot
from PySide6.QtGui import QHideEvent, QKeyEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QAbstractButton, QFrame, QHBoxLayout, QSizePolicy, QWidget

from ui.memory.precision_words import kind_of
from ui.meter.meter_cell import GAP_PX, MeterCell
from ui.meter.meter_parts import Bar, Dot, Sparkline
from ui.meter.meter_reading import MeterReading
from ui.meter.state_words import StateWords
from ui.theme import Theme

UPDATE_S = 0.2
_SPEAK_S = 2.0
_WIDEST_TTFT_S = 8.88
_HEIGHT = 40
_LEVELS = (18, 18, 12, 12, 12, 12, 12, 12, 12, 8, 8)  # pixels at the ends of a gauge; the first one that fits is taken


class MeterStrip(QAbstractButton):
    """`clicked`: the memory panel is wanted."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("meterStrip")
        self.setFixedHeight(_HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)  # the window is as narrow as it likes
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self._theme = theme
        self._reading = MeterReading()
        self._is_seen = False
        self._shown_at = self._spoken_at = float("-inf")
        self.num_paints = 0
        self._cache_hint = self._context_hint = self._speed_hint = ""
        self._spoken_state: tuple[object, ...] = ()
        self._widest_for: tuple[object, ...] | None = None
        self._noted: tuple[object, ...] | None = None
        self._notes = ("", "", "")
        self._fitted: tuple[object, ...] = ()
        self._first_token_width = 0
        self.context = MeterCell(Bar(theme))
        self.cache = MeterCell(Bar(theme))
        self.memory = MeterCell()
        self.sparkline = Sparkline(theme)
        self.speed = MeterCell(self.sparkline)
        self._cells = (self.context, self.cache, self.memory, self.speed)
        self._dot = Dot(theme)
        self.state = StateWords()
        self._timer = QTimer(self, singleShot=True, timerType=Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._show_reading)
        self._speak_timer = QTimer(self, singleShot=True)
        self._speak_timer.timeout.connect(self._speak)
        self._lay_out()
        theme.changed.connect(self._show_reading)
        self._retranslate()

    @property
    def reading(self) -> MeterReading:
        return self._reading

    def show_reading(self, reading: MeterReading) -> None:
        """Take new values; they are drawn as soon as the last ones have been seen for their time."""
        self._reading = reading
        if self._is_seen and not self._timer.isActive():
            left_s = self._shown_at + UPDATE_S - monotonic()
            self._timer.start(ceil(max(0.0, left_s) * 1000))

    def show_now(self, reading: MeterReading) -> None:
        """Draw at once: another conversation is shown."""
        self._reading = reading
        self._show_reading()

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        part = event.rect()
        painter.fillRect(part, self._theme.color("sidebar"))
        if not part.top():
            painter.fillRect(part.left(), 0, part.width(), 1, self._theme.color("line"))
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
        self._cover()
        self._is_seen = True
        self._show_reading()

    def hideEvent(self, event: QHideEvent) -> None:
        """Of a window that is minimised, too."""
        super().hideEvent(event)
        self._is_seen = False
        self._timer.stop()
        self._speak_timer.stop()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        elif event.type() == QEvent.Type.StyleChange:
            self._cover()
        super().changeEvent(event)

    def _cover(self) -> None:
        """Let nothing behind it be painted for a new number: a style sheet takes this back with each theme."""
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)

    @Slot()
    def _show_reading(self) -> None:
        """Nothing while it is not seen: it is shown what it missed as soon as it is."""
        self._timer.stop()
        if not self._is_seen:
            return
        reading, tokens = self._reading, self._theme.tokens
        self.num_paints += 1
        self._shown_at = monotonic()
        self._keep_room()
        self.context.set_value(reading.context_words())
        _bar(self.context).set_segments([(reading.context_fraction() or 0.0, tokens.accent)])
        self.cache.set_value(reading.cache_words())
        own, others = reading.cache_fractions()
        colour = tokens.precision[kind_of(reading.precision)]
        _bar(self.cache).set_segments([(own, colour), (others, tokens.precision["on_disk"])])
        self.memory.set_value(reading.memory_words())
        self.speed.set_value(reading.speed_words())
        self.sparkline.show_points()
        state = reading.state
        self.state.show_state(state)
        self._dot.set_role(state.light.value)
        self._fit()
        since = self._shown_at - self._spoken_at
        spoken = (state.phase, state.is_waiting, state.is_elsewhere, state.has_model, reading.turn, reading.pressure)
        is_at_rest = state.phase is None and not state.is_waiting
        if since >= _SPEAK_S or is_at_rest or spoken != self._spoken_state:
            self._spoken_state = spoken
            self._speak()
        elif not self._speak_timer.isActive():
            self._speak_timer.start(int((_SPEAK_S - since) * 1000))

    def _keep_room(self) -> None:
        """For the widest that the numbers come to with this model on this machine."""
        widest_for = self._reading.widest_for()
        if widest_for != self._widest_for:
            self._widest_for = widest_for
            for cell, text in zip(self._cells, self._reading.widest_words(), strict=True):
                cell.set_widest(text)

    @Slot()
    def _speak(self) -> None:
        """Figures that change all the time are said, and put into the tooltips, every two seconds; the rest at once."""
        self._spoken_at = monotonic()
        self._speak_timer.stop()
        reading = self._reading
        for cell in (self.context, self.memory, self.speed):
            cell.speak()
        pressure = reading.pressure_words()
        self.cache.speak(pressure)
        self.state.setAccessibleName(self.tr("State: {state}").format(state=self.state.text()))
        for cell, *lines in (
            (self.context, self._context_hint, reading.turn_words()),
            (self.cache, self._cache_hint, reading.precision_help(), pressure),
            (self.memory, reading.memory_tooltip()),
            (self.speed, self._speed_hint, reading.first_token_words()),
        ):
            cell.setToolTip("\n".join(filter(None, lines)))

    def _fit(self) -> None:
        """Leave out what there is no room for: long words, the first token, drawings, the precision, the memory."""
        notes = self._make_notes()
        rooms = (cell.room for cell in self._cells)
        fitted = (self.width(), self.state.text(), self.state.minimumWidth(), *notes, *rooms)
        if fitted == self._fitted:
            return
        self._fitted = fitted
        for level, edge in enumerate(_LEVELS):
            has_first_token = level <= 2
            self.cache.set_note(notes[0] if level == 0 else notes[1], level <= 6)
            self.speed.set_note(notes[2], has_first_token)
            self.sparkline.setVisible(level <= 3 or level == 5)
            for cell in (self.context, self.cache):
                _bar(cell).setVisible(level <= 4)
            self.memory.setVisible(level <= 7)
            self._memory_line.setVisible(level <= 7)
            self.speed.label.setVisible(level <= 9)  # its unit says what it is
            for cell in self._cells:
                cell.fit(edge)
            self._row.invalidate()
            # The state's words and the first token come and go: nothing is left out, or comes back, because of them.
            spare = self.state.spare
            if has_first_token and not notes[2]:
                spare += self._first_token_width
            if self._row.minimumSize().width() + spare <= self.width():
                return

    def _make_notes(self) -> tuple[str, str, str]:
        """The precision in full and in short, and the time to the first token."""
        reading = self._reading
        noted = (reading.precision, reading.cache.kept if reading.cache else 1.0, reading.ttft_s)
        if noted != self._noted:
            self._noted = noted
            self._notes = (reading.precision_words(), reading.precision_mark(), reading.first_token_words())
        return self._notes

    def _retranslate(self) -> None:
        self.context.label.setText(self.tr("Context"))
        self._widest_for = self._noted = None
        self._fitted = ()
        self.state.retranslate()
        widest = MeterReading(ttft_s=_WIDEST_TTFT_S).first_token_words()
        self._first_token_width = self.state.width_of(widest) + GAP_PX
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
        for cell in self._cells:
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
