"""One file that goes with the message: its name, how much it is, and a button that takes it away."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QPalette, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

from app.conversation import Attachment
from ui import numbers
from ui.composer.cost_words import tokens
from ui.icons import icon

_NAME_PX = 200
_ICON_PX = 14


class Chip(QFrame):
    """While it is read there is no size yet; a file that cannot be read shows why instead.

    `attachment` is None in both cases. `num_tokens` None: not known; `is_counting`: it will be; `is_more`: over that.
    """

    remove_requested = Signal()

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "chip")
        self.name = name
        self.attachment: Attachment | None = None
        self.problem: str | None = None
        self.num_tokens: int | None = None
        self.is_more = False
        self.is_counting = False
        self._icon = QLabel()
        self.label = QLabel()
        self.label.setTextFormat(Qt.TextFormat.PlainText)
        self.details = QLabel()
        self.details.setTextFormat(Qt.TextFormat.PlainText)
        self.details.setProperty("kind", "muted")
        self.remove_button = QPushButton()
        self.remove_button.setProperty("kind", "flat")
        self.remove_button.setIconSize(QSize(12, 12))
        self.remove_button.setFixedSize(22, 22)
        self.remove_button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.remove_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.remove_button.clicked.connect(self.remove_requested)
        row = QHBoxLayout(self)
        row.setContentsMargins(8, 2, 3, 2)
        row.setSpacing(6)
        row.addWidget(self._icon)
        row.addWidget(self.label, 1)
        row.addWidget(self.details)
        row.addWidget(self.remove_button)
        self.setCursor(Qt.CursorShape.ArrowCursor)
        self.refresh()

    @property
    def is_reading(self) -> bool:
        return self.attachment is None and self.problem is None

    def show_attachment(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.refresh()

    def show_problem(self, sentence: str) -> None:
        self.problem = sentence
        self.refresh()

    def show_tokens(self, num_tokens: int | None, is_counting: bool, is_more: bool = False) -> None:
        if (num_tokens, is_counting, is_more) != (self.num_tokens, self.is_counting, self.is_more):
            self.num_tokens, self.is_counting, self.is_more = num_tokens, is_counting, is_more
            self.refresh()

    def refresh(self) -> None:
        """The words, after a change of state or of the language."""
        details = self._details()
        self.details.setText(details)
        self.details.setVisible(bool(details))
        self.label.setWordWrap(self.problem is not None)
        self._fit_name()
        words = self.problem or ", ".join(filter(None, (self.name, details.replace(" · ", ", "))))
        self.setToolTip(self.problem or self.name)
        self.setAccessibleName(words)
        remove = self.tr("Dismiss: {name}") if self.problem else self.tr("Remove {name}")
        self.remove_button.setAccessibleName(remove.format(name=self.name))
        self.remove_button.setAccessibleDescription(words)
        self.remove_button.setToolTip(self.tr("Remove"))
        self._paint_icons()

    # Qt overrides

    def sizeHint(self) -> QSize:
        """A sentence in one line, where the row is wide enough for it."""
        hint = super().sizeHint()
        if self.problem is None:
            return hint
        beside = self._icon.sizeHint().width() + self.remove_button.width() + 2 * 6 + 8 + 3
        return QSize(self.label.fontMetrics().horizontalAdvance(self.problem) + beside + 8, hint.height())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace):  # the focus is on its button
            self.remove_requested.emit()
        else:
            super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self.refresh()
        elif event.type() in (QEvent.Type.PaletteChange, QEvent.Type.StyleChange):
            self._paint_icons()
        super().changeEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_name()

    def _fit_name(self) -> None:
        if self.problem is not None:
            self.label.setText(self.problem)
            return
        metrics = self.label.fontMetrics()
        self.label.setText(metrics.elidedText(self.name, Qt.TextElideMode.ElideMiddle, _NAME_PX))

    def _details(self) -> str:
        if self.problem is not None:
            return ""
        if self.attachment is None:
            return self.tr("Reading…")
        size = numbers.size(self.attachment.num_bytes)
        if self.num_tokens is not None:
            return f"{size} · {tokens(self.num_tokens, self.is_more)}"
        return f"{size} · …" if self.is_counting else size

    def _paint_icons(self) -> None:
        muted = self.palette().color(QPalette.ColorRole.PlaceholderText).name()
        accent = self.palette().color(QPalette.ColorRole.Link).name()
        picture = icon("warning", accent, _ICON_PX) if self.problem else icon("file", muted, _ICON_PX)
        self._icon.setPixmap(picture.pixmap(_ICON_PX, _ICON_PX))
        self.remove_button.setIcon(icon("cross", muted, 12))
