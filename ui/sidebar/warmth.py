"""Where a chat's cache is and what a message to it would read, as the list shows them. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

from engine.protocol.events import CacheState


@dataclass(frozen=True, slots=True)
class Warmth:
    """Where a conversation's cache is, as far as the engine has said; None is unknown."""

    state: CacheState
    tokens: int | None = None
    num_bytes: int | None = None
    precision: str = ""
    kept: float = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What the next message would read again: `tokens`, in `seconds` where a speed is known."""

    tokens: int
    seconds: float | None
