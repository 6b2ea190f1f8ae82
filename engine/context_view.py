"""Which messages stay in the model's view when a chat has grown to the length that the model reads. Pure.

Whole oldest turns leave (a user's message and what answers it) until about half of the context is free: what is left is
then read once, and not anew in every turn. The system prompt and the last message of the user's stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.protocol.commands import ChatMessage, Role

_MOST_RESERVED = 4  # parts of the context: one of them at most is kept free for a reply
_QUESTION_PART = 32  # and one of so many for the next question, when the view is moved ahead of it


@dataclass(frozen=True, slots=True)
class View:
    """What is left, its ids, and how many messages before it left, system messages not counted."""

    messages: tuple[ChatMessage, ...]
    token_ids: list[int]
    num_dropped: int


def reserve(max_new_tokens: int | None, context_length: int) -> int:
    """Tokens kept free for a reply; None asks for as many as may be."""
    most = context_length // _MOST_RESERVED
    return max(1, most if max_new_tokens is None else min(max_new_tokens, most))


def reserve_ahead(max_new_tokens: int, context_length: int) -> int:
    """The same for the turn after this one, whose question is not known yet."""
    return reserve(max_new_tokens, context_length) + context_length // _QUESTION_PART


def move(
    messages: Sequence[ChatMessage], ids_of: Callable[[Sequence[ChatMessage]], list[int]], context_length: int
) -> View:
    """Drop as many turns as it takes to leave half of the context free, or all that may be."""
    num_system = next((at for at, one in enumerate(messages) if one.role is not Role.SYSTEM), len(messages))
    system = tuple(messages[:num_system])
    starts = [at for at, one in enumerate(messages) if one.role is Role.USER and at > num_system]
    views: dict[int, View] = {}

    def view(start: int) -> View:
        if start not in views:
            left = (*system, *messages[start:])
            dropped = sum(one.role is not Role.SYSTEM for one in messages[num_system:start])
            views[start] = View(left, ids_of(left), dropped)
        return views[start]

    low, high = 0, len(starts) - 1
    while low < high:  # the first one that is short enough; the later it begins, the shorter it is
        middle = (low + high) // 2
        if len(view(starts[middle]).token_ids) <= context_length // 2:
            high = middle
        else:
            low = middle + 1
    return view(starts[low]) if starts else view(num_system)
