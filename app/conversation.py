"""Conversations and messages as the app and the window see them: frozen records, no storage, no engine.

The messages of a conversation are a tree: another reply to the same question, or another wording of the same question,
is a sibling, a *version*. Of siblings one is selected; following the selected ones from the root gives the branch that
is shown, and that the model reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from engine.protocol.commands import Role
from engine.protocol.events import FinishReason, TurnStatistics


class MessageState(StrEnum):
    """`STREAMING` is a reply being written; found at start-up it means that the program ended in the middle of it."""

    STREAMING = "streaming"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that goes with a message. `text` is what the model reads of it; `num_bytes` is the size of the file."""

    name: str
    text: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Draft:
    """What is about to be sent."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()

    @property
    def is_blank(self) -> bool:
        return not self.text.strip() and not self.attachments


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a conversation sets otherwise than the settings do; None follows them. See `app.settings.Settings`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `token_ids` are the ids the model generated, valid for the tokenizer `tokenizer_id` only.

    `version` of `num_versions` siblings, counted from 1, oldest first. `parent_id` is None for a first message.
    """

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
    parent_id: int | None = None
    version: int = 1
    num_versions: int = 1
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Folder:
    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation's head. `title` is "" until the first message; times are aware (UTC).

    `is_pinned`: it stands at the top of the list, and its cache goes last when memory or disk runs short.
    `is_incognito`: in memory only, gone when the program ends. `view_from`: the first message that the model still
    sees, None for all; older ones have left its context.
    """

    id: str
    title: str
    created_at: datetime
    updated_at: datetime
    system_prompt: str = ""
    model: str | None = None
    draft: Draft = field(default_factory=Draft)
    num_messages: int = 0
    is_pinned: bool = False
    is_incognito: bool = False
    folder_id: int | None = None
    options: ChatOptions = field(default_factory=ChatOptions)
    view_from: int | None = None


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message, or (`message_id` None) a title, that holds the words looked for.

    `excerpt` is a line of the text around the first match; `matches` are the (start, length) of all in it, in
    characters.
    """

    conversation_id: str
    message_id: int | None
    excerpt: str
    matches: tuple[tuple[int, int], ...]
