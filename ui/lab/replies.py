"""Two replies side by side: the full cache's, and that of a precision to choose, from where they part marked."""

from __future__ import annotations

import html
from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QComboBox, QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from ui.lab.view import Row, count
from ui.lab.views.precisions import scheme_words
from ui.theme import Theme
from ui.tokens import SPACE_L, SPACE_M, SPACE_S

_NARROW_PX = 560


class Replies(QFrame):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        self._theme = theme
        self._rows: Sequence[Row] = ()
        self.heading = QLabel()
        self.heading.setProperty("kind", "strong")
        self.choice = QComboBox()
        self.full_head, self.other_head = QLabel(), QLabel()
        self.full, self.other = QLabel(), QLabel()
        self.where = QLabel()
        self.where.setProperty("kind", "muted")
        self._sides = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._sides.setSpacing(SPACE_L)
        for head, text in ((self.full_head, self.full), (self.other_head, self.other)):
            head.setProperty("kind", "muted")
            text.setWordWrap(True)
            text.setTextFormat(Qt.TextFormat.RichText)
            text.setAlignment(Qt.AlignmentFlag.AlignTop)
            side = QVBoxLayout()
            side.setSpacing(SPACE_S)
            side.addWidget(head)
            side.addWidget(text, 1)
            self._sides.addLayout(side, 1)
        top = QHBoxLayout()
        top.addWidget(self.heading, 1)
        top.addWidget(self.choice)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_L, SPACE_M, SPACE_L, SPACE_M)
        column.setSpacing(SPACE_S)
        column.addLayout(top)
        column.addLayout(self._sides)
        column.addWidget(self.where)
        self.choice.currentIndexChanged.connect(self._show)
        theme.changed.connect(self._show)
        self.retranslate()

    def show_rows(self, rows: Sequence[Row]) -> None:
        self._rows = [row for row in rows if row.get("reply") is not None]
        others = [str(row["scheme"]) for row in self._rows if row["scheme"] != "full"]
        self.setVisible(bool(others))
        chosen = self.choice.currentText()
        with QSignalBlocker(self.choice):
            self.choice.clear()
            self.choice.addItems(others)
            differing = [row["scheme"] for row in self._rows if row["first_difference"] is not None]
            wanted = chosen if chosen in others else next(iter(differing), chosen)
            self.choice.setCurrentIndex(max(0, self.choice.findText(wanted)))
        self._show()

    def retranslate(self) -> None:
        self.heading.setText(self.tr("Two replies"))
        self.choice.setAccessibleName(self.tr("Precision of the second reply"))
        self._show()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_narrow = self.width() < _NARROW_PX
        self._sides.setDirection(QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight)

    @Slot()
    def _show(self) -> None:
        rows = {str(row["scheme"]): row for row in self._rows}
        full, other = rows.get("full"), rows.get(self.choice.currentText())
        if full is None or other is None:
            return
        self.full_head.setText(scheme_words("full"))
        self.other_head.setText(self.choice.currentText())
        same, different = str(other["same_text"]), str(other["different_text"])
        whole = str(full["reply"])
        rest = whole[len(same) :] if whole.startswith(same) and different else ""
        self.full.setText(self._marked(whole[: len(whole) - len(rest)], rest))
        self.other.setText(self._marked(same, different))
        self.full.setAccessibleName(f"{self.full_head.text()}: {whole}")
        self.other.setAccessibleName(f"{self.other_head.text()}: {other['reply']}")
        first = other["first_difference"]
        if first is None:
            self.where.setText(self.tr("Both replies are the same."))
        else:
            self.where.setText(self.tr("They part at token {number}.").format(number=count(first + 1)))

    def _marked(self, same: str, different: str) -> str:
        tokens = self._theme.tokens
        shown = html.escape(same).replace("\n", "<br>")
        if not different:
            return shown
        rest = html.escape(different).replace("\n", "<br>")
        return f'{shown}<span style="background:{tokens.accent_behind}; text-decoration:underline">{rest}</span>'
