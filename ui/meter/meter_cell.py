"""One gauge of the strip: a label, a value, a drawing and a quiet addition. A group to screen readers."""

from __future__ import annotations

from PySide6.QtGui import QPaintEvent
from PySide6.QtWidgets import QGroupBox, QHBoxLayout, QLabel, QWidget

GAP_PX = 9
_EIGHTS = str.maketrans("012345679", "888888888")


class MeterCell(QGroupBox):
    """The value's room is that of its widest figures, so that nothing beside it moves when a digit comes or goes, and
    nothing is laid out again."""

    def __init__(self, drawing: QWidget | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFlat(True)
        self.setObjectName("meterCell")
        self.label = QLabel()
        self.label.setProperty("kind", "muted")
        self.value = QLabel()
        self.value.setProperty("kind", "value")
        self.note = QLabel()
        self.note.setProperty("kind", "muted")
        self.note.hide()
        self.drawing = drawing
        self.room = 0  # what the value has, in pixels
        self._widths: dict[str, int] = {}  # measured, by the text with eights for its figures
        self._row = row = QHBoxLayout(self)
        row.setSpacing(GAP_PX)
        row.addWidget(self.label)
        row.addWidget(self.value)
        if drawing is not None:
            row.addWidget(drawing)
        row.addWidget(self.note)

    def set_widest(self, text: str) -> None:
        """What the value may come to from now on; where one turns out wider, that counts."""
        self._widths.clear()  # the font may be another one
        self._give_room(self._width(text))

    def set_value(self, text: str) -> None:
        if text != self.value.text():
            self.value.setText(text)
        width = self._width(text)
        if width > self.room:
            self._give_room(width)

    def set_note(self, text: str, is_roomy: bool) -> None:
        self.note.setText(text)
        self.note.setVisible(bool(text) and is_roomy)

    def fit(self, edge: int) -> None:
        """Make its size that of what it shows now, not at the next event; `edge` in pixels at both ends."""
        self._row.setContentsMargins(edge, 0, edge, 0)
        self._row.invalidate()
        self._row.activate()
        self.updateGeometry()  # the strip's layout has its size from before

    def speak(self, extra: str = "") -> None:
        words = [self.label.text(), self.value.text(), self.note.text(), extra]
        self.setAccessibleName(" ".join(word for word in words if word))

    def paintEvent(self, event: QPaintEvent) -> None:
        """A group to screen readers; to the eye only what is in it."""

    def _width(self, text: str) -> int:
        """Of one of its kind: all figures are as wide as an eight."""
        kind = text.translate(_EIGHTS)
        if kind not in self._widths:
            self.value.ensurePolished()  # else its font is not yet the style sheet's
            self._widths[kind] = self.value.fontMetrics().horizontalAdvance(kind)
        return self._widths[kind]

    def _give_room(self, width: int) -> None:
        """Of a fixed size a label that gets another text is painted, but its row is not laid out."""
        self.room = width
        self.value.setFixedSize(width, self.value.fontMetrics().height())
