"""Taking in conversations that come from a file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from app.conversation import MessageState
from app.exchange.incoming import IncomingConversation, IncomingMessage
from app.records import attachments_to_json, ids_to_blob, options_to_json, statistics_to_json
from app.store.base import as_text
from app.store.incognito import new_conversation_id
from app.store.search import Search


class Imports(Search):
    def add_imported(self, chats: Sequence[IncomingConversation]) -> None:
        """All of them, in one transaction, under new ids; folders are known by their names."""
        with self.transaction():
            folders = {folder.name: folder.id for folder in self.folders()}
            for name in dict.fromkeys(chat.folder for chat in chats):
                if name is not None and name not in folders:
                    folders[name] = self.create_folder(name).id
            first = self._next_message_id("")
            heads: list[dict[str, object]] = []
            rows: list[dict[str, object]] = []
            for chat in chats:
                head = _head(chat, first, folders)
                heads.append(head)
                rows.extend(_row(message, number, first, head) for number, message in enumerate(chat.messages))
                first += len(chat.messages)
            self._insert_many("main.conversations", heads)
            self._insert_many("main.messages", rows)


def _head(chat: IncomingConversation, first: int, folders: dict[str, int]) -> dict[str, object]:
    """`first`: the id of its first message. Times that the file does not tell are those of its messages, or now."""
    times = [message.created_at for message in chat.messages if message.created_at is not None]
    created_at = chat.created_at or min(times, default=datetime.now(UTC))
    return {
        "id": new_conversation_id(is_incognito=False),
        "title": chat.title,
        "system_prompt": chat.system_prompt,
        "model": chat.model,
        "draft": chat.draft.text,
        "draft_attachments": attachments_to_json(chat.draft.attachments),
        "created_at": as_text(created_at),
        "updated_at": as_text(chat.updated_at or max([created_at, *times])),
        "is_pinned": int(chat.is_pinned),
        "folder_id": folders[chat.folder] if chat.folder is not None else None,
        "options": options_to_json(chat.options),
        "view_from": None if chat.view_from is None else first + chat.view_from,
    }


def _row(message: IncomingMessage, number: int, first: int, head: dict[str, object]) -> dict[str, object]:
    return {
        "id": first + number,
        "conversation_id": head["id"],
        "parent_id": None if message.parent is None else first + message.parent,
        "is_selected": int(message.is_selected),
        "role": message.role.value,
        "text": message.text,
        "state": MessageState.COMPLETE.value,
        "created_at": head["created_at"] if message.created_at is None else as_text(message.created_at),
        "model": message.model,
        "token_ids": ids_to_blob(message.token_ids),
        "tokenizer_id": message.tokenizer_id,
        "finish_reason": message.finish_reason.value if message.finish_reason else None,
        "statistics": statistics_to_json(message.statistics),
        "attachments": attachments_to_json(message.attachments),
    }
