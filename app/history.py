"""Stored messages as the engine takes them: the history of a turn."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.conversation import Attachment, Conversation, Draft, Message
from engine.protocol.commands import ChatMessage, Role

_FENCE = re.compile(r"`{3,}")


@dataclass(frozen=True, slots=True)
class History:
    """`messages` for the engine; `sources`: with which stored message each of them, but the system prompt, begins."""

    messages: tuple[ChatMessage, ...]
    sources: tuple[int, ...]

    def source_after(self, num_dropped: int) -> int | None:
        """The first message that stays in view when the oldest `num_dropped` go; None where there is none."""
        return self.sources[num_dropped] if 0 < num_dropped < len(self.sources) else None


def history_of(conversation: Conversation, messages: Sequence[Message], tokenizer_id: str | None) -> History:
    """The messages that the model still sees, oldest first, the system prompt before them.

    Token ids go along only under the tokenizer that made them. Two user messages in a row (the reply to the first one
    failed) become one, since strict chat templates refuse roles that do not alternate.
    """
    history: list[ChatMessage] = []
    sources: list[int] = []
    if conversation.system_prompt:
        history.append(ChatMessage(Role.SYSTEM, conversation.system_prompt))
    for message in in_view(conversation, messages):
        text = prompt_text(message.text, message.attachments)
        if message.role is Role.USER and history and history[-1].role is Role.USER:
            history[-1] = ChatMessage(Role.USER, f"{history[-1].text}\n\n{text}")
            continue
        is_usable = tokenizer_id is not None and message.tokenizer_id == tokenizer_id
        history.append(ChatMessage(message.role, text, message.token_ids if is_usable else None))
        sources.append(message.id)
    return History(tuple(history), tuple(sources))


def in_view(conversation: Conversation, messages: Sequence[Message]) -> Sequence[Message]:
    """Without those that have left the model's view; all of them where the first one in view is on another branch."""
    if conversation.view_from is None:
        return messages
    first = next((index for index, message in enumerate(messages) if message.id == conversation.view_from), 0)
    return messages[first:]


def prompt_text(text: str, attachments: Sequence[Attachment]) -> str:
    """What the model reads of a message: its files, each named and fenced, then what was written."""
    parts = [_fenced(attachment) for attachment in attachments]
    return "\n\n".join([*parts, text] if text else parts)


def well_formed(text: str) -> str:
    """`text` without half characters (lone surrogates), which neither a database nor a tokenizer takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def well_formed_draft(draft: Draft) -> Draft:
    attachments = tuple(
        dataclasses.replace(one, name=well_formed(one.name), text=well_formed(one.text)) for one in draft.attachments
    )
    return Draft(well_formed(draft.text), attachments)


def _fenced(attachment: Attachment) -> str:
    """In a fence longer than any in the file."""
    longest = max((len(found) for found in _FENCE.findall(attachment.text)), default=2)
    fence = "`" * (longest + 1)
    return f"{attachment.name}:\n{fence}\n{attachment.text.rstrip()}\n{fence}"
