"""The tree that the messages of one conversation form, without their texts: the branch shown, and who is whose sibling.

Invariant of a sound tree: a parent is older (has the smaller id) than its child. A link that breaks it, or that leads
to a message that is gone, is damage: the message then hangs on the one written before it, so that nothing is lost from
sight and no walk can run in a circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Link(NamedTuple):
    """One message's place, as it is stored. No dataclass: thousands are made whenever a conversation is opened."""

    id: int
    parent_id: int | None
    is_selected: bool


class MessageTree:
    """A snapshot; it does not change with the database."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._links = {link.id: link for link in sorted(links)}
        self._parents: dict[int, int | None] = {}
        self._children: dict[int | None, list[int]] = defaultdict(list)
        before: int | None = None
        for link in self._links.values():
            is_sound = link.parent_id is None or (link.parent_id in self._links and link.parent_id < link.id)
            parent_id = link.parent_id if is_sound else before
            self._parents[link.id] = parent_id
            self._children[parent_id].append(link.id)
            before = link.id

    def __contains__(self, message_id: int) -> bool:
        return message_id in self._links

    def __len__(self) -> int:
        return len(self._links)

    @property
    def ids(self) -> list[int]:
        """All of them, oldest first."""
        return list(self._links)

    def parent(self, message_id: int) -> int | None:
        return self._parents[message_id]

    def children(self, parent_id: int | None) -> list[int]:
        """Oldest first."""
        return list(self._children.get(parent_id, ()))

    def siblings(self, message_id: int) -> list[int]:
        """The versions of a message, itself among them, oldest first."""
        return self.children(self._parents[message_id])

    def is_marked(self, message_id: int) -> bool:
        """Whether it is stored as selected; of siblings more than one, or none, may be after damage."""
        return self._links[message_id].is_selected

    def selected(self, parent_id: int | None) -> int | None:
        """The child that is shown: the newest of those marked, else the newest."""
        children = self._children.get(parent_id, [])
        marked = [child for child in children if self._links[child].is_selected]
        return (marked or children)[-1] if children else None

    def shown(self) -> list[int]:
        """The branch shown, oldest first."""
        branch: list[int] = []
        child = self.selected(None)
        while child is not None:
            branch.append(child)
            child = self.selected(child)
        return branch

    def leaf(self) -> int | None:
        """The last message shown."""
        branch = self.shown()
        return branch[-1] if branch else None

    def path(self, message_id: int) -> list[int]:
        """From a first message down to this one."""
        path: list[int] = []
        at: int | None = message_id
        while at is not None:
            path.append(at)
            at = self._parents[at]
        return path[::-1]

    def below(self, message_id: int) -> list[int]:
        """This message and all that follow it, in every branch, oldest first."""
        found = {message_id}
        for later in self._links:
            if self._parents[later] in found:
                found.add(later)
        return sorted(found)

    def versions(self) -> dict[int, tuple[int, int]]:
        """Of every message: which of how many siblings it is, from 1."""
        return {
            child: (number, len(children))
            for children in self._children.values()
            for number, child in enumerate(children, start=1)
        }
