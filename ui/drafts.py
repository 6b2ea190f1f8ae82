"""What is written and not sent: kept with the chat it belongs to, or for the new chat it will begin. GUI thread."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.conversation import Conversation, Draft
from app.conversation_store import ConversationStore
from app.errors import AppError
from ui.composer.composer import Composer


@dataclass(frozen=True, slots=True)
class Written:
    """What stands in the composer, and what of it is stored."""

    typed: Draft
    stored: Draft


class Drafts(QObject):
    """Of new chats there are two: the one that will be an incognito one, and the other."""

    new_draft_changed = Signal(str)  # the text of a chat that is not stored yet; never that of an incognito one
    failed = Signal(object, object)  # conversation id or None, AppError

    def __init__(
        self, session: ChatSession, store: ConversationStore, composer: Composer, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._store = store
        self._composer = composer
        self._conversation_id: str | None = None
        self._is_new_incognito = False
        self._new = {False: Draft(), True: Draft()}  # by whether the chat will be incognito
        self._stored = Draft()
        composer.draft_changed.connect(self._on_changed)

    def show(self, conversation: Conversation | None, *, is_new_incognito: bool) -> None:
        """Another chat is shown; None is a new one."""
        self._conversation_id = conversation.id if conversation else None
        self._is_new_incognito = is_new_incognito
        self._stored = conversation.draft if conversation else Draft()
        self.put_back(conversation.draft if conversation else self._new[is_new_incognito])

    def begin_with(self, new_draft: str) -> None:
        """What was being written to a new chat when the program ended without being closed."""
        self._new[False] = Draft(new_draft)
        if self._conversation_id is None:
            self.put_back(self._new[False])

    def chat_begun(self, conversation_id: str) -> None:
        """The new chat that is shown is stored from now on."""
        self._keep_new(Draft())
        self._conversation_id = conversation_id

    def sent(self) -> None:
        self._stored = Draft()
        self.put_back(Draft())

    def put_back(self, draft: Draft) -> None:
        """Into the composer."""
        self._composer.show_draft(draft, owner=self._owner)

    def keep(self) -> None:
        """Store what is in the composer with the conversation it belongs to."""
        self._on_changed(self._composer.take_draft())

    def keep_for_good(self) -> str | None:
        """The window closes: what was written to a new chat becomes one, whose id is returned."""
        self.keep()
        if self._new[False].is_blank:
            return None
        try:
            conversation_id = self._session.new_conversation().id
            self._store.set_draft(conversation_id, self._new[False])
        except AppError as error:
            self.failed.emit(None, error)
            return None
        self._new[False] = Draft()
        self.new_draft_changed.emit("")
        return conversation_id

    def written(self) -> Written:
        return Written(self._composer.take_draft(), self._stored)

    def join(self, before: Written) -> None:
        """The chat was shown again, and perhaps with a message that came back: it stands before what was `typed`."""
        back, typed, stored = self._stored, before.typed, before.stored
        text = back.text.removesuffix(stored.text).rstrip("\n") if stored.text else back.text
        files = tuple(one for one in back.attachments if one not in (*stored.attachments, *typed.attachments))
        draft = Draft("\n".join(filter(None, (text, typed.text))), (*files, *typed.attachments))
        self.put_back(draft)
        self._store_draft(draft)

    @Slot(object)
    def _on_changed(self, draft: Draft) -> None:
        if self._conversation_id is None:
            self._keep_new(draft)
        else:
            self._store_draft(draft)

    @property
    def _owner(self) -> str:
        """Whom the draft shown belongs to: files still being read go there."""
        return self._conversation_id or ("a new incognito chat" if self._is_new_incognito else "a new chat")

    def _keep_new(self, draft: Draft) -> None:
        is_other = draft.text != self._new[self._is_new_incognito].text
        self._new[self._is_new_incognito] = draft
        if is_other and not self._is_new_incognito:
            self.new_draft_changed.emit(draft.text)

    def _store_draft(self, draft: Draft) -> None:
        if self._conversation_id is None or draft == self._stored:
            return
        try:
            self._store.set_draft(self._conversation_id, draft)
        except AppError as error:
            self.failed.emit(self._conversation_id, error)
        else:
            self._stored = draft
