"""What the calculator is asked: numbers typed in, or a model on disk, which fills them in. Told as a whole or refused
in a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from PySide6.QtCore import QSignalBlocker, Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QComboBox, QGridLayout, QLabel, QLineEdit, QSizePolicy, QWidget

from app.cache_shape import CacheShape
from app.cache_size import MOST_BATCH, MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, MOST_TOKENS, Precision, typed_shape
from app.model_library import ModelLibrary
from ui.lab.view import count
from ui.tokens import SPACE_M, SPACE_XS

NAMES = ("layers", "heads", "kv_heads", "head_dim", "tokens", "batch")
_OF_THE_MODEL = NAMES[:4]
_MOST = {
    "layers": MOST_LAYERS,
    "heads": MOST_HEADS,
    "kv_heads": MOST_HEADS,
    "head_dim": MOST_HEAD_DIM,
    "tokens": MOST_TOKENS,
    "batch": MOST_BATCH,
}
_FIRST = {"layers": "32", "heads": "32", "kv_heads": "8", "head_dim": "128", "tokens": "8192", "batch": "1"}
_LONGEST = 20  # characters of a number
_LEAST_WIDTH, _WIDE_PX = 110, 560


class WrongNumberError(Exception):
    """`field` cannot be taken; the text is a sentence in the window's language."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__(words)
        self.field = name


@dataclass(frozen=True, slots=True)
class Numbers:
    """As typed in; `heads` is None where it was left empty."""

    layers: int
    heads: int | None
    kv_heads: int
    head_dim: int

    @property
    def shape(self) -> CacheShape:
        return typed_shape(self.layers, self.kv_heads, self.head_dim, self.heads)


class CalculatorForm(QWidget):
    changed = Signal()
    model_chosen = Signal(object)  # Path, or None for numbers of one's own

    def __init__(self, library: ModelLibrary, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._library = library
        self.model = QComboBox()
        self.precision = QComboBox()
        self.fields = {name: QLineEdit(_FIRST[name]) for name in NAMES}
        self._labels = {name: QLabel() for name in (*NAMES, "model", "precision")}
        for precision in Precision:
            self.precision.addItem("", precision)
        self._lay_out()
        for field in self.fields.values():
            field.setMaxLength(_LONGEST)
            field.setFixedHeight(32)
            field.textChanged.connect(self.changed)
        self.precision.currentIndexChanged.connect(self.changed)
        self.model.currentIndexChanged.connect(self._on_model_chosen)
        self.retranslate()

    def numbers(self) -> Numbers:
        """Of a model that is typed in. Raises WrongNumberError."""
        layers, kv_heads, head_dim = (self._number(name) for name in ("layers", "kv_heads", "head_dim"))
        heads = self._number("heads") if self.fields["heads"].text().strip() else None
        if heads is not None and heads % kv_heads:
            words = self.tr("{heads} query heads cannot share {kv_heads} KV heads evenly; give a multiple of them.")
            raise WrongNumberError("heads", words.format(heads=count(heads), kv_heads=count(kv_heads)))
        return Numbers(layers, heads, kv_heads, head_dim)

    def chat(self) -> tuple[int, int, Precision]:
        """Tokens of a chat, how many chats, and how they are kept. Raises WrongNumberError."""
        return self._number("tokens"), self._number("batch"), Precision(self.precision.currentData())

    def show_shape(self, shape: CacheShape | None) -> None:
        """Of the model that was chosen; None gives the fields back."""
        for name in _OF_THE_MODEL:
            self.fields[name].setEnabled(shape is None)
        if shape is None:
            return
        first = shape.first
        values = {
            "layers": shape.num_layers,
            "heads": shape.heads,
            "kv_heads": first.kv_heads if first is not None else None,
            "head_dim": first.key_dim if first is not None else None,
        }
        with QSignalBlocker(self):
            for name, value in values.items():
                self.fields[name].setText("" if not value else str(value))
            if shape.context_length is not None:
                self.fields["tokens"].setText(str(shape.context_length))

    def fill_models(self) -> None:
        """What is on disk now."""
        chosen = self.model.currentData()
        with QSignalBlocker(self.model):
            self.model.clear()
            self.model.addItem(self.tr("Typed in"), None)
            for entry in self._library.models():
                self.model.addItem(entry.name, entry.path)
            self.model.setCurrentIndex(max(0, self.model.findData(chosen)))

    def name_of(self, name: str) -> str:
        return {
            "layers": self.tr("Layers"),
            "heads": self.tr("Query heads"),
            "kv_heads": self.tr("KV heads"),
            "head_dim": self.tr("Numbers of a head"),
            "tokens": self.tr("Tokens of a chat"),
            "batch": self.tr("Chats at once"),
            "model": self.tr("Model"),
            "precision": self.tr("Precision"),
        }[name]

    def retranslate(self) -> None:
        for name, label in self._labels.items():
            label.setText(self.name_of(name))
        for name, field in self.fields.items():
            field.setAccessibleName(self.name_of(name))
        self.fields["heads"].setPlaceholderText(self.tr("may be left empty"))
        self.model.setAccessibleName(self.name_of("model"))
        self.precision.setAccessibleName(self.name_of("precision"))
        for index, precision in enumerate(Precision):
            self.precision.setItemText(index, precision_name(precision))
        self.fill_models()

    @Slot()
    def _on_model_chosen(self) -> None:
        data = self.model.currentData()
        self.model_chosen.emit(data if isinstance(data, Path) else None)

    def _number(self, name: str) -> int:
        text = self.fields[name].text().strip().replace(",", "").replace(" ", "").replace("\u00a0", "")
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST[name]:
            words = self.tr("{name}: give a whole number from 1 to {most}.")
            raise WrongNumberError(name, words.format(name=self.name_of(name), most=count(_MOST[name])))
        return int(text)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _lay_out(self) -> None:
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(SPACE_M)
        self._grid.setVerticalSpacing(SPACE_XS + 2)
        self._columns = 0
        for name, widget in self._places():
            self._labels[name].setProperty("kind", "muted")
            self._labels[name].setBuddy(widget)
            widget.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
            widget.setMinimumWidth(_LEAST_WIDTH)
        self._arrange()
        in_order = [widget for _, widget in self._places()]
        for before, widget in pairwise(in_order):
            QWidget.setTabOrder(before, widget)

    def _places(self) -> list[tuple[str, QWidget]]:
        fields = [(name, self.fields[name]) for name in ("tokens", "batch", *_OF_THE_MODEL)]
        return [("model", self.model), ("precision", self.precision), *fields]

    def _arrange(self) -> None:
        columns = 4 if self.width() >= _WIDE_PX else 2
        if columns == self._columns:
            return
        for place in range(4):
            self._grid.setColumnStretch(place, 1 if place < columns else 0)
        self._columns = columns
        for number, (name, widget) in enumerate(self._places()):
            row, place = divmod(number, columns)
            self._grid.addWidget(self._labels[name], 2 * row, place, Qt.AlignmentFlag.AlignBottom)
            self._grid.addWidget(widget, 2 * row + 1, place)


def precision_name(precision: Precision) -> str:
    """The names of the command line."""
    return str(precision)
