"""One gauge of the strip: a label, a value, a drawing and a quiet addition. A group to screen readers."""

from __future__ import annotations

from PySide6.QtWidgets import QGroupBox, QHBoxLayout, QLabel, QWidget

_EDGE_PX, _TIGHT_PX = 18, 8


class MeterCell(QGroupBox):
    """The value's room is that of its widest figures, so that nothing beside it moves when a digit comes or goes."""

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
        self._widest = ""
        self._row = row = QHBoxLayout(self)
        row.setContentsMargins(_EDGE_PX, 0, _EDGE_PX, 0)
        row.setSpacing(9)
        row.addWidget(self.label)
        row.addWidget(self.value)
        if drawing is not None:
            row.addWidget(drawing)
        row.addWidget(self.note)

    def set_value(self, text: str, widest: str) -> None:
        """`widest`: what the value may come to; where it was wider already, that counts."""
        if text == self.value.text() and widest == self._widest:
            return
        self.value.setText(text)
        metrics = self.value.fontMetrics()
        width = max(self.value.minimumWidth(), metrics.horizontalAdvance(text))
        if widest != self._widest:
            self._widest = widest
            width = max(width, metrics.horizontalAdvance(widest))
        if width > self.value.minimumWidth():
            self.value.setMinimumWidth(width)

    def forget_widest(self) -> None:
        """The language or the model is another one."""
        self._widest = ""
        self.value.setMinimumWidth(0)

    def set_note(self, text: str, is_roomy: bool) -> None:
        self.note.setText(text)
        self.note.setVisible(bool(text) and is_roomy)

    @property
    def room(self) -> int:
        """What the value has, in pixels."""
        return self.value.minimumWidth()

    def fit(self, *, is_tight: bool = False) -> None:
        """Make its size that of what it shows now, not at the next event."""
        edge = _TIGHT_PX if is_tight else _EDGE_PX
        self._row.setContentsMargins(edge, 0, edge, 0)
        self._row.invalidate()
        self._row.activate()
        self.updateGeometry()  # the strip's layout has its size from before

    def speak(self, extra: str = "") -> None:
        words = [self.label.text(), self.value.text(), self.note.text(), extra]
        self.setAccessibleName(" ".join(word for word in words if word))
