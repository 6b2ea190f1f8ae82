"""The calculator: how large a cache gets, of which layers, and what fits here. Arithmetic only; nothing is loaded."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QEvent, Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

from app.cache_fit import what_fits
from app.cache_size import cache_bytes, heads_compared
from app.errors import AppError
from app.experiments_size import size_tables
from app.machine_memory import MachineMemory, read_machine_memory
from app.model_library import ModelLibrary
from app.model_on_disk import ModelOnDisk, read_model
from engine.protocol.errors import EngineError
from engine.protocol.events import ModelInfo
from ui.lab import calculator_words as words
from ui.lab.calculator_form import CalculatorForm, Numbers, WrongNumberError
from ui.lab.calculator_words import Answer
from ui.lab.command_line import CommandLine
from ui.lab.experiment_page import reading_width
from ui.lab.plot_cards import PlotCards
from ui.lab.result_files import ResultFiles, Shown
from ui.lab.results_table import ResultsTable
from ui.lab.run_words import time_words
from ui.settings.dialog_notice import DialogNotice
from ui.theme import Theme
from ui.tokens import SPACE_L, SPACE_M, SPACE_S, SPACE_XL

_NUM_TABLES = 3


def calculator_name() -> str:
    return QCoreApplication.translate("Calculator", "Size calculator")


class CalculatorPage(QScrollArea):
    answered = Signal()

    def __init__(
        self,
        library: ModelLibrary,
        theme: Theme,
        loaded: Callable[[], ModelInfo | None],
        files: ResultFiles,
        memory: Callable[[], MachineMemory] = read_machine_memory,
    ) -> None:
        """`loaded`: the model whose weights are in memory already."""
        super().__init__()
        self._loaded = loaded
        self._files = files
        self._memory = memory
        self._model: ModelOnDisk | None = None
        self._model_failure = ""
        self.answer: Answer | None = None
        self.title, self.words = QLabel(), QLabel()
        self.title.setProperty("kind", "greeting")
        self.words.setObjectName("labWords")
        self.form = CalculatorForm(library)
        self.total, self.detail, self.fits = QLabel(), QLabel(), QLabel()
        self.notice = DialogNotice()
        self.picture_button, self.table_button = QPushButton(), QPushButton()
        self.plots = PlotCards(theme)
        self.tables: list[ResultsTable] = []
        self._titles: list[QLabel] = []
        self._cards: list[QFrame] = []
        self.command = CommandLine()
        self._lay_out()
        self.form.changed.connect(self.refresh)
        self.form.model_chosen.connect(self._on_model_chosen)
        for button, ask in ((self.picture_button, files.ask_for_picture), (self.table_button, files.ask_for_table)):
            button.setAutoDefault(False)
            button.clicked.connect(partial(self._save, ask))
        self.retranslate()

    @Slot()
    def refresh(self) -> None:
        """Compute anew, with what is free now."""
        try:
            if self._model_failure:
                raise WrongNumberError("model", self._model_failure)
            self.answer, numbers = self._compute()
        except WrongNumberError as error:
            self.answer = None
            self.total.setText(str(error))
            self.command.show_command("")
            is_size = False
        else:
            self.total.setText(words.total_words(self.answer))
            self.detail.setText(words.detail_words(self.answer))
            self.fits.setText(words.fits_words(self.answer.fits))
            self.plots.show_plots([words.plot(self.answer)])
            self.command.show_command(self._command(numbers))
            is_size = True
        for widget in (self.detail, self.fits, self.plots, self.command, self.picture_button, self.table_button):
            widget.setVisible(is_size)
        self.total.setProperty("kind", "greeting" if is_size else "notice")
        self.total.style().unpolish(self.total)
        self.total.style().polish(self.total)
        self._show_tables()
        self.answered.emit()

    def retranslate(self) -> None:
        self.title.setText(calculator_name())
        self.setAccessibleName(calculator_name())
        self.words.setText(
            self.tr(
                "Every token leaves a key and a value in every layer: 2 × layers × KV heads × numbers of a head × "
                "bytes of a number. Choose a model, or type numbers in; what fits is computed from the memory that is "
                "free now."
            )
        )
        self.picture_button.setText(self.tr("Save picture…"))
        self.table_button.setText(self.tr("Save table…"))
        self.form.retranslate()
        self.refresh()

    def shown(self) -> Shown | None:
        """What there is to save; None while there is no answer."""
        answer = self.answer
        if answer is None:
            return None
        now = datetime.now().astimezone()
        model = self.form.model.currentText() if self._model is not None else None
        about = " · ".join(filter(None, ("Ember", model, *words.detail_words(answer).splitlines(), time_words(now))))
        return Shown(
            f"ember-size-{answer.asked.tokens}",
            words.total_words(answer),
            about,
            (words.plot(answer),),
            words.tables(answer),
            size_tables(answer.shape, answer.asked, answer.fits, answer.heads, self.command.text, now, model),
        )

    def _save(self, ask: Callable[[Shown], None]) -> None:
        shown = self.shown()
        if shown is not None:
            self.notice.hide()
            ask(shown)

    @Slot(object)
    def _on_model_chosen(self, path: Path | None) -> None:
        self._model, self._model_failure = None, ""
        if path is not None:
            try:
                self._model = read_model(path)
            except EngineError:
                self._model_failure = self.tr(
                    "The files of this model are damaged or incomplete; fetch it again, or type the numbers in instead."
                )
            except AppError:
                self._model_failure = self.tr(
                    "The files of this model do not tell what its cache keeps; type the numbers in instead."
                )
        self.form.show_shape(self._model.shape if self._model is not None else None)
        self.refresh()

    # Qt overrides

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)

    # private

    def _compute(self) -> tuple[Answer, Numbers | None]:
        """Raises WrongNumberError."""
        tokens, batch, precision = self.form.chat()
        numbers: Numbers | None = None
        weights: int | None = None
        if self._model is None:
            numbers = self.form.numbers()
            shape = numbers.shape
        else:
            shape, weights = self._model.shape, self._model.weights_bytes
        fits = what_fits(shape, self._memory(), weights, batch, is_loaded=self._is_loaded())
        asked = cache_bytes(shape, tokens, precision, batch)
        return Answer(shape, asked, fits, heads_compared(shape, precision)), numbers

    def _is_loaded(self) -> bool:
        loaded = self._loaded()
        return loaded is not None and loaded.path == self.form.model.currentData()

    def _command(self, numbers: Numbers | None) -> str:
        tokens, batch, precision = self.form.chat()
        parts = ["ember", "size"]
        if numbers is None:
            parts += ["--model", shlex.quote(self.form.model.currentText())]
        else:
            parts += ["--layers", str(numbers.layers)]
            if numbers.heads is not None:
                parts += ["--heads", str(numbers.heads)]
            parts += ["--kv-heads", str(numbers.kv_heads), "--head-dim", str(numbers.head_dim)]
        parts += ["--tokens", str(tokens)]
        if batch > 1:
            parts += ["--batch", str(batch)]
        return " ".join([*parts, "--precision", str(precision)])

    def _show_tables(self) -> None:
        tables = words.tables(self.answer) if self.answer is not None else ()
        for number, card in enumerate(self._cards):
            is_there = number < len(tables)
            card.setVisible(is_there)
            if is_there:
                self._titles[number].setText(tables[number].title)
                self._titles[number].setVisible(bool(tables[number].title))
                self.tables[number].show_table(tables[number], calculator_name())

    def _lay_out(self) -> None:
        content = QWidget()
        content.setObjectName("labPage")
        column = QVBoxLayout(content)
        column.setContentsMargins(SPACE_XL, SPACE_XL, SPACE_XL, SPACE_L)
        column.setSpacing(SPACE_M)
        form_card = _card()
        _inside(form_card).addWidget(self.form)
        result = _card()
        for label in (self.total, self.detail, self.fits):
            label.setWordWrap(True)
            _inside(result).addWidget(label)
        self.detail.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        saving = QHBoxLayout()
        saving.setSpacing(SPACE_S)
        saving.addWidget(self.picture_button)
        saving.addWidget(self.table_button)
        saving.addStretch(1)
        _inside(result).addLayout(saving)
        self.fits.setProperty("kind", "muted")
        self.words.setWordWrap(True)
        column.addWidget(self.title)
        column.addLayout(reading_width(self.words))
        column.addWidget(self.notice)
        column.addWidget(form_card)
        column.addWidget(result)
        for _ in range(_NUM_TABLES):
            card, title, table = _card(), QLabel(), ResultsTable()
            title.setProperty("kind", "strong")
            _inside(card).addWidget(title)
            _inside(card).addWidget(table)
            column.addWidget(card)
            self._cards.append(card)
            self._titles.append(title)
            self.tables.append(table)
        column.insertWidget(column.count() - _NUM_TABLES + 1, self.plots)
        column.addWidget(self.command)
        column.addStretch(1)
        self.setWidget(content)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # what is in it has the keyboard


def _card() -> QFrame:
    card = QFrame()
    card.setProperty("kind", "card")
    column = QVBoxLayout(card)
    column.setContentsMargins(SPACE_L, SPACE_M, SPACE_L, SPACE_M)
    column.setSpacing(SPACE_S)
    return card


def _inside(card: QFrame) -> QVBoxLayout:
    layout = card.layout()
    assert isinstance(layout, QVBoxLayout)
    return layout
