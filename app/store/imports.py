"""Taking in conversations that come from a file: all of it or nothing, also when that takes several transactions.

What a part has brought is listed until `finish_import`; whatever is still listed when Ember starts goes again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from app.conversation import MessageState
from app.errors import StorageError
from app.exchange.incoming import IncomingConversation, IncomingMessage
from app.records import attachments_to_json, ids_to_blob, options_to_json, statistics_to_json
from app.store.base import as_text
from app.store.incognito import new_conversation_id
from app.store.search import Search

_log = logging.getLogger(__name__)
_UNTOUCHED = """
    SELECT conversations.id FROM main.conversations JOIN main.unfinished_imports ON conversation_id = conversations.id
    WHERE conversations.updated_at = unfinished_imports.updated_at AND conversations.draft = unfinished_imports.draft
"""
_EMPTY_FOLDERS = """
    SELECT folder_id FROM main.unfinished_import_folders
    WHERE folder_id NOT IN (SELECT folder_id FROM main.conversations WHERE folder_id IS NOT NULL)
    AND folder_id NOT IN (SELECT folder_id FROM incognito.conversations WHERE folder_id IS NOT NULL)
"""


class Imports(Search):
    def add_imported(self, chats: Sequence[IncomingConversation], *, is_part: bool = False) -> list[str]:
        """All of them, in one transaction, under new ids, which are returned; folders are known by their names.

        `is_part`: more of the same file follows, and `finish_import` at its end.
        """
        with self.transaction():
            folders = {folder.name: folder.id for folder in self.folders()}
            for name in dict.fromkeys(chat.folder for chat in chats):
                if name is not None and name not in folders:
                    folders[name] = self.create_folder(name).id
                    if is_part:
                        self._insert("main.unfinished_import_folders", {"folder_id": folders[name]})
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
            if is_part:
                listed = [
                    {"conversation_id": head["id"], "updated_at": head["updated_at"], "draft": head["draft"]}
                    for head in heads
                ]
                self._insert_many("main.unfinished_imports", listed)
        return [str(head["id"]) for head in heads]

    def finish_import(self) -> None:
        """All parts are there; in one transaction with the last of them, nothing can come in between."""
        with self.transaction():
            self._execute("DELETE FROM main.unfinished_imports")
            self._execute("DELETE FROM main.unfinished_import_folders")

    def take_back_import(self) -> None:
        """Delete what the parts of a file have brought that was not taken in as a whole, its folders too.

        A conversation that the user has gone on in, or has begun to write in, stays, and its folder with it.
        """
        with self.transaction():
            self._execute(f"DELETE FROM main.conversations WHERE id IN ({_UNTOUCHED})")
            self._execute(f"DELETE FROM main.folders WHERE id IN ({_EMPTY_FOLDERS})")
            self.finish_import()

    def close_interrupted_replies(self) -> int:
        """At start-up, also an import that was interrupted is taken back."""
        try:
            self.take_back_import()
        except StorageError as error:
            _log.warning("An import that was interrupted cannot be taken back: %s", error)
        return super().close_interrupted_replies()


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
