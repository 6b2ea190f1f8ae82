"""The memory panel's window: legend, budget, a row a chat, plots, diary, disk. Beside the chat, so that one sees what
an answer does to it; it asks nobody and only shows what it is given.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, Qt, Signal, Slot
from PySide6.QtGui import QFocusEvent, QKeySequence, QResizeEvent, QShortcut, QShowEvent
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

from app.settings import MB, Settings
from engine.protocol.events import BlocksReported
from ui import numbers
from ui.fit_screen import resize_within_screen
from ui.icons import app_icon
from ui.memory.budget_bar import BudgetBar
from ui.memory.cards import DiaryCard, DiskCard, PlotCard
from ui.memory.cells import CellTiles
from ui.memory.chat_list import ChatList
from ui.memory.chat_row import ChatRow, ChatState
from ui.memory.diary import Diary
from ui.memory.help_pane import HelpPane
from ui.memory.history import History
from ui.memory.legend import Legend, TopicButton
from ui.memory.technique_words import Topic
from ui.memory.time_plot import TimePlot
from ui.theme import Theme
from ui.tokens import SPACE_L, SPACE_S, SPACE_XL

_NARROW_PX = 720
KEY = "Ctrl+M"


class MemoryPage(QWidget):
    shown = Signal()
    pin_requested = Signal(str, bool)
    free_requested = Signal(str)
    free_all_requested = Signal()
    compress_requested = Signal(str)
    undo_requested = Signal(str)
    budget_chosen = Signal(int)
    disk_cap_chosen = Signal(object)

    def __init__(self, theme: Theme, speed: History, kv_bytes: History, diary: Diary, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Window)
        self.setObjectName("memoryPage")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setWindowIcon(app_icon())
        self._theme = theme
        self._speed, self._kv_bytes = speed, kv_bytes
        self._tiles = CellTiles(theme)
        self._report: BlocksReported | None = None
        self._is_narrow: bool | None = None
        self.title = QLabel()
        self.title.setProperty("kind", "title")
        self.legend = Legend(theme, self._tiles)
        self.help = HelpPane(theme)
        self.what_button = TopicButton(Topic.BLOCK)
        self.marks_button = TopicButton(Topic.BUDGET)
        self._asked = self.what_button  # for the help that is open, or was
        self.used = QLabel()
        self.used.setProperty("kind", "value")
        self.marks = QLabel()
        self.marks.setProperty("kind", "muted")
        self.free_all = QPushButton()
        self.free_all.setProperty("kind", "action")
        self.budget = BudgetBar(theme, self._tiles)
        self.chats = ChatList(theme, self._tiles)
        self.speed_card = PlotCard(TimePlot(theme, speed, numbers.speed, "accent"))
        self.bytes_card = PlotCard(TimePlot(theme, kv_bytes, lambda value: numbers.size(round(value)), "int8"))
        self.diary_card = DiaryCard(diary)
        self.disk_card = DiskCard(theme)
        self._lay_out()
        self.budget.budget_chosen.connect(self.budget_chosen)
        self.budget.shown_changed.connect(self._show_marks)
        self.disk_card.cap_chosen.connect(self.disk_cap_chosen)
        self.free_all.clicked.connect(self.free_all_requested)
        self.chats.pin_requested.connect(self.pin_requested)
        self.chats.free_requested.connect(self.free_requested)
        self.chats.compress_requested.connect(self.compress_requested)
        self.chats.undo_requested.connect(self.undo_requested)
        self.legend.asked.connect(self.help.toggle)
        for button in (self.what_button, self.marks_button):
            button.clicked.connect(lambda _, topic=button.topic: self.help.toggle(topic))
        self.help.changed.connect(self._on_help_changed)
        QShortcut(QKeySequence(KEY), self).activated.connect(self.close)
        QShortcut(QKeySequence("Esc"), self).activated.connect(self._on_escape)
        self.retranslate()
        resize_within_screen(self, 1100, 780)

    @property
    def rows(self) -> dict[str, ChatRow]:
        """Those that are shown, by conversation."""
        return self.chats.rows

    @property
    def topic_buttons(self) -> list[TopicButton]:
        return [self.what_button, *self.legend.buttons.values(), self.marks_button]

    def show_report(
        self, report: BlocksReported, state_of: Callable[[str], ChatState], bytes_per_token: int | None = None
    ) -> None:
        """`state_of` a conversation, by its id; `bytes_per_token` of the model that is loaded."""
        self._report = report
        self.budget.show_report(report)
        self.help.show_report(report, bytes_per_token)
        self.chats.show_report(report, state_of)
        self.free_all.setEnabled(report.memory_bytes > 0)
        self._show_marks()
        num_on_disk = sum(not row.held_bytes for row in report.conversations)
        self.disk_card.show_disk(report.disk_bytes, report.disk_cap_bytes, num_on_disk)
        _plot(self.bytes_card).set_mark(float(report.high_water_bytes))

    def show_states(self) -> None:
        """Titles, pins or what can be done have changed, not the blocks."""
        self.chats.show_states()

    def show_settings(self, settings: Settings) -> None:
        self.budget.show_budget(settings.memory_budget_mb)
        self.disk_card.show_settings(settings)
        self._show_marks()

    def show_history(self) -> None:
        """The plots and the diary have grown."""
        now, mean = numbers.speed(self._speed.last), numbers.speed(self._speed.mean)
        words = self.tr("{now} at last · {mean} mean").format(now=now, mean=mean)
        self.speed_card.set_words(self.tr("Speed"), words if self._speed.last else numbers.DASH)
        last = self._kv_bytes.last
        self.bytes_card.set_words(self.tr("KV bytes"), numbers.size(None if last is None else round(last)))
        self.speed_card.plot.update()
        self.bytes_card.plot.update()
        self.diary_card.refresh()

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("Memory – Ember"))
        self.title.setText(self.tr("Memory"))
        self.pane.setAccessibleName(self.tr("What is in memory and on disk"))
        self.budget.setAccessibleName(self.tr("Memory for chats, in MB"))
        self.budget.setToolTip(self.tr("Drag the end, or use the arrow keys, to change the memory budget"))
        self.free_all.setText(self.tr("Free all"))
        self.free_all.setToolTip(self.tr("Put every chat away from memory now; they come back from disk"))
        self.what_button.set_words(self.tr("What is this?"), self.tr("What are these blocks?"))
        self.marks_button.set_words("?", self.tr("What do the budget and its marks mean?"))
        self.legend.retranslate()
        self.help.retranslate()
        self.diary_card.retranslate()
        self.disk_card.retranslate()
        self.chats.retranslate()
        self._show_marks()
        self.show_history()

    # slots

    @Slot()
    def _show_marks(self) -> None:
        report, budget = self._report, self.budget
        used = numbers.size(report.memory_bytes if report else None)
        limit = numbers.size(budget.value() * MB)
        self.used.setText(self.tr("{used} of {budget}").format(used=used, budget=limit))
        high, low = budget.marks_bytes or (None, None)
        words = self.tr("makes room above {high}, down to {low}").format(high=numbers.size(high), low=numbers.size(low))
        self.marks.setText(words)
        budget.setAccessibleDescription(f"{self.used.text()}, {words}")

    @Slot(object)
    def _on_help_changed(self, topic: Topic | None) -> None:
        for button in self.topic_buttons:
            button.show_open(self.help.words.text() if button.topic is topic else None)
        if topic is None and self.help.close_button.hasFocus():
            self._asked.setFocus()
        elif topic is not None:
            self._asked = next(button for button in self.topic_buttons if button.topic is topic)

    @Slot()
    def _on_escape(self) -> None:
        """First what was opened last."""
        if self.help.topic is not None:
            self.help.dismiss()
        else:
            self.close()

    # Qt overrides

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.pane.setFocus(Qt.FocusReason.OtherFocusReason)
        self.shown.emit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_cards()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)

    # private

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.setSpacing(SPACE_S)
        head.addWidget(self.title, 0, Qt.AlignmentFlag.AlignTop)
        head.addWidget(self.what_button, 0, Qt.AlignmentFlag.AlignTop)
        head.addStretch(1)
        head.addWidget(self.legend, 100)
        above = QHBoxLayout()
        above.addWidget(self.used)
        above.addWidget(self.marks, 1)
        above.addWidget(self.marks_button)
        above.addWidget(self.free_all)
        self.marks.setWordWrap(True)
        self.marks.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._cards = QGridLayout()
        self._cards.setSpacing(SPACE_L)
        content = QWidget()
        column = QVBoxLayout(content)
        column.setContentsMargins(SPACE_XL, SPACE_L, SPACE_XL, SPACE_XL)
        column.setSpacing(SPACE_S)
        column.addLayout(head)
        column.addWidget(self.help)
        column.addSpacing(SPACE_S)
        column.addLayout(above)
        column.addWidget(self.budget)
        column.addSpacing(SPACE_S)
        column.addWidget(self.chats)
        column.addSpacing(SPACE_S)
        column.addLayout(self._cards)
        column.addStretch(1)
        self.pane = _Pane()
        self.pane.setWidget(content)
        content.setAutoFillBackground(False)  # which the line above has set
        self.pane.setWidgetResizable(True)
        self.pane.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # where one begins: the arrow keys scroll
        self.pane.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.addWidget(self.pane)
        self.setMinimumSize(420, 300)
        self._place_cards()

    def _place_cards(self) -> None:
        """Two beside each other where there is room."""
        is_narrow = self.width() < _NARROW_PX
        if is_narrow == self._is_narrow:
            return
        self._is_narrow = is_narrow
        cards = (self.speed_card, self.bytes_card, self.diary_card, self.disk_card)
        for number, card in enumerate(cards):
            self._cards.removeWidget(card)
            row, column = (number, 0) if is_narrow else divmod(number, 2)
            self._cards.addWidget(card, row, column)
        for column in (0, 1):
            self._cards.setColumnStretch(column, 0 if is_narrow and column else 1)


class _Pane(QScrollArea):
    """Shows that it has the focus where the keyboard brought it there; not when the window has just opened."""

    def focusInEvent(self, event: QFocusEvent) -> None:
        is_by_key = event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
        self._show_focus(is_shown=is_by_key)
        super().focusInEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self._show_focus(is_shown=False)
        super().focusOutEvent(event)

    def _show_focus(self, *, is_shown: bool) -> None:
        if is_shown is not (self.property("kind") == "pane"):
            self.setProperty("kind", "pane" if is_shown else "")
            self.style().unpolish(self)
            self.style().polish(self)


def _plot(card: PlotCard) -> TimePlot:
    assert isinstance(card.plot, TimePlot)
    return card.plot
