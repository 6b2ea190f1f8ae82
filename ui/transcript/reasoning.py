"""What a model thought before it answered: a line that tells so, and the thought below it while it comes or is open."""

from __future__ import annotations

from time import perf_counter

from PySide6.QtCore import QEvent, Qt, Slot
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from ui.icons import icon
from ui.numbers import count
from ui.theme import Theme
from ui.tokens import SPACE_M, SPACE_S, SPACE_XS
from ui.transcript.markdown_body import MarkdownBody

_BAR_PX = 2
_SEEN_FROM_START = 400  # characters; a thought that begins with more was not watched, so how long it took is not known


class ReasoningSection(QWidget):
    """Not seen while there is nothing in it: models that do not think leave an empty one. Whether it is open is the
    reader's choice once the reader has made one."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._pieces: list[str] = []
        self._began: float | None = None
        self._took_s: int | None = None
        self._is_streaming = False
        self._is_chosen = False
        self._is_built = False
        self.button = QPushButton()
        self.button.setProperty("kind", "link")
        self.button.setCheckable(True)
        self.button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.button.toggled.connect(self._on_toggled)
        self.button.clicked.connect(self._on_clicked)
        self._body = MarkdownBody(theme, is_quiet=True)
        self._body.hide()
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_M, 0, 0, SPACE_S)
        column.setSpacing(SPACE_XS)
        column.addWidget(self.button, 0, Qt.AlignmentFlag.AlignLeft)
        column.addWidget(self._body)
        self.hide()

    @property
    def thought(self) -> str:
        return "".join(self._pieces).strip()

    @property
    def is_open(self) -> bool:
        return self.button.isChecked() and bool(self.thought)

    def show_text(self, thought: str, *, is_open: bool) -> None:
        """A whole thought. It is drawn when it is opened."""
        self._pieces = [thought]
        self._is_streaming = self._is_built = False
        self._body.clear()
        self._show_open(is_open)
        self._build()
        self._relabel()
        self.show()

    def feed(self, text: str) -> None:
        """The thought goes on."""
        if not self._pieces and len(text) < _SEEN_FROM_START:
            self._began = perf_counter()
        is_first = not self._pieces
        self._is_streaming = self._is_built = True
        self._pieces.append(text)
        self._body.feed(text)
        if is_first:
            self._show_open(True)
        if self.isHidden() and self.thought:
            self._relabel()
            self.show()
        self._settle()

    def finish(self, *, is_answered: bool) -> None:
        """The thought is whole; once there is an answer it is closed."""
        if not self._is_streaming:
            return
        self._is_streaming = False
        self._body.finish()
        if self._began is not None:
            self._took_s = max(1, round(perf_counter() - self._began))
        if is_answered:
            self._show_open(False)
        self._relabel()

    def plain_text(self) -> str:
        return self._body.plain_text()

    def recolour(self) -> None:
        self._body.recolour()
        self._relabel()
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(0, 0, _BAR_PX, self.height() - SPACE_S, self._theme.color("line"))
        painter.end()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._relabel()
        super().changeEvent(event)

    @Slot()
    def _on_clicked(self) -> None:
        self._is_chosen = True

    @Slot(bool)
    def _on_toggled(self, is_open: bool) -> None:
        self._build()
        self._body.setVisible(is_open)
        self._relabel()
        self._settle()

    def _settle(self) -> None:
        """Make the height true now, from the inside out, not some events later."""
        for widget in (self._body, self):
            layout = widget.layout()
            if layout is not None:
                layout.activate()

    def _show_open(self, is_open: bool) -> None:
        if not self._is_chosen:
            self.button.setChecked(is_open)

    def _build(self) -> None:
        if self.button.isChecked() and not self._is_built and self._pieces:
            self._is_built = True
            self._body.show_text(self.thought)

    def _relabel(self) -> None:
        if self._is_streaming:
            label = self.tr("Thinking…")
        elif self._took_s is not None:
            label = self.tr("Thought for {seconds} s").format(seconds=count(self._took_s))
        else:
            label = self.tr("Thought, {words} words").format(words=count(len(self.thought.split())))
        self.button.setText(label)
        is_open = self.button.isChecked()
        self.button.setIcon(icon("chevron_down" if is_open else "chevron_right", self._theme.tokens.muted, 14))
        state = self.tr("open") if is_open else self.tr("closed")
        self.button.setAccessibleName(f"{label} ({state})")
