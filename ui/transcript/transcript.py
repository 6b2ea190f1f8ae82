"""The messages of one conversation in a reading column. Only the last ones are built; older ones when scrolled up to.

It follows the end of a reply only while the reader is there. Loading, following and the column are its own; what a
message looks like is in `messages`.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, Qt, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QPushButton, QScrollArea, QVBoxLayout, QWidget

from app.conversation import Message
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason, TurnStatistics
from ui.icons import icon
from ui.theme import Theme
from ui.tokens import READING_WIDTH, SPACE_XL
from ui.transcript.messages import AssistantMessage, Notice, UserMessage

FIRST_BUILT = 30  # at most; as many as fill two screens
OLDER_BUILT = 20
_CHUNK = 6
_BUILD_AHEAD_PX = 400
_AT_END_PX = 12


class Transcript(QScrollArea):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._messages: list[Message] = []
        self._first_built = 0
        self._live: AssistantMessage | None = None
        self._notice: Notice | None = None
        self._is_following = True
        self._is_placing = False
        self._content = QWidget()
        self._content.setObjectName("transcriptContent")
        self._column = QVBoxLayout(self._content)
        self._column.setSpacing(SPACE_XL - 2)
        self._column.addStretch(1)
        self.setWidget(self._content)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._jump = QPushButton(self)
        self._jump.setProperty("kind", "jump")
        self._jump.hide()
        self._jump.clicked.connect(self.jump_to_end)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self.verticalScrollBar().rangeChanged.connect(self._on_range_changed)
        theme.changed.connect(self._on_theme_changed)
        self._retranslate()
        self._on_theme_changed()

    @property
    def num_built(self) -> int:
        return len(self.built())

    @property
    def is_following(self) -> bool:
        return self._is_following

    @property
    def live(self) -> AssistantMessage | None:
        return self._live

    @property
    def notice(self) -> Notice | None:
        return self._notice

    def built(self) -> list[UserMessage | AssistantMessage]:
        """The message widgets there are, oldest first."""
        items = (self._column.itemAt(i) for i in range(self._column.count()))
        widgets = (item.widget() for item in items if item is not None)
        return [widget for widget in widgets if isinstance(widget, UserMessage | AssistantMessage)]

    def show_messages(self, messages: list[Message], live_text: str | None, notice: str | None) -> None:
        """Show a conversation from its end. `live_text`: the last message is a reply that has come to this text."""
        self._content.setUpdatesEnabled(False)
        self._clear()
        self._messages = messages
        self._first_built = len(messages)
        if live_text is not None:
            self._first_built -= 1
            self._add(self._live_widget(live_text))
        self._build_first()
        self._show_notice(notice)
        self._is_following = True
        self._content.setUpdatesEnabled(True)
        self._place_at_end()

    def add_turn(self, user: Message) -> None:
        """The user's message was sent: show it and an empty reply, and go there."""
        self._show_notice(None)
        self._messages.append(user)
        self._add(self._widget_for(user))
        self._add(self._live_widget(""))
        self.jump_to_end()

    def append_text(self, text: str) -> None:
        if self._live is not None:
            self._live.append(text)

    def finish_live(self, text: str | None, statistics: TurnStatistics | None, reason: FinishReason | None) -> None:
        if self._live is not None:
            self._live.finish(text, statistics, reason)
            self._live = None

    def show_notice(self, sentence: str | None) -> None:
        if sentence == (self._notice.text if self._notice else None):
            return
        self._show_notice(sentence)
        if sentence and self._is_following:
            self._place_at_end()

    @Slot()
    def jump_to_end(self) -> None:
        self._is_following = True
        self._place_at_end()

    @Slot(int)
    def _on_scrolled(self, value: int) -> None:
        if self._is_placing:
            return
        self._is_following = value >= self.verticalScrollBar().maximum() - _AT_END_PX
        self._update_jump()
        if value < _BUILD_AHEAD_PX:
            self._build_older()

    @Slot(int, int)
    def _on_range_changed(self, _minimum: int, maximum: int) -> None:
        if self._is_following and not self._is_placing:
            self.verticalScrollBar().setValue(maximum)
        self._update_jump()

    @Slot()
    def _on_theme_changed(self) -> None:
        self._jump.setIcon(icon("arrow_down", self._theme.tokens.text))
        for widget in self.built():
            widget.recolour()

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        side = max(SPACE_XL, (self.width() - READING_WIDTH) // 2)
        bar = self.width() - self.viewport().width()  # the column stays over the composer, scroll bar or not
        self._column.setContentsMargins(side, SPACE_XL - 2, max(SPACE_XL - 10, side - bar), SPACE_XL)
        super().resizeEvent(event)
        if self._first_built > 0 and self.verticalScrollBar().maximum() < self.viewport().height():
            self._build_first()
        if self._is_following:
            self._place_at_end()
        self._place_jump()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        self.setAccessibleName(self.tr("Conversation"))
        self._jump.setText(self.tr("Jump to end"))
        self._jump.setAccessibleName(self.tr("Jump to end"))
        self._place_jump()

    def _clear(self) -> None:
        self._live = None
        self._notice = None
        while self._column.count() > 1:
            item = self._column.takeAt(0)
            if item is not None and (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()

    def _add(self, widget: QWidget) -> None:
        self._insert(self._column.count() - 1, widget)

    def _insert(self, index: int, widget: QWidget) -> None:
        self._column.insertWidget(index, widget)
        widget.show()  # now, not at the next event: what is hidden has no height in the layout

    def _live_widget(self, text: str) -> AssistantMessage:
        self._live = AssistantMessage(self._theme)
        self._live.begin(text)
        return self._live

    def _widget_for(self, message: Message) -> UserMessage | AssistantMessage:
        if message.role is Role.USER:
            return UserMessage(self._theme, message)
        widget = AssistantMessage(self._theme)
        widget.show_message(message)
        return widget

    def _show_notice(self, sentence: str | None) -> None:
        if self._notice is not None:
            self._column.removeWidget(self._notice)
            self._notice.hide()
            self._notice.deleteLater()
            self._notice = None
        if sentence:
            self._notice = Notice(sentence)
            self._add(self._notice)

    def _build_first(self) -> None:
        """From the end upwards, until the screen is filled twice: what is not seen need not be waited for."""
        least = max(0, len(self._messages) - FIRST_BUILT)
        while self._first_built > least:
            self._build_before(min(_CHUNK, self._first_built - least))
            if self._column.totalHeightForWidth(self.viewport().width()) > 2 * self.viewport().height():
                return

    def _build_before(self, count: int) -> None:
        first = max(0, self._first_built - count)
        for index, message in enumerate(self._messages[first : self._first_built]):
            self._insert(index, self._widget_for(message))
        self._first_built = first

    def _build_older(self) -> None:
        if self._first_built == 0 or self._is_placing:
            return
        self._is_placing = True
        bar = self.verticalScrollBar()
        from_end = bar.maximum() - bar.value()
        self._build_before(OLDER_BUILT)
        self._lay_out()
        bar.setValue(bar.maximum() - from_end)
        self._is_placing = False

    def _place_at_end(self) -> None:
        self._lay_out()
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())
        self._update_jump()

    def _lay_out(self) -> None:
        """Make the heights and the scroll range true now, not at the next event."""
        self._column.activate()
        height = self._column.totalHeightForWidth(self.viewport().width())
        self._content.resize(self.viewport().width(), max(height, self.viewport().height()))
        self._column.activate()
        self.verticalScrollBar().setRange(0, max(0, height - self.viewport().height()))

    def _update_jump(self) -> None:
        bar = self.verticalScrollBar()
        self._jump.setVisible(bar.value() < bar.maximum() - _AT_END_PX)
        self._place_jump()

    def _place_jump(self) -> None:
        self._jump.adjustSize()
        x = (self.viewport().width() - self._jump.width()) // 2
        self._jump.move(QPoint(x, self.height() - self._jump.height() - 12))
        self._jump.raise_()
