"""Conversations on their way in, whatever file they came from: frozen, checked, not stored yet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from app.conversation import Attachment, ChatOptions, Draft
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason, TurnStatistics


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """`parent` is the place of its parent among the messages of the conversation, always before its own; None if first.

    `created_at` None: the file does not say.
    """

    parent: int | None
    role: Role
    text: str
    created_at: datetime | None = None
    is_selected: bool = True
    model: str | None = None
    token_ids: tuple[int, ...] | None = None
    tokenizer_id: str | None = None
    finish_reason: FinishReason | None = None
    statistics: TurnStatistics | None = None
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class IncomingConversation:
    """`view_from` is a place among the messages; `folder` the name of one, which is made where there is none."""

    title: str
    messages: tuple[IncomingMessage, ...]
    system_prompt: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    model: str | None = None
    is_pinned: bool = False
    folder: str | None = None
    options: ChatOptions = field(default_factory=ChatOptions)
    view_from: int | None = None
    draft: Draft = field(default_factory=Draft)


class Skipped:
    """What a file has and Ember does not take, counted by its kind, in words: "results of tools"."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, kind: str) -> None:
        self._counts[kind] += 1

    def sentences(self) -> tuple[str, ...]:
        return tuple(f"{kind}: {count:,}" for kind, count in self._counts.items())
