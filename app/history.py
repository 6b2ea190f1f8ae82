"""Stored messages as the engine takes them: the history of a turn."""

from __future__ import annotations

from app.conversation import Conversation, Message
from engine.protocol.commands import ChatMessage, Role


def history_of(
    conversation: Conversation, messages: list[Message], tokenizer_id: str | None
) -> tuple[ChatMessage, ...]:
    """The messages, oldest first, the system prompt before them.

    Token ids go along only under the tokenizer that made them. Two user messages in a row (the reply to the first one
    failed) become one, since strict chat templates refuse roles that do not alternate.
    """
    history: list[ChatMessage] = []
    if conversation.system_prompt:
        history.append(ChatMessage(Role.SYSTEM, conversation.system_prompt))
    for message in messages:
        if message.role is Role.USER and history and history[-1].role is Role.USER:
            history[-1] = ChatMessage(Role.USER, f"{history[-1].text}\n\n{message.text}")
            continue
        is_usable = tokenizer_id is not None and message.tokenizer_id == tokenizer_id
        history.append(ChatMessage(message.role, message.text, message.token_ids if is_usable else None))
    return tuple(history)


def well_formed(text: str) -> str:
    """`text` without half characters (lone surrogates), which neither a database nor a tokenizer takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
