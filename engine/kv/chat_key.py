"""The name under which the engine keeps one branch of a conversation, and back: known here and nowhere else.

Inside the engine a chat is a branch: `conversation_id` of a resident, a manifest or a save is such a key. What is told
outside names the conversation. Standard library only.
"""

from __future__ import annotations

_SEPARATOR = "\x1f"


def chat_key(conversation_id: str, branch: str = "") -> str:
    """The conversation's own id for its first branch, so that what was kept before there were branches is found."""
    if not branch and _SEPARATOR not in conversation_id:
        return conversation_id
    return f"{conversation_id}{_SEPARATOR}{branch.replace(_SEPARATOR, '_')}"


def conversation_of(key: str) -> str:
    head, separator, _ = key.rpartition(_SEPARATOR)
    return head if separator else key


def branch_of(key: str) -> str:
    """ "" for the first one."""
    _, separator, tail = key.rpartition(_SEPARATOR)
    return tail if separator else ""
