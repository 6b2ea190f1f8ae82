"""Copies of a conversation: whole, or the path up to one message (a fork)."""

from __future__ import annotations

from collections.abc import Sequence

from app.conversation import Conversation, Draft, MessageState
from app.message_tree import MessageTree
from app.records import attachments_to_json, options_to_json
from app.store.base import as_list, as_text, now
from app.store.incognito import new_conversation_id, schema_of
from app.store.messages import unknown_message
from app.store.removal import Removal
from engine.protocol.events import FinishReason

_CANCELLED: dict[str, object] = {
    "state": MessageState.COMPLETE.value,
    "finish_reason": FinishReason.CANCELLED.value,
    "token_ids": None,
    "tokenizer_id": None,
}


class Copies(Removal):
    def duplicate_conversation(self, conversation_id: str, *, until: int | None = None) -> Conversation:
        """A copy with every branch; with `until` only the path up to that message. The title stays: the caller renames.

        Token ids and the day the conversation began stay too, so that the engine can share the caches. A reply that is
        being written is copied as a cancelled one, a draft only with the whole. Raises UnknownConversationError,
        UnknownMessageError.
        """
        head = self.conversation(conversation_id)
        tree = self._tree_of(conversation_id)
        if until is not None and until not in tree:
            raise unknown_message(until)
        copied = tree.ids if until is None else tree.path(until)
        copy_id = new_conversation_id(is_incognito=schema_of(conversation_id) == "incognito")
        with self.transaction():
            self._insert_head(head, copy_id, is_whole=until is None)
            new_ids = self._copy_messages(tree, copied, copy_id)
            self.set_view_from(copy_id, new_ids.get(head.view_from))
        return self.conversation(copy_id)

    def _insert_head(self, head: Conversation, copy_id: str, *, is_whole: bool) -> None:
        draft = head.draft if is_whole else Draft()
        self._insert(
            f"{schema_of(copy_id)}.conversations",
            {
                "id": copy_id,
                "title": head.title,
                "system_prompt": head.system_prompt,
                "model": head.model,
                "folder_id": head.folder_id,
                "options": options_to_json(head.options),
                "draft": draft.text,
                "draft_attachments": attachments_to_json(draft.attachments),
                "created_at": as_text(head.created_at),
                "updated_at": now(),
            },
        )

    def _copy_messages(self, tree: MessageTree, copied: Sequence[int], copy_id: str) -> dict[int | None, int | None]:
        """The new id of each."""
        table = f"{schema_of(copy_id)}.messages"
        first = self._next_message_id(copy_id)
        new_ids: dict[int | None, int | None] = {None: None}
        new_ids |= {old_id: first + number for number, old_id in enumerate(copied)}
        rows = self._query(
            f"SELECT * FROM {table} WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id", as_list(copied)
        )
        for row in rows:
            old_id = int(row["id"])
            siblings = [sibling for sibling in tree.siblings(old_id) if sibling in new_ids]
            row |= {
                "id": new_ids[old_id],
                "conversation_id": copy_id,
                "parent_id": new_ids[tree.parent(old_id)],
                "is_selected": int(len(siblings) == 1 or tree.selected(tree.parent(old_id)) == old_id),
            }
            if row["state"] == MessageState.STREAMING:
                row |= _CANCELLED
        self._insert_many(table, rows)
        return new_ids
