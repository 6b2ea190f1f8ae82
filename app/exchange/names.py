"""The words that an exported page or Markdown file has of its own; the window gives them in its language."""

from __future__ import annotations

from dataclasses import dataclass

from app.conversation import Attachment, Conversation, Message
from app.folding import flat
from engine.protocol.commands import Role


@dataclass(frozen=True, slots=True)
class Names:
    """`language`: as HTML has it ("en", "ko"). `attached`: what stands before the name of a file."""

    user: str = "You"
    assistant: str = "Assistant"
    system: str = "System prompt"
    attached: str = "Attached"
    untitled: str = "Untitled"
    language: str = "en"

    def of(self, message: Message) -> str:
        """Who says it."""
        match message.role:
            case Role.USER:
                return self.user
            case Role.ASSISTANT:
                return self.assistant
            case Role.SYSTEM:
                return self.system

    def title(self, conversation: Conversation) -> str:
        return flat(conversation.title) or self.untitled

    def file(self, attachment: Attachment) -> str:
        return f"{self.attached}: {flat(attachment.name)} ({_size(attachment.num_bytes)})"


def _size(num_bytes: int) -> str:
    if num_bytes < 1000:
        return f"{num_bytes} B"
    return f"{num_bytes / 1000:,.0f} kB" if num_bytes < 1_000_000 else f"{num_bytes / 1_000_000:,.1f} MB"
