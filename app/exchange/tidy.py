"""What conversations of other programs need to become Ember's: a title, and replies in one piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.exchange.incoming import IncomingMessage
from app.folding import flat
from app.title import shortened, title_from
from engine.protocol.commands import Role

_LONGEST_TITLE = 200


def plain_title(title: Any, messages: Sequence[IncomingMessage]) -> str:
    """The title in the file, in one line; else one made of the first message."""
    given = flat(title) if isinstance(title, str) else ""
    return shortened(given, _LONGEST_TITLE) or (title_from(messages[0].text) if messages else "")


def joined_replies(messages: Sequence[IncomingMessage]) -> list[IncomingMessage]:
    """A reply that others had written in several messages (tools were asked in between) becomes one.

    Chat templates want the roles to alternate. Not where another version follows the first part.
    """
    num_children = Counter(message.parent for message in messages)
    kept: list[IncomingMessage] = []
    texts: list[list[str]] = []
    places: list[int] = []  # of each message, among those kept
    for message in messages:
        place = None if message.parent is None else places[message.parent]
        is_only_child = num_children[message.parent] == 1
        if place is not None and is_only_child and kept[place].role is message.role is Role.ASSISTANT:
            texts[place].append(message.text)
            places.append(place)
        else:
            places.append(len(kept))
            kept.append(replace(message, parent=place))
            texts.append([message.text])
    return [replace(message, text="\n\n".join(parts)) for message, parts in zip(kept, texts, strict=True)]
