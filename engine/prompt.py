"""What a turn is asked to read: the prompt's token ids, and how many of them were read before. Inference thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from engine.kv.resident import common_prefix
from engine.model.loader import LoadedModel
from engine.protocol.commands import ChatMessage, Role


@dataclass(frozen=True, slots=True)
class Prompt:
    """`messages` are those in view, of which `token_ids` are made; `num_dropped` others of the request, system messages
    not counted, came before them. `history_tokens` of the prompt were part of an earlier turn.
    """

    messages: tuple[ChatMessage, ...]
    token_ids: list[int]
    history_tokens: int
    num_dropped: int = 0


def make_prompt(model: LoadedModel, messages: Sequence[ChatMessage], started_on: dt.date | None) -> Prompt:
    """Raises TemplateError."""
    token_ids = model.history.ids(messages, started_on=started_on)
    return Prompt(tuple(messages), token_ids, _history_tokens(model, messages, token_ids, started_on))


def _history_tokens(
    model: LoadedModel, messages: Sequence[ChatMessage], token_ids: list[int], started_on: dt.date | None
) -> int:
    """How many of the prompt's tokens belong to earlier turns: 0 in the first one."""
    if not any(message.role is Role.ASSISTANT for message in messages):
        return 0
    earlier = model.history.ids(messages[:-1], add_generation_prompt=False, started_on=started_on)
    return common_prefix(earlier, token_ids)
