"""Conversations and messages as the app and the window see them: frozen records, no storage, no engine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from engine.protocol.commands import Role
from engine.protocol.events import FinishReason, TurnStatistics


class MessageState(StrEnum):
    """`STREAMING` is a reply being written; found at start-up it means that the program ended in the middle of it."""

    STREAMING = "streaming"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `token_ids` are the ids the model generated, valid for the tokenizer `tokenizer_id` only."""

    id: int
    conversation_id: str
    role: Role
    text: str
    created_at: datetime
    state: MessageState = MessageState.COMPLETE
    token_ids: tuple[int, ...] | None = None
    tokenizer_id: str | None = None
    finish_reason: FinishReason | None = None
    statistics: TurnStatistics | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation's head. `title` is "" until the first message; times are aware (UTC).

    `is_pinned`: its cache goes last when memory or disk runs short.
    """

    id: str
    title: str
    created_at: datetime
    updated_at: datetime
    system_prompt: str = ""
    model: str | None = None
    draft: str = ""
    num_messages: int = 0
    is_pinned: bool = False
