"""The worker's queue of commands, and the few of them that are answered while other work goes on. Thread-safe."""

from __future__ import annotations

import queue
from dataclasses import dataclass

from engine.protocol.commands import Command, CountTokens, Estimate, LoadModel, ReportBlocks
from engine.protocol.events import Event


@dataclass(frozen=True, slots=True)
class SaveEnded:
    """Put here by the saver's thread, so that its news is told in order with the rest."""

    event: Event


Question = Estimate | CountTokens | ReportBlocks
"""Changes nothing, so that it may be answered amid other work."""

Item = Command | SaveEnded | None
"""None ends the thread."""


class Inbox:
    """First in, first out, but for estimates that a newer one of the same conversation has made needless."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Item] = queue.Queue()

    def put(self, item: Item) -> None:
        self._queue.put(item)

    def get(self) -> Item:
        """Wait for the next item."""
        while True:
            item = self._queue.get()
            if not (isinstance(item, Estimate) and self._is_outdated(item)):
                return item

    def get_nowait(self) -> Item:
        """Raises queue.Empty."""
        return self._queue.get_nowait()

    @property
    def is_empty(self) -> bool:
        """Quick: may be asked for every token."""
        return not self._queue.queue

    def is_wanted(self) -> bool:
        """Whether somebody waits for the work of a turn; news of a save and questions are nobody."""
        with self._queue.mutex:
            return any(not isinstance(item, SaveEnded | Question) for item in self._queue.queue)

    def take_questions(self, busy_id: str | None) -> list[Question]:
        """Take out what can be answered at once: the newest estimate of each conversation, all counts and page maps.

        What waits for `busy_id`, for a command that came before it, or for another model stays.
        """
        with self._queue.mutex:
            items = list(self._queue.queue)
            asked: list[Question] = []
            busy = {busy_id}
            for item in items:
                if isinstance(item, LoadModel):
                    break
                if isinstance(item, CountTokens | ReportBlocks) or (
                    isinstance(item, Estimate) and item.conversation_id not in busy
                ):
                    asked.append(item)
                elif not isinstance(item, SaveEnded):
                    busy.add(getattr(item, "conversation_id", None))
            taken = set(map(id, asked))
            if taken:
                self._queue.queue.clear()
                self._queue.queue.extend(item for item in items if id(item) not in taken)
        newest = {item.conversation_id: item for item in asked if isinstance(item, Estimate)}
        return [item for item in asked if not isinstance(item, Estimate) or newest[item.conversation_id] is item]

    def _is_outdated(self, estimate: Estimate) -> bool:
        with self._queue.mutex:
            return any(
                isinstance(item, Estimate) and item.conversation_id == estimate.conversation_id
                for item in self._queue.queue
            )
