"""One experiment: what it is about, Run and Stop, plots and tables that grow, files, and the same as a command."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent, QStandardItemModel
from PySide6.QtWidgets import (
    QBoxLayout,
    QComboBox,
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.experiments import ROOM, command_of
from engine.protocol.commands import BenchName
from ui.composer.wrap_layout import WrapLayout
from ui.lab.command_line import CommandLine
from ui.lab.lab_runs import AT_WORK, LabRuns, Measurement, RunState
from ui.lab.loop_steps import LoopSteps
from ui.lab.plot_cards import PlotCards
from ui.lab.replies import Replies
from ui.lab.result_files import ResultFiles, shown_of
from ui.lab.results_table import ResultsTable
from ui.lab.run_words import facts_words, state_words
from ui.lab.view import Found, Table, View, count
from ui.settings.dialog_notice import DialogNotice
from ui.theme import Theme
from ui.tokens import SPACE_L, SPACE_M, SPACE_S, SPACE_XL

_READING_WIDTH = 840
_EXTRAS: dict[BenchName, Callable[[Theme], LoopSteps | Replies]] = {
    BenchName.LOOP: LoopSteps,
    BenchName.PRECISIONS: Replies,
}


class ExperimentPage(QScrollArea):
    run_requested = Signal(object, object)  # BenchName, the length or None
    stop_requested = Signal()

    def __init__(self, view: View, theme: Theme, runs: LabRuns, files: ResultFiles) -> None:
        super().__init__()
        self.view = view
        self._runs = runs
        self._files = files
        self.title = QLabel()
        self.title.setProperty("kind", "greeting")
        self.words = QLabel()
        self.words.setObjectName("labWords")
        self.words.setWordWrap(True)
        self.found_words = QLabel()
        self.found_words.setWordWrap(True)
        self.notice = DialogNotice()
        self.context_label = QLabel()
        self.context = QComboBox()
        self.run_button = _button("accent")
        self.stop_button = _button()
        self.picture_button = _button()
        self.table_button = _button()
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.facts = QLabel()
        self.facts.setProperty("kind", "muted")
        self.state = QLabel()
        self.state.setProperty("kind", "muted")
        self.state.setWordWrap(True)
        self.plots = PlotCards(theme)
        extra = _EXTRAS.get(view.name)
        self.extra = None if extra is None else extra(theme)
        self.tables: list[ResultsTable] = []
        self._table_cards: list[QFrame] = []
        self._table_titles: list[QLabel] = []
        self.command = CommandLine()
        self._lay_out()
        self.run_button.clicked.connect(self._on_run_clicked)
        self.stop_button.clicked.connect(self.stop_requested)
        self.picture_button.clicked.connect(self._on_picture_clicked)
        self.table_button.clicked.connect(self._on_table_clicked)
        self.context.currentIndexChanged.connect(self._show_command)
        self.retranslate()

    @property
    def chosen_context(self) -> int | None:
        value = self.context.currentData()
        return value if isinstance(value, int) else None

    def choose_context(self, context: int) -> None:
        self.context.setCurrentIndex(self.context.findData(context))

    def refresh(self) -> None:
        """Show what there is now."""
        run = self._runs.measurement(self.view.name)
        found = run.found if run is not None else Found(context=self.chosen_context)
        is_done = run is not None and run.state is RunState.DONE and bool(found.rows)
        self.words.setText(self.view.before() if is_done else f"{self.view.before()} {self.view.takes()}")
        self.found_words.setText(self.view.words(found) if is_done else "")
        self.found_words.setVisible(is_done)
        self._show_buttons(run)
        self.plots.show_plots(self.view.plots(found))
        self._show_tables(self.view.tables(found) if found.rows else ())
        if self.extra is not None:
            self.extra.show_rows(found.rows)
        self._show_command()

    def retranslate(self) -> None:
        self.title.setText(self.view.title())
        self.setAccessibleName(self.view.title())
        self.context_label.setText(self.view.context_words())
        self.context.setAccessibleName(self.view.context_words())
        self._fill_contexts()
        self.stop_button.setText(self.tr("Stop"))
        self.picture_button.setText(self.tr("Save picture…"))
        self.table_button.setText(self.tr("Save table…"))
        self.progress.setAccessibleName(self.tr("Progress of the measurement"))
        if self.extra is not None:
            self.extra.retranslate()
        self.refresh()

    # slots

    @Slot()
    def _on_run_clicked(self) -> None:
        self.notice.hide()
        self.run_requested.emit(self.view.name, self.chosen_context)

    @Slot()
    def _on_picture_clicked(self) -> None:
        run = self._runs.measurement(self.view.name)
        if run is not None:
            self._files.ask_for_picture(shown_of(self.view, run))

    @Slot()
    def _on_table_clicked(self) -> None:
        run = self._runs.measurement(self.view.name)
        if run is not None:
            self._files.ask_for_table(shown_of(self.view, run))

    @Slot()
    def _show_command(self) -> None:
        model = self._runs.model
        of_model = () if model is None else (model.name, str(model.weights))
        self.command.show_command(command_of(self.view.name, self.chosen_context, *of_model))

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_facts()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)

    # private

    def _show_buttons(self, run: Measurement | None) -> None:
        is_at_work = run is not None and run.state in AT_WORK
        can_run = self._runs.running is None and self._runs.model is not None
        had_focus = self.run_button.hasFocus() or self.stop_button.hasFocus()
        self.run_button.setText(self.tr("Measure again") if run is not None and run.rows else self.tr("Measure"))
        self.run_button.setVisible(not is_at_work)
        self.run_button.setEnabled(can_run)
        self.stop_button.setVisible(is_at_work)
        self.stop_button.setEnabled(run is not None and run.state is not RunState.STOPPING)
        if had_focus:
            (self.stop_button if is_at_work else self.run_button).setFocus()
        self.context.setEnabled(not is_at_work)
        self._offer_contexts()
        has_rows = run is not None and bool(run.rows)
        self.picture_button.setEnabled(has_rows)
        self.table_button.setEnabled(has_rows)
        self.progress.setVisible(is_at_work)
        if run is not None:
            self.progress.setRange(0, max(0, run.total))  # 0 to 0 while nothing is known: it goes to and fro
            self.progress.setValue(run.done)
        self.facts.setText(facts_words(run) if run is not None and has_rows and not is_at_work else "")
        self.facts.setVisible(bool(self.facts.text()))
        self._place_facts()
        words = state_words(run, self._runs)
        self.state.setText(words)
        self.state.setVisible(bool(words))

    def _place_facts(self) -> None:
        """Beside the buttons where both have room, else below."""
        room = self.viewport().width() - 2 * SPACE_XL - SPACE_M
        is_wide = self._controls.sizeHint().width() + self.facts.sizeHint().width() <= room
        self._top.setDirection(QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom)

    def _show_tables(self, tables: tuple[Table, ...]) -> None:
        while len(self.tables) < len(tables):
            self._add_table()
        for number, widget in enumerate(self.tables):
            is_there = number < len(tables)
            self._table_cards[number].setVisible(is_there)
            if is_there:
                self._table_titles[number].setText(tables[number].title)
                self._table_titles[number].setVisible(bool(tables[number].title))
                widget.show_table(tables[number], self.view.title())

    def _add_table(self) -> None:
        card, title, table = QFrame(), QLabel(), ResultsTable()
        card.setProperty("kind", "card")
        title.setProperty("kind", "strong")
        column = QVBoxLayout(card)
        column.setContentsMargins(SPACE_L, SPACE_S, SPACE_L, SPACE_S)
        column.addWidget(title)
        column.addWidget(table)
        self._tables_column.addWidget(card)
        self.tables.append(table)
        self._table_cards.append(card)
        QWidget.setTabOrder(table, self.command.copy_button)  # which comes last
        self._table_titles.append(title)

    def _fill_contexts(self) -> None:
        chosen = self.chosen_context or self.view.usual
        self.context.blockSignals(True)
        self.context.clear()
        for context in self.view.contexts:
            self.context.addItem(self.tr("{count} tokens").format(count=count(context)), context)
        self.context.setCurrentIndex(max(0, self.context.findData(chosen)))
        self.context.blockSignals(False)
        self.context.setVisible(bool(self.view.contexts))
        self.context_label.setVisible(bool(self.view.contexts))

    def _offer_contexts(self) -> None:
        """Only what the loaded model reads, with what the measurement needs beyond it, can be chosen."""
        model, items = self._runs.model, self.context.model()
        if model is None or not self.view.is_bound_by_model or not isinstance(items, QStandardItemModel):
            return
        most = model.context_length - ROOM.get(self.view.name, 0)
        fitting = [number for number, one in enumerate(self.view.contexts) if one <= most]
        for number in range(self.context.count()):
            items.item(number).setEnabled(number in fitting)
        if fitting and self.context.currentIndex() not in fitting:
            self.context.setCurrentIndex(fitting[-1])

    def _lay_out(self) -> None:
        content = QWidget()
        content.setObjectName("labPage")
        running = QWidget()
        row = QHBoxLayout(running)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_S)
        row.addWidget(self.context_label)
        row.addWidget(self.context)
        row.addWidget(self.run_button)
        row.addWidget(self.stop_button)
        controls = QWidget()
        wrap = WrapLayout(controls, spacing=SPACE_S)
        for part in (running, self.picture_button, self.table_button):
            wrap.addWidget(part)
        self._tables_column = QVBoxLayout()
        self._tables_column.setSpacing(SPACE_M)
        column = QVBoxLayout(content)
        column.setContentsMargins(SPACE_XL, SPACE_XL, SPACE_XL, SPACE_L)
        column.setSpacing(SPACE_M)
        column.addWidget(self.title)
        column.addLayout(reading_width(self.words))
        self._top = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._top.setSpacing(SPACE_M)
        self._controls = controls
        self._top.addWidget(controls, 1)
        self._top.addWidget(self.facts)
        column.addWidget(self.notice)
        column.addLayout(self._top)
        column.addWidget(self.progress)
        column.addWidget(self.state)
        column.addLayout(reading_width(self.found_words))
        parts = [self.plots, self.extra] if isinstance(self.extra, Replies) else [self.extra, self.plots]
        for shown in parts:
            if shown is not None:
                column.addWidget(shown)
        column.addLayout(self._tables_column)
        column.addWidget(self.command)
        column.addStretch(1)
        self.setWidget(content)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # what is in it has the keyboard


def reading_width(label: QLabel) -> QHBoxLayout:
    """No wider than one reads well."""
    label.setMaximumWidth(_READING_WIDTH)
    row = QHBoxLayout()
    row.addWidget(label, 1)
    row.addStretch(0)
    return row


def _button(kind: str = "") -> QPushButton:
    button = QPushButton()
    button.setProperty("kind", kind)
    button.setAutoDefault(False)
    return button
