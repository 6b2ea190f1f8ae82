"""The quiet buttons of one message, in words, and the arrows between its versions. Its room is there before it is."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QWidget

from app.conversation import Message
from engine.protocol.events import FinishReason
from ui import numbers
from ui.icons import icon
from ui.theme import Theme, ui_font
from ui.tokens import SECONDARY_PX
from ui.transcript.message_actions import Action, key, name, words

TOOLBAR_PX = 22
_SPACING = 12
_ICON_PX = 14
_COPIED_MS = 1500
_SHOWN = (Action.COPY, Action.REGENERATE, Action.EDIT, Action.CONTINUE)


class MessageToolbar(QWidget):
    """`show_actions` while the message is pointed at or has the focus; the arrows stay when there are versions."""

    triggered = Signal(object)  # Action
    menu_requested = Signal(QPoint)  # on the screen

    def __init__(self, theme: Theme, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._message = message
        self._possible: set[Action] = set()
        self._is_expanded = False
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(0, 0, 0, 0)
        self._row.setAlignment(Qt.AlignmentFlag.AlignVCenter)
        self._row.setSpacing(_SPACING)
        self.buttons: dict[Action, QPushButton] = {}
        for action in (*_SHOWN, Action.EARLIER, Action.LATER):
            self.buttons[action] = self._button("link")
            self.buttons[action].clicked.connect(self._on_clicked)
        self.more = self._button("link")
        self.more.clicked.connect(self._on_more_clicked)
        self.version = QLabel()
        self.version.setProperty("kind", "muted")
        for icon_only in (self.more, self.buttons[Action.EARLIER], self.buttons[Action.LATER]):
            icon_only.setFixedWidth(_ICON_PX + 4)
        self._lay_out()
        self._restore_words = QTimer(self, singleShot=True, interval=_COPIED_MS)
        self._restore_words.timeout.connect(self._retranslate)
        self.recolour()
        self._retranslate()

    @property
    def is_expanded(self) -> bool:
        return self._is_expanded

    def show_message(self, message: Message, possible: set[Action]) -> None:
        self._message = message
        self._possible = possible
        self._retranslate()

    def show_actions(self, is_expanded: bool) -> None:
        self._is_expanded = is_expanded
        self._update_shown()

    def show_copied(self) -> None:
        self.buttons[Action.COPY].setText(self.tr("Copied"))
        self._restore_words.start()

    def stops(self) -> list[QPushButton]:
        """The buttons that the keyboard reaches, from left to right."""
        row = [*(self.buttons[action] for action in _SHOWN), self.more]
        row += [self.buttons[Action.EARLIER], self.buttons[Action.LATER]]
        return [button for button in row if not button.isHidden() and button.isEnabled()]

    def recolour(self) -> None:
        colour = self._theme.tokens.muted
        self.more.setIcon(icon("more", colour, _ICON_PX))
        self.buttons[Action.EARLIER].setIcon(icon("chevron_left", colour, _ICON_PX))
        self.buttons[Action.LATER].setIcon(icon("chevron_right", colour, _ICON_PX))

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_clicked(self) -> None:
        sender = self.sender()
        for action, button in self.buttons.items():
            if button is sender:
                self.triggered.emit(action)
                return

    @Slot()
    def _on_more_clicked(self) -> None:
        self.menu_requested.emit(self.more.mapToGlobal(self.more.rect().bottomLeft()))

    @Slot()
    def _retranslate(self) -> None:
        role = self._message.role
        for action, button in self.buttons.items():
            button.setAccessibleName(name(action, role))
            hint = f"{name(action, role)} ({key(action)})" if key(action) else name(action, role)
            button.setToolTip(hint)
        for action in _SHOWN:
            self.buttons[action].setText(words(action))
        self.more.setAccessibleName(self.tr("More actions"))
        self.more.setToolTip(self.tr("More actions (menu key)"))
        version, num_versions = numbers.count(self._message.version), numbers.count(self._message.num_versions)
        self.version.setText(f"{version} / {num_versions}")
        self.version.setAccessibleName(
            self.tr("Version {version} of {count}").format(version=version, count=num_versions)
        )
        self._update_shown()

    def _update_shown(self) -> None:
        for action in _SHOWN:
            self.buttons[action].setVisible(self._is_expanded and action in self._possible)
        self.more.setVisible(self._is_expanded)
        has_versions = self._message.num_versions > 1
        for part in (self.buttons[Action.EARLIER], self.version, self.buttons[Action.LATER]):
            part.setVisible(has_versions)
        for action in (Action.EARLIER, Action.LATER):
            self.buttons[action].setEnabled(action in self._possible)
        self.setVisible(self._is_expanded or has_versions)

    def _lay_out(self) -> None:
        for action in _SHOWN:
            self._row.addWidget(self.buttons[action])
        self._row.addWidget(self.more)
        arrows = QHBoxLayout()
        arrows.setSpacing(3)
        arrows.addWidget(self.buttons[Action.EARLIER])
        arrows.addWidget(self.version)
        arrows.addWidget(self.buttons[Action.LATER])
        self._row.addLayout(arrows)

    def _button(self, kind: str) -> QPushButton:
        button = QPushButton(self)
        button.setProperty("kind", kind)
        button.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the message takes the focus there; a click leaves it
        button.setCursor(Qt.CursorShape.PointingHandCursor)
        return button


def reserved_width(message: Message) -> int:
    """Pixels kept free for the buttons beside the words of a reply."""
    metrics = QFontMetrics(ui_font(SECONDARY_PX))
    texts = [words(action) for action in (Action.COPY, Action.REGENERATE, Action.EDIT)]
    if message.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH):
        texts.append(words(Action.CONTINUE))
    width = sum(metrics.horizontalAdvance(text) + _SPACING + 2 for text in texts) + _ICON_PX + 4 + _SPACING
    if message.num_versions > 1:
        arrows = 2 * (_ICON_PX + 8) + _SPACING
        width += metrics.horizontalAdvance(f"{message.num_versions} / {message.num_versions}") + arrows
    return width
