"""What a new chat shows: a greeting, whether the model is ready, and three things to try."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal, Slot
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

from ui.icons import pixmap
from ui.meter.meter_parts import Dot
from ui.theme import Theme
from ui.tokens import READING_WIDTH

_ICON_PX = 56
_ONE_LINE = 56  # characters; a failure's sentence is longer


class EmptyState(QWidget):
    suggestion_chosen = Signal(str)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._icon = QLabel(alignment=Qt.AlignmentFlag.AlignHCenter)
        self._greeting = QLabel(alignment=Qt.AlignmentFlag.AlignHCenter)
        self._greeting.setProperty("kind", "greeting")
        self._greeting.setWordWrap(True)
        self.incognito = QLabel(alignment=Qt.AlignmentFlag.AlignHCenter)
        self.incognito.setProperty("kind", "muted")
        self.incognito.setWordWrap(True)
        self.incognito.hide()
        self.status = QLabel(alignment=Qt.AlignmentFlag.AlignCenter)
        self.status.setProperty("kind", "muted")
        self._dot = Dot(theme)
        self.suggestions = [QPushButton() for _ in range(3)]
        for button in self.suggestions:
            button.setProperty("kind", "suggestion")
            button.setCursor(Qt.CursorShape.PointingHandCursor)
            button.clicked.connect(self._on_suggestion_clicked)
        self._lay_out()
        theme.changed.connect(self._on_theme_changed)
        self._on_theme_changed()
        self._retranslate()

    def show_status(self, words: str, dot_role: str) -> None:
        self.status.setText(words)
        self.status.setWordWrap(len(words) > _ONE_LINE)
        self._dot.set_role(dot_role)

    def show_incognito(self, is_incognito: bool) -> None:
        """Whether the chat that begins here is kept in memory only."""
        self.incognito.setVisible(is_incognito)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_suggestion_clicked(self) -> None:
        button = self.sender()
        assert isinstance(button, QPushButton)
        self.suggestion_chosen.emit(button.text())

    @Slot()
    def _on_theme_changed(self) -> None:
        self._icon.setPixmap(pixmap("ember", self._theme.tokens.text, _ICON_PX, self.devicePixelRatioF()))

    def _retranslate(self) -> None:
        self._greeting.setText(self.tr("What shall we talk about?"))
        self.incognito.setText(self.tr("Incognito: kept in memory only, gone when Ember closes"))
        texts = (
            self.tr("Explain why the sky is blue in three sentences"),
            self.tr("Write a short poem about rain on a tin roof"),
            self.tr("Show a Python function that reverses a string"),
        )
        for button, text in zip(self.suggestions, texts, strict=True):
            button.setText(text)
            button.setAccessibleName(self.tr("Try: {text}").format(text=text))

    def _lay_out(self) -> None:
        status_row = QHBoxLayout()
        status_row.setSpacing(7)
        status_row.addStretch(1)
        status_row.addWidget(self._dot)
        status_row.addWidget(self.status)
        status_row.addStretch(1)
        middle = QWidget()
        middle.setMaximumWidth(READING_WIDTH - 300)
        column = QVBoxLayout(middle)
        column.setContentsMargins(24, 24, 24, 24)
        column.setSpacing(8)
        column.addStretch(3)
        column.addWidget(self._icon)
        column.addSpacing(8)
        column.addWidget(self._greeting)
        column.addWidget(self.incognito)
        column.addLayout(status_row)
        column.addSpacing(16)
        for button in self.suggestions:
            column.addWidget(button)
        column.addStretch(4)
        content = QWidget()
        row = QHBoxLayout(content)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(middle, 1)
        scroll = QScrollArea()  # for a window that is too low for all of it
        scroll.setWidget(content)
        scroll.setWidgetResizable(True)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        content.setAutoFillBackground(False)
        whole = QHBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.addWidget(scroll)
