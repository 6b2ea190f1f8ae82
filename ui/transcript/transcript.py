"""The messages of one conversation. What they look like is in `messages`, how they are scrolled in `message_scroll`."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal, Slot
from PySide6.QtGui import QFocusEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QWidget

from app.conversation import Message
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason, TurnStatistics
from ui.theme import Theme
from ui.transcript.message_actions import Action, MessageActions
from ui.transcript.message_focus import MessageFocus
from ui.transcript.message_scroll import MessageScroll
from ui.transcript.message_widget import MessageWidget
from ui.transcript.message_window import Anchor
from ui.transcript.messages import AssistantMessage, UserMessage
from ui.transcript.notice import Notice
from ui.transcript.quiet_theme import QuietTheme
from ui.transcript.view_mark import ViewMark
from ui.transcript.word_marks import WordMarks

_FOUND_SHARE = 0.2  # of the viewport, above a message that was gone to

_KEPT = (Qt.FocusReason.ActiveWindowFocusReason, Qt.FocusReason.PopupFocusReason)  # it comes back as it was


class Transcript(MessageScroll):
    edit_requested = Signal(object, str)  # ids as objects: those of incognito chats do not fit a C int
    regenerate_requested = Signal(object)
    continue_requested = Signal(object)
    version_requested = Signal(object, int)
    fork_requested = Signal(object)
    delete_requested = Signal(object, bool)
    focus_left = Signal()  # back to where one writes

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        self._actions = MessageActions()
        self._live: AssistantMessage | None = None
        self._live_text: str | None = None
        self._notice: Notice | None = None
        self._edits: dict[int, str] = {}  # what is being written in messages that have no widget now
        super().__init__(theme, parent)
        self._quiet_theme = QuietTheme(theme, self)
        self._actions.setParent(self)
        self._focus = MessageFocus(theme, self)
        self._marks = WordMarks(theme, self)
        self._connect_actions()
        for keys, step in (("Alt+Up", -1), ("Alt+Down", 1)):
            shortcut = QShortcut(QKeySequence(keys), self)  # from anywhere in the window
            shortcut.activated.connect(lambda wanted=step: self._focus.move(wanted))
        self._focus.left.connect(self.focus_left)
        theme.changed.connect(self._on_theme_changed)
        self._retranslate()

    @property
    def num_built(self) -> int:
        return len(self.window_rows.widgets)

    @property
    def live(self) -> AssistantMessage | None:
        return self._live

    @property
    def notice(self) -> Notice | None:
        return self._notice

    @property
    def mark(self) -> ViewMark | None:
        """The line above what the model still reads, when it is near what is seen."""
        return self.window_rows.mark

    @property
    def messages(self) -> list[Message]:
        """What is shown, oldest first; a reply that streams as it began."""
        return self.window_rows.messages

    def built(self) -> list[UserMessage | AssistantMessage]:
        """The message widgets there are, oldest first."""
        return [widget for widget in self.window_rows.built() if isinstance(widget, UserMessage | AssistantMessage)]

    def show_messages(
        self, messages: list[Message], live_text: str | None, notice: str | None, *, view_from: int | None = None
    ) -> None:
        """Show a conversation from its end. `live_text`: the last message is a reply that has come to this text.

        `view_from`: the first message that the model still reads, None for all.
        """
        self._discard(self.window_rows.show([], None))
        self._live, self._live_text = None, live_text
        self.window_rows.show(messages, view_from)
        if live_text is not None and messages:
            self.window_rows.build(len(messages) - 1)
        self._set_notice(notice)
        self.jump_to_end()

    def update_messages(
        self, messages: list[Message], live_text: str | None, notice: str | None, *, view_from: int | None = None
    ) -> None:
        """The conversation shown has changed: another version, an edit, a deletion, a reply that begins or goes on."""
        texts = {message.id: message.text for message in messages}
        looked_at = self.anchor(lambda message: texts.get(message.id) == message.text)
        focused = self._focus.row()
        looked_at_id = self.messages[looked_at.row].id if looked_at is not None else None
        self._discard(self.window_rows.show(messages, view_from))
        for widget in self.window_rows.built():
            widget.close_saved_edit()
        self._update_live(live_text)
        self._set_notice(notice)
        row = self.window_rows.row_of(looked_at_id) if looked_at_id is not None else None
        if looked_at is not None and row is not None:
            looked_at = Anchor(row, looked_at.y, looked_at.height)
        self.stay(looked_at)
        if focused is not None:
            self._focus.restore(focused)

    def add_turn(self, question: Message, reply: Message | None = None) -> None:
        """The user's message was sent: show it and an empty reply, and go there."""
        if reply is None:
            reply = Message(0, question.conversation_id, Role.ASSISTANT, "", question.created_at)
        self._set_notice(None)
        self._live, self._live_text = None, ""
        self.window_rows.append([question, reply])
        self.window_rows.build(len(self.messages) - 1)
        self.jump_to_end()

    def append_text(self, text: str) -> None:
        if self._live is not None:
            self._live.append(text)

    def finish_live(
        self,
        text: str | None,
        statistics: TurnStatistics | None,
        reason: FinishReason | None,
        message: Message | None = None,
    ) -> None:
        """The reply that streams has ended; `message` is what was stored of it."""
        live, self._live, self._live_text = self._live, None, None
        if live is not None:
            live.finish(text, statistics, reason)
            self.window_rows.set_message(len(self.messages) - 1, message or live.message)

    def set_quiet(self, is_quiet: bool) -> None:
        """False: the conversation is busy, and nothing may change it."""
        if is_quiet != self._actions.is_quiet:
            self._actions.is_quiet = is_quiet
            for widget in self.window_rows.built():
                widget.refresh_actions()

    def set_send_key(self, send_with: str) -> None:
        """The key that saves in the inline editor: the composer's, "enter" or "ctrl+enter"."""
        self._actions.sends_with = send_with

    def show_notice(self, sentence: str | None) -> None:
        if sentence != (self._notice.text if self._notice else None):
            anchor = self.anchor()
            self._set_notice(sentence)
            self.changed(anchor)

    def go_to(self, message_id: int, query: str = "") -> None:
        """Scroll to a message and mark the words of `query` in it for a moment."""
        row = self.window_rows.row_of(message_id)
        if row is None:
            return
        widget = self.go_to_row(row, _FOUND_SHARE)
        lines = self._marks.mark(widget, query)
        if lines is not None:
            self.reveal(*lines)

    def begin_edit(self, message_id: int) -> None:
        """Open the editor of a message, wherever it is, if it may be edited now."""
        row = self.window_rows.row_of(message_id)
        if row is not None:
            self.reveal_row(row).perform(Action.EDIT)
            self.reveal_row(row)  # an editor may be taller than the message was

    @Slot()
    def _on_theme_changed(self) -> None:
        self._colour_jump()
        for widget in self.window_rows.built():
            widget.recolour()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        if event.reason() not in _KEPT:
            self._focus.outline_whole(event.reason() is not Qt.FocusReason.MouseFocusReason)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        if event.reason() not in _KEPT:
            self._focus.outline_whole(False)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        self.setAccessibleName(self.tr("Conversation"))
        self._jump.setText(self.tr("Jump to end"))
        self._jump.setAccessibleName(self.tr("Jump to end"))
        self._place_jump()

    def _make(self, row: int) -> MessageWidget:
        message = self.messages[row]
        theme = self._quiet_theme if row < self.window_rows.view_row else self._theme
        is_last = row == len(self.messages) - 1
        widget: UserMessage | AssistantMessage
        if message.role is Role.ASSISTANT:
            widget = AssistantMessage(theme, message, self._actions, self.viewport())
            if is_last and self._live_text is not None and self._live is None:
                widget.begin(self._live_text)
                self._live = widget
            else:
                widget.show_message(message, is_last=is_last)
        else:
            widget = UserMessage(theme, message, self._actions, self.viewport())
            widget.set_message(message, is_last=is_last)
        if message.id in self._edits:
            widget.begin_edit(self._edits.pop(message.id))
        widget.height_changed.connect(self._on_height_changed)
        return widget

    def _discard(self, widgets: list[MessageWidget]) -> None:
        for widget in widgets:
            if (written := widget.unsaved_edit()) is not None:
                self._edits[widget.message.id] = written
            widget.hide()
            widget.deleteLater()

    def _update_live(self, live_text: str | None) -> None:
        """After `messages` were replaced."""
        last = len(self.messages) - 1
        widget = self.window_rows.widgets.get(last)
        if self._live is not widget:
            self._live = None  # discarded with its message
        if live_text is None:
            if self._live is not None:
                end = self.messages[last]
                self.finish_live(end.text, end.statistics, end.finish_reason, end)
            self._live_text = None
            return
        self._live_text = live_text
        if self._live is not None and live_text.startswith(self._live.text):
            self._live.append(live_text[len(self._live.text) :])
        elif isinstance(widget, AssistantMessage):
            widget.begin(live_text)
            self._live = widget
        elif last >= 0:
            self.window_rows.build(last)

    def _set_notice(self, sentence: str | None) -> None:
        self._notice = Notice(sentence, self.viewport()) if sentence else None
        self._set_tail(self._notice)

    def _connect_actions(self) -> None:
        actions = self._actions
        actions.edit_requested.connect(self.edit_requested)
        actions.regenerate_requested.connect(self.regenerate_requested)
        actions.continue_requested.connect(self.continue_requested)
        actions.version_requested.connect(self.version_requested)
        actions.fork_requested.connect(self.fork_requested)
        actions.delete_requested.connect(self.delete_requested)
        actions.focus_left.connect(self.focus_left)
