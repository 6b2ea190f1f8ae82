"""Which conversation is shown: opened, shown at a message, shown anew after a change. GUI thread.

Invariant: no event of a conversation that is gone, and no order of actions, reaches a widget that does not expect it.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.conversation import Conversation, Message, MessageState
from app.conversation_store import ConversationStore
from app.errors import AppError, UnknownConversationError
from ui.chat_page import ChatPage
from ui.drafts import Drafts
from ui.error_words import error_words
from ui.live_replies import LiveReplies
from ui.meter.meter_feed import MeterFeed
from ui.notices import Notices
from ui.state_words import StateWords


class ChatController(QObject):
    opened = Signal(object)  # Conversation, or None for a new chat
    conversations_changed = Signal()
    cost_changed = Signal()  # what sending would cost may have changed

    def __init__(
        self,
        session: ChatSession,
        store: ConversationStore,
        page: ChatPage,
        meter: MeterFeed,
        live: LiveReplies,
        notices: Notices,
        drafts: Drafts,
        words: StateWords,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._store = store
        self._page = page
        self._meter = meter
        self._live = live
        self._notices = notices
        self._drafts = drafts
        self._words = words
        self._current: str | None = None
        self._is_new_incognito = False
        drafts.failed.connect(self._tell)

    @property
    def current(self) -> str | None:
        return self._current

    @property
    def is_new_incognito(self) -> bool:
        """Whether the new chat that is shown will be an incognito one."""
        return self._current is None and self._is_new_incognito

    @Slot(object)
    def open(self, conversation_id: str | None, *, is_incognito: bool = False) -> None:
        """Show a conversation; None is a new chat, which is stored with its first message."""
        self._drafts.keep()
        self._is_new_incognito = is_incognito
        self._show(conversation_id)

    def show_message(self, conversation_id: str, message_id: int | None, query: str = "") -> None:
        """Show a conversation at one of its messages, on whichever branch it lies, with the words of `query` marked."""
        if message_id is not None and not self._session.is_busy(conversation_id):
            try:
                if all(message.id != message_id for message in self._store.messages(conversation_id)):
                    self._session.show_version(conversation_id, message_id)
            except AppError as error:
                self._tell(conversation_id, error)
        if conversation_id == self._current:
            self.refresh()
        else:
            self.open(conversation_id)
        if message_id is not None:
            self._page.transcript.go_to(message_id, query)

    def begin_chat(self) -> str:
        """Store the new chat that is shown; its id. Raises StorageError."""
        self._current = self._session.new_conversation(is_incognito=self._is_new_incognito).id
        self._drafts.chat_begun(self._current)
        return self._current

    def store_new(self) -> str | None:
        """The chat that is shown, stored before its first message if it is new. None where that fails; told then."""
        if self._current is None:
            try:
                self.begin_chat()
            except AppError as error:
                self._tell(None, error)
                return None
            self._drafts.keep()
            self.conversations_changed.emit()
            self.opened.emit(self._conversation(self._current))
        return self._current

    def close(self) -> None:
        """The window closes: what was written is kept, that of a new chat as a chat."""
        stored = self._drafts.keep_for_good()
        if self._current is None and not self._is_new_incognito:
            self._current = stored

    def refresh(self) -> None:
        """What is stored of the chat that is shown has changed."""
        conversation = self._conversation(self._current)
        if conversation is None:
            self._show(None)
            return
        messages, notice = self._messages(conversation.id), self._notices.words(conversation.id)
        self._page.transcript.update_messages(
            messages, self._live_text(messages), notice, view_from=conversation.view_from
        )
        self._page.show_empty(not messages and notice is None)
        self._show_busy()
        if self._live.of(conversation.id) is None:
            self._meter.show_conversation(conversation.id, messages)
        self.cost_changed.emit()

    def show_sent(self) -> None:
        """A message and its reply, still empty, have come to the end of the chat that is shown."""
        if self._current is None:
            return
        page = self._page
        if page.is_empty:
            page.transcript.show_messages([], None, None)
            page.show_empty(False)
        sent = self._messages(self._current)[-2:]
        if len(sent) == 2:
            page.transcript.add_turn(*sent)
        self.conversations_changed.emit()
        self.opened.emit(self._conversation(self._current))

    def show_again(self) -> None:
        """A turn has failed: messages may have been taken away, and what was sent put back into the draft."""
        written = self._drafts.written()
        self._show(self._current)
        self._drafts.join(written)

    def forget(self, conversation_id: str) -> None:
        """A conversation is gone for good."""
        self._live.forget(conversation_id)
        self._notices.clear(conversation_id)
        self._meter.refresh()

    def show_error(self, error: AppError) -> None:
        self._tell(self._current, error)

    def set_busy(self, is_busy: bool, *, is_reply: bool = True) -> None:
        """In the chat that is shown; not `is_reply`: its cache is being changed."""
        self._page.composer.set_busy(is_busy, is_reply=is_reply)
        self._page.transcript.set_quiet(not is_busy)

    def last_message(self) -> Message | None:
        """Of the chat that is shown, as it is stored."""
        return next(reversed(self._messages(self._current)), None) if self._current is not None else None

    def _show(self, conversation_id: str | None) -> None:
        page = self._page
        conversation = self._conversation(conversation_id)
        messages = self._messages(conversation.id) if conversation else []
        self._current = conversation.id if conversation else None
        notice = self._notices.words(self._current)
        view_from = conversation.view_from if conversation else None
        page.transcript.show_messages(messages, self._live_text(messages), notice, view_from=view_from)
        page.show_empty(not messages and notice is None)
        self._show_busy()
        self._drafts.show(conversation, is_new_incognito=self._is_new_incognito)
        self._meter.show_conversation(self._current, messages)
        self._words.refresh()
        self.opened.emit(conversation)
        self.cost_changed.emit()

    def _messages(self, conversation_id: str) -> list[Message]:
        try:
            return self._store.messages(conversation_id)
        except AppError as error:
            self._notices.put(conversation_id, error)
            return []

    def _live_text(self, messages: list[Message]) -> str | None:
        """What has come of the last message, if it is a reply being written."""
        reply = self._live.of(self._current)
        is_streaming = bool(messages) and messages[-1].state is MessageState.STREAMING
        return reply.text if reply is not None and is_streaming else None

    def _show_busy(self) -> None:
        """As the session says of the chat that is shown."""
        current = self._current
        is_compressing = current is not None and self._session.is_compressing(current)
        is_answering = current is not None and self._session.is_busy(current)
        self.set_busy(is_answering or is_compressing, is_reply=not is_compressing)

    def _conversation(self, conversation_id: str | None) -> Conversation | None:
        if conversation_id is None:
            return None
        try:
            return self._store.conversation(conversation_id)
        except UnknownConversationError:
            return None
        except AppError as error:
            self._notices.put(None, error)
            return None

    @Slot(object, object)
    def _tell(self, conversation_id: str | None, error: AppError) -> None:
        self._notices.put(conversation_id, error)
        if conversation_id == self._current:
            self._page.show_empty(False)
            self._page.transcript.show_notice(error_words(error))
