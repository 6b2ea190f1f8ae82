"""What fits here: the longest chats that this machine's memory takes, precision by precision."""

from __future__ import annotations

from dataclasses import dataclass

from app.cache_shape import CacheShape
from app.cache_size import Precision, largest_context
from app.machine_memory import MachineMemory


@dataclass(frozen=True, slots=True)
class Fit:
    """`tokens`: of each of the chats; None where a cache grows no further. `is_whole_context`: the model reads no more
    than that, or less; None where it is not known how much it reads.
    """

    precision: Precision
    tokens: int | None
    is_whole_context: bool | None


@dataclass(frozen=True, slots=True)
class Fits:
    """`room_bytes`: what the weights (None: not known, and not taken off) leave of the free memory."""

    memory: MachineMemory
    weights_bytes: int | None
    room_bytes: int
    rows: tuple[Fit, ...]


def what_fits(
    shape: CacheShape,
    memory: MachineMemory,
    weights_bytes: int | None = None,
    batch: int = 1,
    *,
    is_loaded: bool = False,
) -> Fits:
    """`is_loaded`: the weights are in memory already, so that the free memory is all for caches."""
    room = max(0, memory.free_bytes - (0 if is_loaded else weights_bytes or 0))
    rows = []
    for precision in Precision:
        tokens = largest_context(shape, precision, room, batch)
        known = shape.context_length
        rows.append(Fit(precision, tokens, None if known is None else tokens is None or tokens >= known))
    return Fits(memory, weights_bytes, room, tuple(rows))
