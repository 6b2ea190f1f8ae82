"""What a person does with one message: ask again, word it anew, go on, another version, a chat of its own, delete. GUI
thread; between the transcript and the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.conversation_store import ConversationStore
from app.errors import AppError
from app.store.removal import Removed
from engine.protocol.commands import Role
from ui.chat_controller import ChatController
from ui.sidebar.row_words import title_words
from ui.transcript.transcript import Transcript
from ui.turn_watch import TurnWatch
from ui.undo_bar import UndoBar

_MOST_KEPT = 50  # deletions that can be undone


@dataclass(frozen=True, slots=True)
class DeletedMessages:
    """The key of one deletion; `number` counts them."""

    number: int


class MessageChanges(QObject):
    """It shares the bar for undoing with the deletions of chats."""

    forked = Signal(str)  # the new conversation

    def __init__(
        self,
        session: ChatSession,
        store: ConversationStore,
        controller: ChatController,
        watch: TurnWatch,
        transcript: Transcript,
        undo_bar: UndoBar,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._store = store
        self._controller = controller
        self._watch = watch
        self._transcript = transcript
        self._bar = undo_bar
        self._removed: dict[DeletedMessages, tuple[str, Removed]] = {}  # oldest first; they stay for `undo_last`
        self._num_removed = 0
        transcript.regenerate_requested.connect(self.regenerate)
        transcript.edit_requested.connect(self.edit)
        transcript.continue_requested.connect(self.continue_reply)
        transcript.version_requested.connect(self.step_version)
        transcript.fork_requested.connect(self.fork)
        transcript.delete_requested.connect(self.delete)
        undo_bar.committed.connect(self._on_committed)
        undo_bar.undone.connect(self._on_undone)

    @Slot(object)
    def regenerate(self, message_id: int) -> None:
        with self._in_current() as conversation_id:
            self._asked(conversation_id, self._session.turns.regenerate(conversation_id, message_id))

    @Slot(object, str)
    def edit(self, message_id: int, text: str) -> None:
        with self._in_current() as conversation_id:
            request_id = self._session.turns.edit(conversation_id, message_id, text)
            if request_id is None:
                self._controller.refresh()
            else:
                self._asked(conversation_id, request_id)
        self._transcript.focus_left.emit()  # the editor had the keyboard, and is gone

    @Slot(object)
    def continue_reply(self, message_id: int) -> None:
        with self._in_current() as conversation_id:
            before = self._store.message(message_id).text
            self._asked(conversation_id, self._session.turns.continue_reply(conversation_id), before)

    @Slot(object, int)
    def step_version(self, message_id: int, step: int) -> None:
        with self._in_current() as conversation_id:
            versions = self._store.versions(message_id)
            index = versions.index(message_id) + step
            if 0 <= index < len(versions):
                self._session.show_version(conversation_id, versions[index])
                self._controller.refresh()

    @Slot(object)
    def fork(self, message_id: int) -> None:
        with self._in_current() as conversation_id:
            title = title_words(self._store.conversation(conversation_id).title)
            copy = self._store.duplicate_conversation(conversation_id, until=message_id)
            self._store.set_title(copy.id, self.tr("{title} (from here)").format(title=title))
            self.forked.emit(copy.id)

    @Slot(object, bool)
    def delete(self, message_id: int, and_below: bool) -> None:
        with self._in_current() as conversation_id:
            removed = self._session.delete_message(conversation_id, message_id, and_below=and_below)
            self._num_removed += 1
            key = DeletedMessages(self._num_removed)
            self._removed[key] = (conversation_id, removed)
            words = self.tr("Deleted the messages from here on") if and_below else self.tr("Deleted a message")
            self._bar.add(key, words)
            self._controller.refresh()

    @Slot()
    def regenerate_last(self) -> None:
        """Ask again for the last reply, or for one to a question that has none."""
        with self._in_current() as conversation_id:
            messages = self._store.messages(conversation_id)
            if messages:
                self._asked(conversation_id, self._session.turns.regenerate(conversation_id, messages[-1].id))

    @Slot()
    def undo_last(self) -> None:
        """Bring back what was deleted last, while the bar for it is shown or later, in the chat that is shown."""
        if self._bar.pending:
            self._bar.undo()
            return
        current = self._controller.current
        key = next((key for key, (chat, _) in reversed(self._removed.items()) if chat == current), None)
        if key is not None:
            self._on_undone([key])

    @Slot()
    def edit_last(self) -> None:
        """Open the user's last message for editing."""
        with self._in_current() as conversation_id:
            messages = self._store.messages(conversation_id)
            last = next((message for message in reversed(messages) if message.role is Role.USER), None)
            if last is not None:
                self._transcript.begin_edit(last.id)

    @Slot(object)
    def _on_committed(self, keys: list[object]) -> None:
        del keys  # they are deleted already, and may come back
        while len(self._removed) > _MOST_KEPT:
            del self._removed[next(iter(self._removed))]

    @Slot(object)
    def _on_undone(self, keys: list[object]) -> None:
        """What was deleted last comes back first, since it may hang on what was deleted before."""
        own = [key for key in keys if isinstance(key, DeletedMessages) and key in self._removed]
        for key in reversed(own):
            conversation_id, removed = self._removed.pop(key)
            try:
                self._session.undo_delete(conversation_id, removed)
            except AppError as error:
                self._controller.show_error(error)
        if own:
            self._controller.refresh()

    def _asked(self, conversation_id: str, request_id: str, text_before: str = "") -> None:
        self._watch.reply_requested(conversation_id, request_id, text_before)
        self._controller.refresh()

    @contextmanager
    def _in_current(self) -> Iterator[str]:
        """The conversation that is shown; what fails is told in it. Nothing is done where none is."""
        conversation_id = self._controller.current
        try:
            yield conversation_id or ""
        except AppError as error:
            self._controller.show_error(error)
            self._controller.refresh()
