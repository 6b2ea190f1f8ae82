"""Which conversation is shown and what is done in it. Between the page and the session; GUI thread.

Invariant: no event of a conversation that is gone, and no order of actions, reaches a widget that does not expect it.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.conversation import Conversation, Draft, Message, MessageState
from app.conversation_store import ConversationStore
from app.errors import AppError, UnknownConversationError
from engine.protocol.events import (
    Compressed,
    EngineStopped,
    Failed,
    Finished,
    ModelLoaded,
    Phase,
    SnapshotNotSaved,
    TextArrived,
    ViewMoved,
)
from ui.chat_page import ChatPage
from ui.error_words import error_words, failure_words
from ui.live_replies import LiveReplies
from ui.memory.compression_words import CompressionFailed
from ui.meter.meter_feed import MeterFeed
from ui.notices import Notices


class ChatController(QObject):
    opened = Signal(object)  # Conversation, or None for a new chat
    conversations_changed = Signal()
    turn_ended = Signal()
    new_draft_changed = Signal(str)  # the text of a chat that is not stored yet; never that of an incognito one
    cost_changed = Signal()  # what sending would cost may have changed

    def __init__(
        self,
        session: ChatSession,
        store: ConversationStore,
        page: ChatPage,
        meter: MeterFeed,
        live: LiveReplies,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._store = store
        self._page = page
        self._meter = meter
        self._live = live
        self._current: str | None = None
        self._is_new_incognito = False
        self._new_drafts = {False: Draft(), True: Draft()}  # of new chats; by whether they will be incognito
        self._stored_draft = Draft()
        self._notices = Notices()
        self._model_failure: Failed | None = None
        composer = page.composer
        composer.send_requested.connect(self.send)
        composer.stop_requested.connect(self.stop)
        composer.draft_changed.connect(self._on_draft_changed)
        page.empty.suggestion_chosen.connect(self._on_suggestion_chosen)

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
        self.keep_draft()
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

    def store_new(self) -> str | None:
        """Store the new chat that is shown, before its first message. None where that fails; it is told then."""
        if self._current is None:
            draft = self._page.composer.take_draft()
            try:
                self._current = self._session.new_conversation(is_incognito=self._is_new_incognito).id
            except AppError as error:
                self._tell(None, error)
                return None
            self._keep_new_draft(Draft())
            self._store_draft(draft)
            self.conversations_changed.emit()
            self.opened.emit(self._conversation(self._current))
        return self._current

    @Slot(object)
    def send(self, draft: Draft) -> None:
        conversation_id = self._current
        try:
            if conversation_id is None:
                conversation_id = self._session.new_conversation(is_incognito=self._is_new_incognito).id
                self._current = conversation_id
                self._keep_new_draft(Draft())
            request_id = self._session.turns.send(conversation_id, draft)
        except AppError as error:
            self._page.composer.show_draft(draft, owner=self._owner)
            self._tell(conversation_id, error)
            self.conversations_changed.emit()
            return
        self._stored_draft = Draft()
        page = self._page
        page.composer.show_draft(Draft(), owner=self._owner)
        self.reply_requested(conversation_id, request_id)
        if page.is_empty:
            page.transcript.show_messages([], None, None)
            page.show_empty(False)
        sent = self._messages(conversation_id)[-2:]
        if len(sent) == 2:
            page.transcript.add_turn(*sent)
        self.conversations_changed.emit()
        self.opened.emit(self._conversation(conversation_id))

    def reply_requested(self, conversation_id: str, request_id: str, text_before: str = "") -> None:
        """The session was asked for a reply; Send is Stop there until it has come. `text_before`: it goes on."""
        self._live.reply_requested(conversation_id, request_id, text_before)
        self._notices.clear(conversation_id)
        self._notices.clear(None)
        if conversation_id == self._current:
            self._set_busy(True)
        self._meter.reply_requested(conversation_id)

    @Slot()
    def stop(self) -> None:
        if self._current is not None:
            self._session.stop(self._current)

    def keep_draft(self, is_closing: bool = False) -> None:
        """Store what is in the composer with the conversation it belongs to."""
        draft = self._page.composer.take_draft()
        if self._current is not None:
            self._store_draft(draft)
        else:
            self._keep_new_draft(draft)
        if is_closing and not self._new_drafts[False].is_blank:
            self._store_new_draft()

    def begin_with(self, new_draft: str) -> None:
        """What was being written to a new chat when the program ended without being closed."""
        self._new_drafts[False] = Draft(new_draft)
        if self._current is None:
            self._page.composer.show_draft(self._new_drafts[False], owner=self._owner)

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

    def forget(self, conversation_id: str) -> None:
        """A conversation is gone for good."""
        self._live.forget(conversation_id)
        self._notices.clear(conversation_id)
        self._meter.refresh()

    def compression_requested(self, conversation_id: str, request_id: str) -> None:
        """Its cache is about to be compressed or brought back; Send is Stop there until that has ended."""
        self._live.reply_requested(conversation_id, request_id)
        self._notices.clear(conversation_id)
        if conversation_id == self._current:
            self._set_busy(True, is_reply=False)
        self._meter.refresh()
        self.refresh_words()

    def compression_ended(self, conversation_id: str, outcome: Compressed | CompressionFailed) -> None:
        self._notices.put(conversation_id, outcome)
        if conversation_id == self._current:
            self._set_busy(False)
            self.cost_changed.emit()
        self.refresh_words()

    def take(self, event: object) -> None:
        """An event that `LiveReplies` did not refuse; the session has stored it."""
        model = self._session.model
        match event:
            case TextArrived() if event.conversation_id == self._current:
                self._page.transcript.append_text(event.text)
            case Finished():
                self._on_finished(event)
            case Failed(conversation_id=None):
                self._model_failure = event
                self.refresh_words()
            case Failed():
                self._on_failed(event)
            case ModelLoaded():
                self._model_failure = None
                self.cost_changed.emit()
            case ViewMoved() if event.conversation_id == self._current:
                self.refresh()
            case SnapshotNotSaved():
                self._notices.take_not_saved(event, model.cannot_resume_reason if model else None)
            case EngineStopped():
                self._live.stop_all()
                self._set_busy(False)
                self._page.transcript.finish_live(None, None, None)

    def refresh_words(self) -> None:
        """The hint, the status of the empty state and the notice, after a change of state or language."""
        composer, state = self._page.composer, self._live.state_for(self._current)
        if self._model_failure is not None:
            composer.set_hint(failure_words(self._model_failure))
        elif self._live.is_loading:
            composer.set_hint(self.tr("The model is still loading; a message you send now waits for it"))
        elif not self._live.has_model:
            composer.set_hint(self.tr("No model is loaded; choose one at the top"))
        elif state.is_elsewhere and state.phase is Phase.COMPRESSING and not composer.is_busy:
            composer.set_hint(self.tr("Another chat is being compressed; a message you send now waits its turn"))
        elif state.is_elsewhere and not composer.is_busy:
            composer.set_hint(self.tr("Another chat is answering; a message you send now waits its turn"))
        else:
            composer.set_hint(None)
        model = self._session.model
        if self._model_failure is not None:
            words = failure_words(self._model_failure)
        elif self._live.has_model and model is not None and not self._live.is_loading:
            words = self.tr("{model} is ready").format(model=model.name)
        else:
            words = state.words()
        self._page.empty.show_status(words, state.light.value)
        self._page.transcript.show_notice(self._notices.words(self._current))

    def load_requested(self) -> None:
        self._model_failure = None

    def show_error(self, error: AppError) -> None:
        self._tell(self._current, error)

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
        self._stored_draft = conversation.draft if conversation else Draft()
        new_draft = self._new_drafts[self._is_new_incognito]
        page.composer.show_draft(conversation.draft if conversation else new_draft, owner=self._owner)
        self._meter.show_conversation(self._current, messages)
        self.refresh_words()
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
        self._set_busy(is_answering or is_compressing, is_reply=not is_compressing)

    def _set_busy(self, is_busy: bool, *, is_reply: bool = True) -> None:
        self._page.composer.set_busy(is_busy, is_reply=is_reply)
        self._page.transcript.set_quiet(not is_busy)

    @Slot(object)
    def _on_draft_changed(self, draft: Draft) -> None:
        if self._current is None:
            self._keep_new_draft(draft)
        else:
            self._store_draft(draft)

    @Slot(str)
    def _on_suggestion_chosen(self, text: str) -> None:
        if not self._page.composer.is_busy:
            self.send(Draft(text))

    def _on_finished(self, event: Finished) -> None:
        self._notices.take_finished(event)
        if event.conversation_id == self._current:
            before = self._live.text_before(event.request_id)
            last = self._messages(event.conversation_id)[-1:]
            self._page.transcript.finish_live(
                before + event.text, event.statistics, event.finish_reason, last[0] if last else None
            )
            self._set_busy(False)
            self.cost_changed.emit()
        self.conversations_changed.emit()
        self.turn_ended.emit()

    def _on_failed(self, event: Failed) -> None:
        """The session may have taken messages away again, and put what was written back into the draft."""
        assert event.conversation_id is not None
        self._notices.put(event.conversation_id, event)
        if event.conversation_id == self._current:
            typed, stored = self._page.composer.take_draft(), self._stored_draft
            self._show(self._current)
            back = self._stored_draft
            text = back.text.removesuffix(stored.text).rstrip("\n") if stored.text else back.text
            files = tuple(one for one in back.attachments if one not in (*stored.attachments, *typed.attachments))
            draft = Draft("\n".join(filter(None, (text, typed.text))), (*files, *typed.attachments))
            self._page.composer.show_draft(draft, owner=self._owner)
            self._store_draft(draft)
        self.conversations_changed.emit()
        self.turn_ended.emit()

    def _tell(self, conversation_id: str | None, error: AppError) -> None:
        self._notices.put(conversation_id, error)
        if conversation_id == self._current:
            self._page.show_empty(False)
            self._page.transcript.show_notice(error_words(error))

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

    @property
    def _owner(self) -> str:
        """Whom the draft shown belongs to: files still being read go there."""
        return self._current or ("a new incognito chat" if self._is_new_incognito else "a new chat")

    def _keep_new_draft(self, draft: Draft) -> None:
        is_other = draft.text != self._new_drafts[self._is_new_incognito].text
        self._new_drafts[self._is_new_incognito] = draft
        if is_other and not self._is_new_incognito:
            self.new_draft_changed.emit(draft.text)

    def _store_new_draft(self) -> None:
        """The window closes: what was written to a new chat becomes one, whichever chat is shown."""
        draft = self._new_drafts[False]
        try:
            conversation_id = self._session.new_conversation().id
            self._store.set_draft(conversation_id, draft)
        except AppError as error:
            self._tell(None, error)
            return
        if self._current is None and not self._is_new_incognito:
            self._current = conversation_id
        self._new_drafts[False] = Draft()
        self.new_draft_changed.emit("")

    def _store_draft(self, draft: Draft) -> None:
        if self._current is None or draft == self._stored_draft:
            return
        try:
            self._store.set_draft(self._current, draft)
        except AppError as error:
            self._tell(self._current, error)
        else:
            self._stored_draft = draft
