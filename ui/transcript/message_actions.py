"""What can be done with one message: which actions there are, when, and their words and keys."""

from __future__ import annotations

from enum import StrEnum

from PySide6.QtCore import QCoreApplication, QObject, Signal

from app.conversation import Message
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason


class Action(StrEnum):
    COPY = "copy"
    REGENERATE = "regenerate"
    EDIT = "edit"
    CONTINUE = "continue"
    COPY_TEXT = "copy_text"
    COPY_MARKDOWN = "copy_markdown"
    FORK = "fork"
    DELETE = "delete"
    DELETE_BELOW = "delete_below"
    EARLIER = "earlier"
    LATER = "later"


class MessageActions(QObject):
    """Where the messages of a transcript say what is asked of them.

    `is_quiet`: False while the conversation is busy; then nothing may change it. `sends_with`: the key that saves in
    the inline editor, as in the composer ("enter" or "ctrl+enter").
    """

    edit_requested = Signal(object, str)  # a message's id does not fit a C int when the chat is incognito
    regenerate_requested = Signal(object)
    continue_requested = Signal(object)
    version_requested = Signal(object, int)
    fork_requested = Signal(object)
    delete_requested = Signal(object, bool)
    focus_left = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.is_quiet = True
        self.sends_with = "enter"

    def request(self, action: Action, message_id: int) -> None:
        match action:
            case Action.REGENERATE:
                self.regenerate_requested.emit(message_id)
            case Action.CONTINUE:
                self.continue_requested.emit(message_id)
            case Action.FORK:
                self.fork_requested.emit(message_id)
            case Action.DELETE | Action.DELETE_BELOW:
                self.delete_requested.emit(message_id, action is Action.DELETE_BELOW)
            case Action.EARLIER | Action.LATER:
                self.version_requested.emit(message_id, 1 if action is Action.LATER else -1)


def possible(message: Message, *, is_live: bool, is_last: bool, is_quiet: bool) -> set[Action]:
    """The actions that make sense for `message` now. A message that is not stored yet has the id 0."""
    result = {Action.COPY, Action.COPY_TEXT, Action.COPY_MARKDOWN}
    if not message.id:
        return result
    if not is_live:
        result.add(Action.FORK)  # another chat may begin here while this one is busy
    if not is_quiet or is_live:
        return result
    result |= {Action.EDIT, Action.DELETE, Action.DELETE_BELOW}
    if message.role is Role.ASSISTANT:
        result.add(Action.REGENERATE)
        if is_last and message.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH):
            result.add(Action.CONTINUE)
    if message.version > 1:
        result.add(Action.EARLIER)
    if message.version < message.num_versions:
        result.add(Action.LATER)
    return result


def _tr(source: str) -> str:
    return QCoreApplication.translate("MessageActions", source)


def words(action: Action) -> str:
    """As a button or a line of a menu says it."""
    match action:
        case Action.COPY:
            return _tr("Copy")
        case Action.REGENERATE:
            return _tr("Again")
        case Action.EDIT:
            return _tr("Edit")
        case Action.CONTINUE:
            return _tr("Continue")
        case Action.COPY_TEXT:
            return _tr("Copy as text")
        case Action.COPY_MARKDOWN:
            return _tr("Copy as Markdown")
        case Action.FORK:
            return _tr("New chat from here")
        case Action.DELETE:
            return _tr("Delete message")
        case Action.DELETE_BELOW:
            return _tr("Delete from here on")
        case Action.EARLIER:
            return _tr("Earlier version")
        case Action.LATER:
            return _tr("Later version")


def name(action: Action, role: Role) -> str:
    """For those who hear it: which message is meant."""
    is_reply = role is Role.ASSISTANT
    match action:
        case Action.COPY:
            return _tr("Copy reply") if is_reply else _tr("Copy your message")
        case Action.REGENERATE:
            return _tr("Ask again for this reply")
        case Action.EDIT:
            return _tr("Edit reply") if is_reply else _tr("Edit your message")
        case Action.CONTINUE:
            return _tr("Continue reply")
        case Action.EARLIER:
            return _tr("Earlier version of this reply") if is_reply else _tr("Earlier version of your message")
        case Action.LATER:
            return _tr("Later version of this reply") if is_reply else _tr("Later version of your message")
    return words(action)


def key(action: Action) -> str:
    """The key that does it while the message has the focus, "" for none."""
    match action:
        case Action.COPY:
            return "Ctrl+C"
        case Action.REGENERATE:
            return "Ctrl+R"
        case Action.EDIT:
            return "F2"
        case Action.DELETE:
            return "Del"
        case Action.EARLIER:
            return "Alt+Left"
        case Action.LATER:
            return "Alt+Right"
    return ""
