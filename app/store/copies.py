"""Copies of a conversation: whole, or the path up to one message (a fork)."""

from __future__ import annotations

from app.conversation import Conversation, Draft, MessageState
from app.records import attachments_to_json, options_to_json
from app.store.base import as_text, now
from app.store.incognito import new_conversation_id, schema_of
from app.store.messages import unknown_message
from app.store.removal import Removal
from engine.protocol.events import FinishReason


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
            new_ids: dict[int | None, int | None] = {None: None}
            for old_id in copied:
                is_selected = until is not None or tree.selected(tree.parent(old_id)) == old_id
                new_ids[old_id] = self._copy_message(old_id, copy_id, new_ids[tree.parent(old_id)], is_selected)
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

    def _copy_message(self, message_id: int, copy_id: str, parent_id: int | None, is_selected: bool) -> int:
        (row,) = self._query(f"SELECT * FROM {schema_of(message_id)}.messages WHERE id = ?", message_id)
        row |= {"conversation_id": copy_id, "parent_id": parent_id, "is_selected": int(is_selected)}
        if row["state"] == MessageState.STREAMING:
            row |= {
                "state": MessageState.COMPLETE.value,
                "finish_reason": FinishReason.CANCELLED.value,
                "token_ids": None,
                "tokenizer_id": None,
            }
        del row["id"]
        return self._insert(f"{schema_of(copy_id)}.messages", row)
