"""Memory kept ready for the next chat that becomes active: fresh memory can cost more than filling it.

Measured: 75 to 300 ms against 30 for 138 MB. Inference thread.
"""

from __future__ import annotations

from engine.kv.arena import KVArena, prefers_lazy, reserve_arena
from engine.model.loader import LoadedModel

SPARE_BYTES = 256 * 1024**2  # the most that is kept


class SpareArena:
    """At most one arena, of the chat that was left last; at the start one as large as any chat on disk needs."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._arena: KVArena | None = None

    @property
    def nbytes(self) -> int:
        return self._arena.held_bytes(0) if self._arena is not None else 0

    def warm(self, num_tokens: int, budget_bytes: int) -> None:
        """Make the system provide memory for `num_tokens` while nobody waits, within half of the budget."""
        geometry, info = self._model.geometry, self._model.info
        most = min(SPARE_BYTES, budget_bytes // 2) // max(1, geometry.bytes_per_token)
        num_tokens = min(num_tokens, info.context_length, most)
        if prefers_lazy(geometry, num_tokens, self._model.device):
            self._arena = reserve_arena(geometry, num_tokens, info.context_length, self._model.device)
            self._arena.touch(num_tokens)

    def keep(self, arena: KVArena) -> None:
        """A chat has left this arena: it serves the next one, if it is of a kind and size worth keeping."""
        if arena.is_lazy and arena.held_bytes(0) <= SPARE_BYTES:
            arena.first = 0
            self._arena = arena

    def take(self, num_tokens: int) -> KVArena | None:
        """The arena, where a cache of this length is better off in it than in one of its own."""
        arena = self._arena
        is_fitting = prefers_lazy(self._model.geometry, num_tokens, self._model.device)
        if arena is None or not is_fitting or arena.capacity < num_tokens:
            return None
        self._arena = None
        return arena

    def release(self) -> bool:
        """Give the memory back; returns whether there was any."""
        had_any, self._arena = self._arena is not None, None
        return had_any
