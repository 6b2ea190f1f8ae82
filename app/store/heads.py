"""Conversations as the list shows them: their heads, and what is set for each."""

from __future__ import annotations

from typing import Any

from app.conversation import ChatOptions, Conversation, Draft
from app.errors import DamagedDatabaseError, UnknownConversationError
from app.records import attachments_to_json, conversation_from, options_to_json
from app.store.base import StoreBase, now
from app.store.incognito import SCHEMAS, new_conversation_id, schema_of
from app.title import shortened

_LONGEST_ECHO = 40
_HEADS = """
    SELECT *, (SELECT count(*) FROM {schema}.messages WHERE conversation_id = conversations.id) AS num_messages
    FROM {schema}.conversations
"""


class ConversationHeads(StoreBase):
    def conversations(self) -> list[Conversation]:
        """Every conversation, newest update first.

        `num_messages` counts the messages of all branches: that is a look into an index, the branch shown would be a
        walk for every row.
        """
        found = [self._head(row) for schema in SCHEMAS for row in self._rows_of(schema) if isinstance(row["id"], str)]
        found.reverse()  # of two as new, the one made later comes first
        return sorted(found, key=lambda head: head.updated_at, reverse=True)

    def conversation(self, conversation_id: str) -> Conversation:
        """Raises UnknownConversationError."""
        heads = _HEADS.format(schema=schema_of(conversation_id))
        try:
            rows = self._query(f"{heads} WHERE id = ?", conversation_id)
        except DamagedDatabaseError:
            rows = [row for row in self._rows_of(schema_of(conversation_id)) if row["id"] == conversation_id]
        if not rows:
            echo = shortened(conversation_id, _LONGEST_ECHO)
            raise UnknownConversationError(
                f"There is no conversation {echo}; list them with `ember conversations`.",
                id=conversation_id,
            )
        return self._head(rows[0])

    def create_conversation(
        self,
        *,
        system_prompt: str = "",
        is_incognito: bool = False,
        folder_id: int | None = None,
        options: ChatOptions = ChatOptions(),  # noqa: B008 (frozen)
        model: str | None = None,
    ) -> Conversation:
        conversation_id = new_conversation_id(is_incognito=is_incognito)
        time = now()
        self._insert(
            f"{schema_of(conversation_id)}.conversations",
            {
                "id": conversation_id,
                "system_prompt": system_prompt,
                "created_at": time,
                "updated_at": time,
                "folder_id": folder_id,
                "options": options_to_json(options),
                "model": model,
            },
        )
        return self.conversation(conversation_id)

    def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation with its messages. Raises UnknownConversationError."""
        self.conversation(conversation_id)
        self._execute(f"DELETE FROM {schema_of(conversation_id)}.conversations WHERE id = ?", conversation_id)

    def set_title(self, conversation_id: str, title: str) -> None:
        self._change("conversations", conversation_id, title=title)

    def set_draft(self, conversation_id: str, draft: Draft) -> None:
        attachments = attachments_to_json(draft.attachments)
        self._change("conversations", conversation_id, draft=draft.text, draft_attachments=attachments)

    def set_system_prompt(self, conversation_id: str, text: str) -> None:
        self._change("conversations", conversation_id, system_prompt=text)

    def set_options(self, conversation_id: str, options: ChatOptions) -> None:
        self._change("conversations", conversation_id, options=options_to_json(options))

    def set_model(self, conversation_id: str, model: str | None) -> None:
        self._change("conversations", conversation_id, model=model)

    def set_view_from(self, conversation_id: str, message_id: int | None) -> None:
        """The first message that the model still sees."""
        self._change("conversations", conversation_id, view_from=message_id)

    def set_pinned(self, conversation_id: str, is_pinned: bool) -> None:
        self._change("conversations", conversation_id, is_pinned=int(is_pinned))

    def pinned_ids(self) -> frozenset[str]:
        pinned = "SELECT id FROM {}.conversations WHERE is_pinned"
        rows = self._query(f"{pinned.format('main')} UNION ALL {pinned.format('incognito')}")
        return frozenset(row["id"] for row in rows if isinstance(row["id"], str))

    def _rows_of(self, schema: str) -> list[dict[str, Any]]:
        """In the order in which they were made. Of a damaged table those that can be read."""
        try:
            return self._query(_HEADS.format(schema=schema))
        except DamagedDatabaseError:
            rows = self._salvage(f"{schema}.conversations")
            return [row | {"num_messages": self._count(schema, row["id"])} for row in rows]

    def _count(self, schema: str, conversation_id: str) -> int:
        try:
            rows = self._rows(f"SELECT count(*) FROM {schema}.messages WHERE conversation_id = ?", conversation_id)
        except DamagedDatabaseError:
            return 0
        return int(rows[0][0])

    def _touch(self, conversation_id: str) -> None:
        self._change("conversations", conversation_id, updated_at=now())

    def _head(self, row: dict[str, Any]) -> Conversation:
        return conversation_from(row, is_in_memory=self.is_in_memory or schema_of(row["id"]) == "incognito")
