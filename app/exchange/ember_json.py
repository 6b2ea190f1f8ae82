"""Ember's own JSON: everything there is to know of conversations, every branch included.

    {"format": "ember-export", "version": 1, "exported_at", "folders": [{"id", "name"}],
     "conversations": [{"id", "title", "created_at", "updated_at", "system_prompt", "model", "is_pinned", "folder_id",
       "options", "view_from", "draft": {"text", "attachments"},
       "messages": [{"id", "parent_id", "is_selected", "role", "text", "created_at", "model", "token_ids",
         "tokenizer_id", "finish_reason", "statistics", "attachments": [{"name", "text", "num_bytes"}]}]}]}

A parent stands before its children, siblings stand oldest first; ids say who belongs to whom within the file only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from app.conversation import Attachment, Conversation, Message, MessageState
from app.conversation_store import ConversationStore
from engine.protocol.events import FinishReason

FORMAT, VERSION = "ember-export", 1


def export_json(store: ConversationStore, conversation_ids: Sequence[str] | None = None) -> str:
    """These conversations, or all; incognito ones only where they are named. Raises UnknownConversationError."""
    if conversation_ids is None:
        chosen = [chat for chat in store.conversations() if store.is_in_memory or not chat.is_incognito]
    else:
        chosen = [store.conversation(conversation_id) for conversation_id in dict.fromkeys(conversation_ids)]
    used = {chat.folder_id for chat in chosen}
    content = {
        "format": FORMAT,
        "version": VERSION,
        "exported_at": datetime.now(UTC).isoformat(),
        "folders": [asdict(folder) for folder in store.folders() if folder.id in used],
        "conversations": [_conversation(store, chat) for chat in chosen],
    }
    return json.dumps(content, ensure_ascii=False)


def _conversation(store: ConversationStore, chat: Conversation) -> dict[str, Any]:
    selected = store.selected_ids(chat.id)
    return {
        "id": chat.id,
        "title": chat.title,
        "created_at": chat.created_at.isoformat(),
        "updated_at": chat.updated_at.isoformat(),
        "system_prompt": chat.system_prompt,
        "model": chat.model,
        "is_pinned": chat.is_pinned,
        "folder_id": chat.folder_id,
        "options": {name: value for name, value in asdict(chat.options).items() if value is not None},
        "view_from": chat.view_from,
        "draft": {"text": chat.draft.text, "attachments": _attachments(chat.draft.attachments)},
        "messages": [_message(message, message.id in selected) for message in store.tree(chat.id)],
    }


def _message(message: Message, is_selected: bool) -> dict[str, Any]:
    """A reply still being written is exported as what a program that ends in the middle of it would leave."""
    is_whole = message.state is MessageState.COMPLETE
    return {
        "id": message.id,
        "parent_id": message.parent_id,
        "is_selected": is_selected,
        "role": message.role.value,
        "text": message.text,
        "created_at": message.created_at.isoformat(),
        "model": message.model,
        "token_ids": message.token_ids if is_whole else None,
        "tokenizer_id": message.tokenizer_id if is_whole else None,
        "finish_reason": message.finish_reason if is_whole else FinishReason.CANCELLED,
        "statistics": asdict(message.statistics) if message.statistics else None,
        "attachments": _attachments(message.attachments),
    }


def _attachments(attachments: Sequence[Attachment]) -> list[dict[str, Any]]:
    return [asdict(each) for each in attachments]
