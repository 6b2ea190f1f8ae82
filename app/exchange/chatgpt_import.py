"""Reading ChatGPT's `conversations.json`: of each conversation a tree of nodes ("mapping") and the node shown last.

Nodes without words for people (the root, tool calls and their results, hidden instructions) are left out; what follows
them hangs on the nearest one that is kept. The files come from many years of another program: what makes no sense is
left out and counted, not refused.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from app.exchange.incoming import IncomingConversation, IncomingMessage, Skipped
from app.exchange.tidy import joined_replies, plain_title
from app.history import well_formed
from app.records import usable_time
from engine.protocol.commands import Role

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}
_TEXTS = ("text", "multimodal_text")
_PLACE_OF_PICTURE = "[…]"


def is_chatgpt(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("mapping"), dict)


def read_chatgpt(content: dict[str, Any], skipped: Skipped) -> IncomingConversation:
    mapping: dict[str, Any] = content["mapping"]
    parents = _parents(mapping)
    shown = _path_to(content.get("current_node"), parents)
    messages: list[IncomingMessage] = []
    places: dict[str | None, int | None] = {None: None}  # of a node: where the nearest message kept above it stands
    num_walked = 0
    for node_id in _walk(mapping, parents):
        num_walked += 1
        parent = places[parents[node_id]]
        message = _message(mapping[node_id], parent, node_id in shown, skipped)
        places[node_id] = parent if message is None else len(messages)
        if message is not None:
            messages.append(message)
    for _ in range(len(mapping) - num_walked):
        skipped.add("messages that follow each other in a circle")
    messages = joined_replies(messages)
    return IncomingConversation(
        title=plain_title(content.get("title"), messages),
        messages=tuple(messages),
        created_at=_time(content.get("create_time")),
        updated_at=_time(content.get("update_time")),
    )


def _parents(mapping: dict[str, Any]) -> dict[str, str | None]:
    """Of every node; None where the parent is not in the file."""
    found: dict[str, str | None] = {}
    for node_id, node in mapping.items():
        parent = node.get("parent") if isinstance(node, dict) else None
        found[node_id] = parent if isinstance(parent, str) and parent in mapping else None
    return found


def _walk(mapping: dict[str, Any], parents: dict[str, str | None]) -> list[str]:
    """Parents before children, siblings in the order that their parent names them; no node twice, none of a circle."""
    children: dict[str | None, list[str]] = {}
    for node_id, parent in parents.items():
        children.setdefault(parent, []).append(node_id)
    for parent, below in children.items():
        named = mapping[parent].get("children") if parent is not None else None
        if isinstance(named, list):
            order = {child: number for number, child in enumerate(named) if isinstance(child, str)}
            below.sort(key=lambda child: order.get(child, len(order)))
    walked: list[str] = []
    waiting = children.get(None, [])[::-1]
    while waiting:
        node_id = waiting.pop()
        walked.append(node_id)
        waiting.extend(children.get(node_id, [])[::-1])
    return walked


def _path_to(node_id: Any, parents: dict[str, str | None]) -> set[str]:
    path: set[str] = set()
    while isinstance(node_id, str) and node_id in parents and node_id not in path:
        path.add(node_id)
        node_id = parents[node_id]
    return path


def _message(node: Any, parent: int | None, is_selected: bool, skipped: Skipped) -> IncomingMessage | None:
    stored = node.get("message") if isinstance(node, dict) else None
    if not isinstance(stored, dict):
        return None
    author, content, metadata = (_dict(stored.get(name)) for name in ("author", "content", "metadata"))
    role = _ROLES.get(str(author.get("role")))
    text = _text(content, skipped) if role is not None else ""
    if role is None or not text.strip() or metadata.get("is_visually_hidden_from_conversation") is True:
        if author.get("role") == "tool":
            skipped.add("results of tools")
        return None
    model = metadata.get("model_slug")
    return IncomingMessage(
        parent=parent,
        role=role,
        text=text,
        created_at=_time(stored.get("create_time")),
        is_selected=is_selected,
        model=well_formed(model) if isinstance(model, str) and role is Role.ASSISTANT else None,
    )


def _text(content: dict[str, Any], skipped: Skipped) -> str:
    if content.get("content_type", "text") not in _TEXTS or not isinstance(content.get("parts"), list):
        return ""
    texts = []
    for part in content["parts"]:
        if isinstance(part, dict) and isinstance(part.get("text"), str):  # a transcript of what was spoken
            texts.append(part["text"])
        elif isinstance(part, str):
            texts.append(part)
        else:
            texts.append(_PLACE_OF_PICTURE)
            skipped.add("pictures and other files, “[…]” in their place")
    return well_formed("\n\n".join(text for text in texts if text))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _time(seconds: Any) -> datetime | None:
    """Since 1970, UTC."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    try:
        return usable_time(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        return None
