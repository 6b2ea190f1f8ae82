"""A stored chat as the engine is given it: every command about a chat's cache or its next reply carries this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from app.conversation import Conversation, Message, MessageState
from app.conversation_store import ConversationStore
from app.history import History, history_of
from app.model_switch import ModelSwitch
from engine.protocol.commands import ChatMessage


@dataclass(frozen=True, slots=True)
class ChatView:
    """`started_on`: the user's calendar day on which the chat began. `branch` names the version that is shown of it."""

    history: History
    started_on: date
    is_incognito: bool
    branch: str

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        return self.history.messages


class ChatViews:
    """Incognito conversations, and all those of a store that is in memory only, leave nothing behind in the engine."""

    def __init__(self, store: ConversationStore, models: ModelSwitch) -> None:
        self._store = store
        self._models = models

    def of(self, conversation: Conversation, messages: Sequence[Message]) -> ChatView:
        """With just these messages. One without an id is not stored yet. Raises StorageError."""
        return ChatView(
            history_of(conversation, messages, self._models.tokenizer_id),
            conversation.created_at.astimezone().date(),
            conversation.is_incognito or self._store.is_in_memory,
            self._store.branch_name(conversation.id) if conversation.id else "",
        )

    def settled(self, conversation: Conversation, *more: Message) -> ChatView:
        """Without a reply still being written; `more` would follow. Raises StorageError."""
        stored = self._store.messages(conversation.id) if conversation.id else []
        return self.of(conversation, [*(one for one in stored if one.state is not MessageState.STREAMING), *more])
