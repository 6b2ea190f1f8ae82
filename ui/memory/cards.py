"""The cards at the panel's end: a heading with a figure at the right, and below it a plot, the diary or the disk."""

from __future__ import annotations

from dataclasses import fields

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from app.settings import MB, Settings
from ui import numbers
from ui.memory.diary import Diary, Entry
from ui.memory.page_words import UNBROKEN
from ui.meter.meter_parts import Bar
from ui.settings.controls import NumberControl
from ui.settings.words import field_words
from ui.theme import Theme
from ui.tokens import SPACE_L, SPACE_M, SPACE_S, SPACE_XS

_DIARY_LINES = 50
_DIARY_HEIGHT = 132


class Card(QFrame):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        self.heading = QLabel()
        self.heading.setProperty("kind", "strong")
        self.figure = QLabel()
        self.figure.setProperty("kind", "muted")
        row = QHBoxLayout()
        row.addWidget(self.heading)
        row.addStretch(1)
        row.addWidget(self.figure)
        self.column = QVBoxLayout(self)
        self.column.setContentsMargins(SPACE_L, SPACE_M, SPACE_L, SPACE_M)
        self.column.setSpacing(SPACE_S)
        self.column.addLayout(row)


class PlotCard(Card):
    def __init__(self, plot: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.plot = plot
        self.column.addWidget(plot)
        self.column.addStretch(1)

    def set_words(self, heading: str, figure: str) -> None:
        self.heading.setText(heading)
        self.figure.setText(figure)
        self.plot.setAccessibleName(f"{heading}: {figure}")


class DiaryCard(Card):
    """A line is made once; the oldest ones go."""

    def __init__(self, diary: Diary, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._diary = diary
        self._shown = 0  # of the entries ever added
        self._lines: list[_DiaryLine] = []
        self.nothing = QLabel()
        self.nothing.setProperty("kind", "muted")
        self.nothing.setWordWrap(True)
        content = QWidget()
        self._rows = QVBoxLayout(content)
        self._rows.setContentsMargins(0, 0, SPACE_S, 0)
        self._rows.setSpacing(0)
        self._rows.addWidget(self.nothing)
        self._rows.addStretch(1)
        self.pane = QScrollArea()
        self.pane.setProperty("kind", "pane")
        self.pane.setWidget(content)
        content.setAutoFillBackground(False)  # which the line above has set
        self.pane.setWidgetResizable(True)
        self.pane.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.pane.setFixedHeight(_DIARY_HEIGHT)
        self.column.addWidget(self.pane)

    @property
    def texts(self) -> list[str]:
        """Newest first."""
        return [f"{line.time.text()} {line.words.text()}" for line in self._lines]

    def refresh(self) -> None:
        """Put in what is new."""
        new = min(self._diary.num_added - self._shown, _DIARY_LINES, len(self._diary.entries))
        self._shown = self._diary.num_added
        for entry in reversed(self._diary.entries[:new]):
            line = _DiaryLine(entry)
            self._lines.insert(0, line)
            self._rows.insertWidget(0, line)
        for line in self._lines[_DIARY_LINES:]:
            line.deleteLater()
        del self._lines[_DIARY_LINES:]
        self.nothing.setVisible(not self._lines)

    def retranslate(self) -> None:
        self.heading.setText(self.tr("What happened"))
        self.pane.setAccessibleName(self.tr("What was done with the chats' memory"))
        self.nothing.setText(self.tr("Nothing yet. Here you read what Ember does when memory or disk runs short."))
        for line in self._lines:
            line.retranslate()


class _DiaryLine(QWidget):
    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self._entry = entry
        self.time = QLabel(entry.time_words())
        self.time.setProperty("kind", "muted")
        self.words = QLabel()
        self.words.setProperty("kind", "line")
        self.words.setWordWrap(True)
        self.words.setTextFormat(Qt.TextFormat.PlainText)
        self.words.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        row = QHBoxLayout()
        row.setContentsMargins(0, SPACE_XS, 0, SPACE_XS)
        row.setSpacing(SPACE_M)
        row.addWidget(self.time, 0, Qt.AlignmentFlag.AlignTop)
        row.addWidget(self.words, 1)
        line = QFrame()
        line.setProperty("kind", "rule")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(line)
        column.addLayout(row)
        self.retranslate()

    def retranslate(self) -> None:
        self.words.setText(self._entry.words())


class DiskCard(Card):
    cap_chosen = Signal(object)  # MB

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._numbers: tuple[int | None, int, int] = (None, 0, 0)
        self.bar = Bar(theme)
        self.bar.setMinimumWidth(0)
        self.bar.setMaximumWidth(16_777_215)
        self.bar.setFixedHeight(14)
        self.words = QLabel()
        self.words.setProperty("kind", "muted")
        self.words.setWordWrap(True)
        self.cap_label = QLabel()
        self.cap_label.setProperty("kind", "line")
        setting = next(one for one in fields(Settings) if one.name == "disk_cap_mb")
        self.cap = NumberControl(setting)
        self.cap.changed.connect(self.cap_chosen)
        row = QHBoxLayout()
        row.addWidget(self.cap_label)
        row.addStretch(1)
        row.addWidget(self.cap)
        self.column.addWidget(self.bar)
        self.column.addWidget(self.words)
        self.column.addStretch(1)
        self.column.addLayout(row)
        self._floor_mb = 0

    def show_settings(self, settings: Settings) -> None:
        self.cap.show_value(settings.disk_cap_mb)
        self._floor_mb = settings.disk_floor_mb
        self._show()

    def show_disk(self, used: int, cap: int, num_chats: int) -> None:
        self._numbers = (used, cap, num_chats)
        self._show()

    def retranslate(self) -> None:
        self.heading.setText(self.tr("Disk"))
        words = field_words("disk_cap_mb")
        self.cap_label.setText(words.label)
        self.cap_label.setToolTip(words.help)
        self.cap.set_name(words.label, words.help)
        self.cap.retranslate()
        self._show()

    def _show(self) -> None:
        used, cap, num_chats = self._numbers
        words = self.tr("{used} of {cap}").format(used=numbers.size(used), cap=numbers.size(cap or None))
        self.figure.setText(words if used is not None else numbers.DASH)
        self.bar.setAccessibleName(f"{self.heading.text()}: {self.figure.text()}")
        share = min(1.0, used / cap) if used and cap else 0.0
        self.bar.set_segments([(share, self._theme.tokens.precision["on_disk"])])
        if not num_chats:
            chats = self.tr("No chat is on disk alone.")
        elif num_chats == 1:
            chats = self.tr("1 chat is on disk.")
        else:
            chats = self.tr("{count} chats are on disk.").format(count=numbers.count(num_chats))
        floor = self.tr("The oldest goes first when the cap is reached; at least {size} of the disk stay free.")
        size = numbers.size(self._floor_mb * MB).replace(" ", UNBROKEN)
        self.words.setText(f"{chats} {floor.format(size=size)}")
