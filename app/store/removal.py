"""Removing messages, and putting them back exactly as they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.message_tree import Link, MessageTree
from app.store.base import as_list
from app.store.incognito import schema_of
from app.store.messages import Messages


@dataclass(frozen=True, slots=True)
class Removed:
    """What `put_back` needs: the rows that are gone, and the links and the view of what stayed, as they were before."""

    conversation_id: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    links: tuple[Link, ...]
    view_from: int | None

    @property
    def num_messages(self) -> int:
        return len(self.rows)


class Removal(Messages):
    def remove_message(self, message_id: int) -> Removed:
        """Only this one: what followed hangs on its parent, and stays shown if it was. Raises UnknownMessageError."""
        conversation_id, tree = self._around(message_id)
        siblings, children = tree.siblings(message_id), tree.children(message_id)
        is_shown = tree.selected(tree.parent(message_id)) == message_id
        left = [sibling for sibling in siblings if sibling != message_id] + children
        chosen = tree.selected(message_id) if is_shown else tree.selected(tree.parent(message_id))
        if chosen is None and left:
            chosen = left[-1]
        removed = self._removed(conversation_id, tree, [message_id], left)
        with self.transaction():
            self._delete(removed, tree)
            self._execute(
                f"UPDATE {schema_of(conversation_id)}.messages SET parent_id = ? "
                "WHERE id IN (SELECT value FROM json_each(?))",
                tree.parent(message_id),
                as_list(children),
            )
            self._select(conversation_id, left, chosen, tree)
        return removed

    def remove_branch(self, message_id: int) -> Removed:
        """This message and all below it, in every branch; if it was shown, the newest version left is shown instead.

        Raises UnknownMessageError.
        """
        conversation_id, tree = self._around(message_id)
        left = [sibling for sibling in tree.siblings(message_id) if sibling != message_id]
        chosen = tree.selected(tree.parent(message_id))
        if chosen == message_id:
            chosen = left[-1] if left else None
        removed = self._removed(conversation_id, tree, tree.below(message_id), left)
        with self.transaction():
            self._delete(removed, tree)
            self._select(conversation_id, left, chosen, tree)
        return removed

    def put_back(self, removed: Removed) -> None:
        """Undo a removal: the same ids, links and choices. A version added meanwhile stays, and is not the one shown.

        Raises UnknownConversationError where the whole conversation has gone.
        """
        self.conversation(removed.conversation_id)
        with self.transaction():
            rows = [dict(zip(removed.columns, row, strict=True)) for row in removed.rows]
            self._insert_many(f"{schema_of(removed.conversation_id)}.messages", rows)
            for link in removed.links:
                self._change("messages", link.id, parent_id=link.parent_id, is_selected=int(link.is_selected))
            tree = self._tree_of(removed.conversation_id)
            position = removed.columns.index("id")
            before = [link.id for link in removed.links] + [int(row[position]) for row in removed.rows]
            for known in before:
                if known in tree and tree.is_marked(known):
                    self._select(removed.conversation_id, tree.siblings(known), known, tree)
            self.set_view_from(removed.conversation_id, removed.view_from)

    def delete_message(self, message_id: int) -> None:
        """Remove a message for good; one that is gone already is no error."""
        if self._conversation_of(message_id) is not None:
            self.remove_message(message_id)

    def _removed(self, conversation_id: str, tree: MessageTree, gone: Sequence[int], left: Sequence[int]) -> Removed:
        rows = self._query(
            f"SELECT * FROM {schema_of(conversation_id)}.messages "
            "WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id",
            as_list(gone),
        )
        links = tuple(Link(known, tree.parent(known), tree.is_marked(known)) for known in left)
        view_from = self.conversation(conversation_id).view_from
        return Removed(conversation_id, tuple(rows[0]), tuple(tuple(row.values()) for row in rows), links, view_from)

    def _delete(self, removed: Removed, tree: MessageTree) -> None:
        """The rows go; a view that began with one of them begins with the next message shown that stays."""
        position = removed.columns.index("id")
        gone = {int(row[position]) for row in removed.rows}
        self._execute(
            f"DELETE FROM {schema_of(removed.conversation_id)}.messages WHERE id IN (SELECT value FROM json_each(?))",
            as_list(sorted(gone)),
        )
        if removed.view_from in gone:
            later = (known for known in tree.shown() if known > removed.view_from and known not in gone)
            self.set_view_from(removed.conversation_id, next(later, None))
