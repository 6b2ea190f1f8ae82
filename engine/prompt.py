"""What a turn is asked to read: the prompt's token ids, and how many of them were read before. Inference thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from engine import compaction, context_view
from engine.kv.chat_key import chat_key
from engine.kv.manager import CacheManager
from engine.kv.resident import common_prefix
from engine.model.loader import LoadedModel
from engine.protocol.commands import ChatMessage, Estimate, Generate, Role
from engine.protocol.config import ContextPolicy
from engine.protocol.errors import ContextOverflowError


@dataclass(frozen=True, slots=True)
class Prompt:
    """`messages` are those in view, of which `token_ids` are made; `num_dropped` others of the request, system messages
    not counted, came before them. `history_tokens` of the prompt were part of an earlier turn. `open_ids`: of a reply
    that goes on, those at the prompt's end; None where a new one is asked for. `outlook`: where the prompt by itself is
    too long, how the chat's cache makes it fit (`engine.compaction`).
    """

    messages: tuple[ChatMessage, ...]
    token_ids: list[int]
    history_tokens: int
    num_dropped: int = 0
    open_ids: tuple[int, ...] | None = None
    outlook: compaction.Outlook | None = None


def make_prompt(model: LoadedModel, command: Generate | Estimate, caches: CacheManager | None = None) -> Prompt:
    """Where the messages leave too little room for a reply, the oldest leave the view, as the command's policy says,
    or, with `caches`, the chat's cache is going to be compressed.

    Raises TemplateError.
    """
    continues = isinstance(command, Generate) and command.continues

    def ids_of(messages: Sequence[ChatMessage]) -> list[int]:
        if continues:
            return model.history.open_ids(messages, started_on=command.started_on)
        return model.history.ids(messages, started_on=command.started_on)

    messages, token_ids, num_dropped = command.messages, ids_of(command.messages), 0
    context_length = model.info.context_length
    reserve = context_view.reserve(command.max_new_tokens, context_length)
    is_too_long = context_length - len(token_ids) < reserve
    outlook = None
    if is_too_long and command.on_overflow is ContextPolicy.COMPRESS and caches is not None:
        key = chat_key(command.conversation_id, command.branch)
        outlook = compaction.outlook(model, caches, key, messages, token_ids, reserve)
    if is_too_long and command.on_overflow is not ContextPolicy.STOP and outlook is None:
        view = context_view.move(messages, ids_of, context_length)
        messages, token_ids, num_dropped = view.messages, view.token_ids, view.num_dropped
    if continues:
        open_ids = tuple(model.history.reply_ids(messages[-1]))
        return Prompt(messages, token_ids, len(token_ids) if not num_dropped else 0, num_dropped, open_ids, outlook)
    # What is read again because others have left is told by that, and is no miss.
    history_tokens = _history_tokens(model, messages, token_ids, command.started_on) if not num_dropped else 0
    return Prompt(messages, token_ids, history_tokens, num_dropped, outlook=outlook)


def check_room(model: LoadedModel, prompt: Prompt) -> int:
    """Tokens that a reply may have. Raises ContextOverflowError for none."""
    num_tokens, context_length = len(prompt.token_ids), model.info.context_length
    if num_tokens >= context_length:
        raise ContextOverflowError(
            f"The conversation has {num_tokens:,} tokens, but {model.info.name} reads at most"
            f" {context_length:,}; shorten the message or start a new chat.",
            prompt_tokens=str(num_tokens),
            context_length=str(context_length),
        )
    return context_length - num_tokens


def answered(command: Generate, prompt: Prompt, text: str, token_ids: tuple[int, ...] | None) -> list[ChatMessage]:
    """What was in view, and the whole reply, the end of which is `text`; `token_ids` None where they are not its."""
    if prompt.open_ids is None:
        return [*prompt.messages, ChatMessage(Role.ASSISTANT, text, token_ids if text else None)]
    begun = prompt.messages[-1]
    ids = (*begun.token_ids, *token_ids) if begun.token_ids and token_ids is not None else None
    return [*prompt.messages[:-1], ChatMessage(Role.ASSISTANT, begun.text + text, ids)]


def _history_tokens(
    model: LoadedModel, messages: Sequence[ChatMessage], token_ids: list[int], started_on: dt.date | None
) -> int:
    """How many of the prompt's tokens belong to earlier turns: 0 in the first one."""
    if not any(message.role is Role.ASSISTANT for message in messages):
        return 0
    earlier = model.history.ids(messages[:-1], add_generation_prompt=False, started_on=started_on)
    return common_prefix(earlier, token_ids)
