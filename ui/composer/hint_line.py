"""The line under the composer: on the left what sending means, on the right what can be done about it, and, where there
is room, which key sends.
"""

from __future__ import annotations

from html import escape

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QPalette, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QWidget

from ui.tokens import SPACE_L

_ACTION_EDGE_PX = 2  # of the button above its name, as the style sheet has it


class HintLine(QWidget):
    """Without words of its own, the key's words stand on the left. `strong`: the part of them that is set off.

    `action` is a button that belongs to the words; hidden without a name.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._words = ""
        self._strong = ""
        self._keys = ""
        self.label = QLabel()
        self.label.setProperty("kind", "muted")
        self.label.setWordWrap(True)
        self.label.setAlignment(Qt.AlignmentFlag.AlignLeading | Qt.AlignmentFlag.AlignTop)
        self.keys = QLabel()
        self.keys.setProperty("kind", "muted")
        self.keys.setTextFormat(Qt.TextFormat.PlainText)
        self.action = QPushButton()
        self.action.setProperty("kind", "action")
        self.action.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click must not take the focus: it would end composing
        self.action.setCursor(Qt.CursorShape.PointingHandCursor)
        self.action.hide()
        row = QHBoxLayout(self)
        row.setContentsMargins(4, 0, 4, 0)
        row.setSpacing(SPACE_L)
        row.addWidget(self.label, 1)
        row.addWidget(self.action, 0, Qt.AlignmentFlag.AlignTop)
        row.addWidget(self.keys, 0, Qt.AlignmentFlag.AlignTop)

    def text(self) -> str:
        """What is read on the left."""
        return self._words or self._keys

    def show_words(self, words: str, strong: str, keys: str, action: str = "") -> None:
        if (words, strong, keys, action) != (self._words, self._strong, self._keys, self.action.text()):
            self._words, self._strong, self._keys = words, strong, keys
            self.action.setText(action)
            self.action.setVisible(bool(action))
            for label in (self.label, self.keys):  # all on one line
                label.setContentsMargins(0, _ACTION_EDGE_PX if action else 0, 0, 0)
            self._refresh()

    def set_loud(self, is_loud: bool) -> None:
        """Set off from everything around it: someone asked for what these words refuse."""
        if bool(self.label.property("loud")) != is_loud:
            self.label.setProperty("loud", is_loud)
            self.label.style().unpolish(self.label)
            self.label.style().polish(self.label)
            self.label.setMargin(4 if is_loud else 0)

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._make_room()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.StyleChange):
            self._refresh()
        super().changeEvent(event)

    def _refresh(self) -> None:
        self.keys.setText(self._keys)
        before, strong, after = self._words.partition(self._strong) if self._strong else (self.text(), "", "")
        colour = self.palette().color(QPalette.ColorRole.WindowText).name()
        set_off = f'<span style="color: {colour}; font-weight: 600">{escape(strong)}</span>' if strong else ""
        self.label.setTextFormat(Qt.TextFormat.RichText if strong else Qt.TextFormat.PlainText)
        self.label.setText(f"{escape(before)}{set_off}{escape(after)}" if strong else self.text())
        self.label.setAccessibleName(self.text())
        self._make_room()

    def _make_room(self) -> None:
        metrics = self.label.fontMetrics()
        needed = metrics.horizontalAdvance(self.text()) * 1.06 + SPACE_L + metrics.horizontalAdvance(self._keys)
        if self.action.text():
            needed += SPACE_L + self.action.sizeHint().width()
        self.keys.setVisible(bool(self._words) and needed <= self.width() - 8)
