"""A conversation as Markdown: the branch shown, its texts as they were written."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.conversation import Conversation, Message
from app.exchange.names import Names

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_SPECIAL = re.compile(r"([\\`*_\[\]<>#&|~])")


def export_markdown(conversation: Conversation, messages: Sequence[Message], names: Names = Names()) -> str:  # noqa: B008 (frozen)
    """`messages`: the branch shown, oldest first."""
    parts = [f"# {_plain(names.title(conversation))}", f"*{conversation.created_at.astimezone():%Y-%m-%d %H:%M}*"]
    if conversation.system_prompt.strip():
        parts += [f"## {_plain(names.system)}", _closed(conversation.system_prompt)]
    for message in messages:
        parts.append(f"## {_plain(names.of(message))}")
        parts += [f"*{_plain(names.file(each))}*" for each in message.attachments]
        parts.append(_closed(message.text))
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain(words: str) -> str:
    """Words that Markdown shows as they are."""
    return _SPECIAL.sub(r"\\\1", words)


def _closed(text: str) -> str:
    """A code block that was never closed (the reply was stopped in it) must not swallow what comes after."""
    text = text.replace("\0", "\ufffd").strip("\n")
    fence = ""
    for line in text.splitlines():
        match = _FENCE.fullmatch(line)
        if match is None:
            continue
        mark, rest = match[1], match[2]
        if not fence and not (mark[0] == "`" and "`" in rest):
            fence = mark
        elif fence and mark[0] == fence[0] and len(mark) >= len(fence) and not rest.strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text
