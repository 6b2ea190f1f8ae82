"""Messages: reading the branch shown, choosing among versions, writing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Final

from app.conversation import Attachment, Message, MessageState
from app.errors import DamagedDatabaseError, UnknownMessageError
from app.message_tree import Link, MessageTree
from app.records import attachments_to_json, ids_to_blob, message_from, statistics_to_json, text_from
from app.store.base import as_list, now
from app.store.folders import Folders
from app.store.incognito import schema_of
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason, TurnStatistics

_log = logging.getLogger(__name__)


class _Place(Enum):
    LEAF = "leaf"


LEAF: Final = _Place.LEAF  # below the last message shown; None would be a new first message


class Messages(Folders):
    def messages(self, conversation_id: str) -> list[Message]:
        """The branch shown, oldest first; none for an unknown conversation."""
        with self.transaction():  # another process may be writing: both looks have to see the same
            try:
                tree = self._tree_of(conversation_id)
                shown = tree.shown()
                return self._messages(conversation_id, tree, only=None if len(shown) == len(tree) else shown)
            except DamagedDatabaseError:
                tree, found = self._salvaged(conversation_id)
                return [found[known] for known in tree.shown()]

    def tree(self, conversation_id: str) -> list[Message]:
        """Every message of every branch, by id."""
        with self.transaction():
            try:
                return self._messages(conversation_id, self._tree_of(conversation_id))
            except DamagedDatabaseError:
                return list(self._salvaged(conversation_id)[1].values())

    def message(self, message_id: int) -> Message:
        """Raises UnknownMessageError."""
        with self.transaction():
            conversation_id, tree = self._around(message_id)
            found = self._messages(conversation_id, tree, only=[message_id])
            if not found:
                raise unknown_message(message_id)
            return found[0]

    def versions(self, message_id: int) -> list[int]:
        """The ids of the siblings, itself included, oldest first. Raises UnknownMessageError."""
        return self._around(message_id)[1].siblings(message_id)

    def selected_ids(self, conversation_id: str) -> frozenset[int]:
        """Of every group of siblings, in branches not shown too, the one that is selected."""
        tree = self._tree_of(conversation_id)
        return frozenset(known for known in tree.ids if tree.selected(tree.parent(known)) == known)

    def select_version(self, message_id: int) -> None:
        """Show the branch that leads through this message. Raises UnknownMessageError."""
        conversation_id, tree = self._around(message_id)
        with self.transaction():
            for ancestor in tree.path(message_id):
                self._select(conversation_id, tree.siblings(ancestor), ancestor, tree)

    def branch_name(self, conversation_id: str) -> str:
        """The engine's name for the branch shown: "" while each of its messages is the first of its siblings, else the
        id of the deepest one that is not."""
        tree = self._tree_of(conversation_id)
        later = (message_id for message_id in reversed(tree.shown()) if tree.siblings(message_id)[0] != message_id)
        return str(next(later, ""))

    def add_message(
        self,
        conversation_id: str,
        role: Role,
        text: str,
        *,
        state: MessageState = MessageState.COMPLETE,
        model: str | None = None,
        attachments: Sequence[Attachment] = (),
        parent_id: int | _Place | None = LEAF,
    ) -> Message:
        """Append a message to the branch shown; or, given a parent, add a version that is shown from now on.

        Raises UnknownConversationError, UnknownMessageError.
        """
        self.conversation(conversation_id)
        tree = self._tree_of(conversation_id)
        if isinstance(parent_id, _Place):
            parent_id = tree.leaf()
        elif parent_id is not None and parent_id not in tree:
            raise unknown_message(parent_id)
        with self.transaction():
            if parent_id is not None:
                for ancestor in tree.path(parent_id):
                    self._select(conversation_id, tree.siblings(ancestor), ancestor, tree)
            siblings = tree.children(parent_id)
            self._select(conversation_id, siblings, None, tree)
            row: dict[str, object] = {
                "conversation_id": conversation_id,
                "role": role.value,
                "text": text,
                "state": state.value,
                "created_at": now(),
                "model": model,
                "parent_id": parent_id,
                "attachments": attachments_to_json(attachments),
            }
            message_id = self._insert(f"{schema_of(conversation_id)}.messages", row)
            self._touch(conversation_id)
        (kept,) = self._query(f"SELECT * FROM {schema_of(message_id)}.messages WHERE id = ?", message_id)
        number = len(siblings) + 1
        return message_from(kept, parent_id, (number, number))

    def update_reply(
        self, message_id: int, *, text: str, token_ids: tuple[int, ...] | None, tokenizer_id: str | None
    ) -> None:
        """Keep what has come of a reply so far."""
        self._change("messages", message_id, text=text, token_ids=ids_to_blob(token_ids), tokenizer_id=tokenizer_id)

    def finish_reply(
        self,
        message_id: int,
        *,
        text: str,
        token_ids: tuple[int, ...] | None,
        tokenizer_id: str | None,
        finish_reason: FinishReason,
        statistics: TurnStatistics | None,
    ) -> None:
        """Keep the whole reply; its conversation becomes the newest."""
        with self.transaction():
            self._change(
                "messages",
                message_id,
                text=text,
                token_ids=ids_to_blob(token_ids),
                tokenizer_id=tokenizer_id if token_ids is not None else None,
                finish_reason=finish_reason.value,
                statistics=statistics_to_json(statistics),
                state=MessageState.COMPLETE.value,
            )
            self._touch_around(message_id)

    def reopen_reply(self, message_id: int) -> None:
        """A reply is to be continued: it streams again, with the text and the ids it has."""
        self._change("messages", message_id, state=MessageState.STREAMING.value, finish_reason=None)

    def set_text(self, message_id: int, text: str) -> None:
        """Another wording: the ids, which the model made for the old one, go."""
        with self.transaction():
            self._change("messages", message_id, text=text, token_ids=None, tokenizer_id=None)
            self._touch_around(message_id)

    def close_interrupted_replies(self) -> int:
        """At start-up: replies that were being written, or continued, when the program ended become cancelled ones; how
        many. Their text stays.

        Their token ids are dropped: the ids may run ahead of the text by half a character, and the text is the truth.
        A damaged database opens all the same.
        """
        try:
            with self.transaction():
                sql = "SELECT id, text FROM main.messages WHERE state = ?"
                rows = self._rows(sql, MessageState.STREAMING.value)
                for known, text in rows:
                    self._change(
                        "messages",
                        known,
                        state=MessageState.COMPLETE.value,
                        finish_reason=FinishReason.CANCELLED.value,
                        token_ids=None,
                        tokenizer_id=None,
                        text=text_from(text),  # as it was read: the search index takes no bytes that are no text
                    )
        except DamagedDatabaseError as error:
            _log.error("Replies that were interrupted cannot be closed: %s", error)
            return 0
        return len(rows)

    def _tree_of(self, conversation_id: str) -> MessageTree:
        """Read from an index alone: the texts are not touched."""
        table = f"{schema_of(conversation_id)}.messages"
        rows = self._rows(f"SELECT id, parent_id, is_selected FROM {table} WHERE conversation_id = ?", conversation_id)
        return MessageTree(_link(*row) for row in rows)

    def _around(self, message_id: int) -> tuple[str, MessageTree]:
        """The conversation of a message and its tree. Raises UnknownMessageError."""
        conversation_id = self._conversation_of(message_id)
        if conversation_id is None:
            raise unknown_message(message_id)
        return conversation_id, self._tree_of(conversation_id)

    def _next_message_id(self, conversation_id: str) -> int:
        """The id that the next message there gets; within a transaction, that many may be given from it on."""
        rows = self._rows(f"SELECT seq FROM {schema_of(conversation_id)}.sqlite_sequence WHERE name = 'messages'")
        if rows and isinstance(rows[0][0], int):
            return rows[0][0] + 1
        rows = self._rows(f"SELECT max(id) FROM {schema_of(conversation_id)}.messages")
        return int(rows[0][0] or 0) + 1

    def _conversation_of(self, message_id: int) -> str | None:
        rows = self._query(f"SELECT conversation_id FROM {schema_of(message_id)}.messages WHERE id = ?", message_id)
        return rows[0]["conversation_id"] if rows else None

    def _messages(self, conversation_id: str, tree: MessageTree, *, only: Sequence[int] | None = None) -> list[Message]:
        """Those of one conversation, or `only` some of them, by id."""
        table = f"{schema_of(conversation_id)}.messages"
        if only is None:
            rows = self._query(f"SELECT * FROM {table} WHERE conversation_id = ?", conversation_id)
        else:
            rows = self._query(f"SELECT * FROM {table} WHERE id IN (SELECT value FROM json_each(?))", as_list(only))
        versions = tree.versions()
        rows.sort(key=lambda row: int(row["id"]))
        return [message_from(row, tree.parent(row["id"]), versions[row["id"]]) for row in rows if row["id"] in versions]

    def _salvaged(self, conversation_id: str) -> tuple[MessageTree, dict[int, Message]]:
        """What can be read of a conversation in a damaged file, by id."""
        rows = self._salvage(f"{schema_of(conversation_id)}.messages", "conversation_id = ?", conversation_id)
        tree = MessageTree(_link(row["id"], row["parent_id"], row["is_selected"]) for row in rows)
        versions = tree.versions()
        return tree, {row["id"]: message_from(row, tree.parent(row["id"]), versions[row["id"]]) for row in rows}

    def _select(self, conversation_id: str, siblings: list[int], chosen: int | None, tree: MessageTree) -> None:
        """Mark one of the siblings, and no other; written only where that is not so already."""
        wrong = [sibling for sibling in siblings if tree.is_marked(sibling) is not (sibling == chosen)]
        if wrong:
            self._execute(
                f"UPDATE {schema_of(conversation_id)}.messages SET is_selected = (id IS ?) "
                "WHERE id IN (SELECT value FROM json_each(?))",
                chosen,
                as_list(wrong),
            )

    def _touch_around(self, message_id: int) -> None:
        conversation_id = self._conversation_of(message_id)
        if conversation_id is not None:
            self._touch(conversation_id)


def _link(known: int, parent_id: object, is_selected: object) -> Link:
    """A parent that is no id is one that is gone."""
    is_id = parent_id is None or isinstance(parent_id, int)
    return Link(known, parent_id if is_id else -1, is_selected == 1)  # type: ignore[arg-type]


def unknown_message(message_id: int) -> UnknownMessageError:
    return UnknownMessageError("This message is gone; open the conversation again.", id=str(message_id))
