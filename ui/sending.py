"""Sending what is written, and stopping what it set off; a new chat is stored with its first message. GUI thread."""

from __future__ import annotations

from PySide6.QtCore import QObject, Slot

from app.chat_session import ChatSession
from app.conversation import Draft
from app.errors import AppError
from ui.chat_controller import ChatController
from ui.chat_page import ChatPage
from ui.drafts import Drafts
from ui.turn_watch import TurnWatch


class Sending(QObject):
    def __init__(
        self,
        session: ChatSession,
        controller: ChatController,
        watch: TurnWatch,
        drafts: Drafts,
        page: ChatPage,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._controller = controller
        self._watch = watch
        self._drafts = drafts
        self._composer = page.composer
        page.composer.send_requested.connect(self.send)
        page.composer.stop_requested.connect(self.stop)
        page.empty.suggestion_chosen.connect(self._on_suggestion_chosen)

    @Slot(object)
    def send(self, draft: Draft) -> None:
        """What fails is told, and the draft is in the composer again."""
        try:
            conversation_id = self._controller.current or self._controller.begin_chat()
            request_id = self._session.turns.send(conversation_id, draft)
        except AppError as error:
            self._drafts.put_back(draft)
            self._controller.show_error(error)
            self._controller.conversations_changed.emit()
            return
        self._drafts.sent()
        self._watch.reply_requested(conversation_id, request_id)
        self._controller.show_sent()

    @Slot()
    def stop(self) -> None:
        if self._controller.current is not None:
            self._session.stop(self._controller.current)

    @Slot(str)
    def _on_suggestion_chosen(self, text: str) -> None:
        if not self._composer.is_busy:
            self.send(Draft(text))
