"""The loop, to be stepped through: the text so far, the five best tokens with their probabilities, the cache."""

from __future__ import annotations

import html
from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSignalBlocker, QSize, Qt, Slot
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QSlider, QVBoxLayout, QWidget

from ui import numbers
from ui.lab import marks
from ui.lab.figures import figure, milliseconds, percent
from ui.lab.token_words import token_words
from ui.lab.view import Row, count
from ui.theme import Theme, mono_font, ui_font
from ui.tokens import SECONDARY_PX, SPACE_L, SPACE_M, SPACE_S, TEXT_PX

_LINE = 26.0


class BestFive(QWidget):
    """A bar a token, the best one first and in the accent."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._best: Sequence[Row] = ()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme.changed.connect(self.update)

    def show_best(self, best: Sequence[Row]) -> None:
        self._best = best
        self.setAccessibleName(self.tr("The best tokens of this step"))
        self.setAccessibleDescription("; ".join(self.lines()))
        self.setToolTip("\n".join(self.lines()))
        self.update()

    def lines(self) -> list[str]:
        words = self.tr("{token}: {probability}, score {logit}")
        return [
            words.format(
                token=token_words(one["text"]), probability=percent(one["probability"], 1), logit=figure(one["logit"])
            )
            for one in self._best
        ]

    def sizeHint(self) -> QSize:
        return QSize(300, round(_LINE * 5))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens = self._theme.tokens
        mono, small = mono_font(TEXT_PX), ui_font(SECONDARY_PX)
        label = min(150.0, self.width() * 0.32)
        figures = QFontMetricsF(small).horizontalAdvance("100.0 %   −00.0") + 12
        room = max(20.0, self.width() - label - figures)
        for number, one in enumerate(self._best):
            y = number * _LINE
            painter.setFont(mono)
            painter.setPen(QColor(tokens.text))
            shown = QFontMetricsF(mono).elidedText(token_words(one["text"]), Qt.TextElideMode.ElideRight, label - 8)
            middle = Qt.AlignmentFlag.AlignVCenter
            painter.drawText(QRectF(0, y, label - 8, _LINE), middle | Qt.AlignmentFlag.AlignLeft, shown)
            wide = max(2.0, room * float(one["probability"]))
            place = QRectF(label, y + 6, wide, _LINE - 12)
            marks.fill(painter, place, tokens, "16bit" if number == 0 else "on_disk")
            painter.setFont(small)
            painter.setPen(QColor(tokens.muted))
            words = f"{percent(one['probability'], 1)}   {figure(one['logit'])}"
            after = QRectF(label + wide + 8, y, figures, _LINE)
            painter.drawText(after, middle | Qt.AlignmentFlag.AlignLeft, words)
        painter.end()


class LoopSteps(QFrame):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        self._rows: Sequence[Row] = ()
        self.heading = QLabel()
        self.heading.setProperty("kind", "strong")
        self.text = QLabel()
        self.text.setWordWrap(True)
        self.text.setTextFormat(Qt.TextFormat.RichText)
        self.text.setTextInteractionFlags(Qt.TextInteractionFlag.NoTextInteraction)
        self.about = QLabel()
        self.about.setProperty("kind", "muted")
        self.about.setWordWrap(True)
        self.best = BestFive(theme)
        self.back, self.forward = QPushButton("‹"), QPushButton("›")
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setPageStep(1)
        row = QHBoxLayout()
        row.setSpacing(SPACE_S)
        row.addWidget(self.back)
        row.addWidget(self.slider, 1)
        row.addWidget(self.forward)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_L, SPACE_M, SPACE_L, SPACE_M)
        column.setSpacing(SPACE_S)
        for widget in (self.heading, self.text, self.best, self.about):
            column.addWidget(widget)
        column.addLayout(row)
        self.slider.valueChanged.connect(self._show)
        self.back.clicked.connect(lambda: self.slider.setValue(self.slider.value() - 1))
        self.forward.clicked.connect(lambda: self.slider.setValue(self.slider.value() + 1))
        self.retranslate()

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Stays at its step; at the last one it goes on with what arrives."""
        is_at_end = self.slider.value() == self.slider.maximum()
        is_new = len(rows) < len(self._rows) or not self._rows
        self._rows = list(rows)
        self.setVisible(bool(rows))
        with QSignalBlocker(self.slider):
            self.slider.setRange(1, max(1, len(rows)))
            if is_at_end or is_new:
                self.slider.setValue(len(rows))
        self._show()

    def retranslate(self) -> None:
        self.back.setAccessibleName(self.tr("Step back"))
        self.back.setToolTip(self.tr("Step back"))
        self.forward.setAccessibleName(self.tr("Step on"))
        self.forward.setToolTip(self.tr("Step on"))
        self.slider.setAccessibleName(self.tr("Step of the loop"))
        self._show()

    @Slot()
    def _show(self) -> None:
        if not self._rows:
            return
        number = min(self.slider.value(), len(self._rows))
        row = self._rows[number - 1]
        self.heading.setText(self.tr("Step {step} of {steps}").format(step=count(number), steps=count(len(self._rows))))
        before = "".join(one["text"] for one in self._rows[: number - 1])
        chosen = html.escape(token_words(row["text"]))
        self.text.setText(f"{html.escape(before)}<b><u>{chosen}</u></b>")
        self.text.setAccessibleName(before + row["text"])
        grown = row["cache_bytes"] - (self._rows[number - 2]["cache_bytes"] if number > 1 else 0)
        words = self.tr("Read {fed} in {time}; the cache grew by {grown} to {tokens} tokens, {size}.")
        fed = self.tr("1 token") if row["fed"] == 1 else self.tr("{count} tokens").format(count=count(row["fed"]))
        self.about.setText(
            words.format(
                fed=fed,
                time=milliseconds(row["ms"]),
                grown=numbers.size(grown),
                tokens=count(row["cache_tokens"]),
                size=numbers.size(row["cache_bytes"]),
            )
        )
        self.best.show_best(row["best"])
        self.slider.setAccessibleDescription(f"{self.heading.text()}. {'; '.join(self.best.lines())}")
        self.back.setEnabled(number > 1)
        self.forward.setEnabled(number < len(self._rows))
