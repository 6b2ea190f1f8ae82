"""Reading plain lists of {"role", "content"}, as data sets and the interfaces of many programs have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.exchange.incoming import IncomingConversation, IncomingMessage, Skipped
from app.exchange.tidy import joined_replies, plain_title
from app.history import well_formed
from engine.protocol.commands import Role

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}
_SYSTEM_ROLES = ("system", "developer")


def is_plain_message(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("role"), str) and "messages" not in content


def is_plain_list(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and is_plain_message(content[0])


def is_plain_conversation(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("messages"), list)


def read_plain(
    stored: Sequence[Any], skipped: Skipped, *, title: Any = None, system_prompt: Any = None
) -> IncomingConversation:
    """A system message at the beginning becomes the system prompt; later ones and those of tools are left out."""
    messages: list[IncomingMessage] = []
    prompts = [well_formed(system_prompt)] if isinstance(system_prompt, str) else []
    for each in stored:
        role, text = (each["role"], _text(each.get("content"))) if is_plain_message(each) else ("", "")
        if role in _ROLES and text.strip():
            parent = len(messages) - 1 if messages else None
            messages.append(IncomingMessage(parent, _ROLES[role], text))
        elif role in _SYSTEM_ROLES and not messages and text.strip():
            prompts.append(text)
        else:
            skipped.add("messages without text, or of another role than user and assistant")
    messages = joined_replies(messages)
    return IncomingConversation(plain_title(title, messages), tuple(messages), system_prompt="\n\n".join(prompts))


def _text(content: Any) -> str:
    """A text, or a list of texts and of {"type": "text", "text"}."""
    if isinstance(content, str):
        return well_formed(content)
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return well_formed("\n\n".join(text for text in texts if isinstance(text, str) and text))
