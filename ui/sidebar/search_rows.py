"""What a search found, as rows: a chat, and under it the first excerpts that hold the words. No Qt."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.conversation import Conversation, SearchHit

MAX_EXCERPTS = 3
Span = tuple[int, int]  # start and length, in characters


@dataclass(frozen=True, slots=True)
class FoundChat:
    """`num_more`: excerpts that are not shown."""

    conversation_id: str
    title: str
    matches: tuple[Span, ...]
    num_more: int = 0


@dataclass(frozen=True, slots=True)
class FoundText:
    conversation_id: str
    message_id: int
    text: str
    matches: tuple[Span, ...]


FoundRow = FoundChat | FoundText


def found_rows(hits: Iterable[SearchHit], conversations: Mapping[str, Conversation]) -> list[FoundRow]:
    """In the order of the hits; those of chats that are not among `conversations` are left out."""
    titles: dict[str, SearchHit] = {}
    texts: dict[str, list[SearchHit]] = {}
    for hit in hits:
        if hit.conversation_id not in conversations:
            continue
        found = texts.setdefault(hit.conversation_id, [])
        if hit.message_id is None:
            titles[hit.conversation_id] = hit
        else:
            found.append(hit)
    rows: list[FoundRow] = []
    for conversation_id, found in texts.items():
        title = titles.get(conversation_id)
        shown = title.excerpt if title else conversations[conversation_id].title
        text, matches = shown_text(shown, title.matches if title else ())
        rows.append(FoundChat(conversation_id, text, matches, max(0, len(found) - MAX_EXCERPTS)))
        for hit in found[:MAX_EXCERPTS]:
            assert hit.message_id is not None
            rows.append(FoundText(conversation_id, hit.message_id, *shown_text(hit.excerpt, hit.matches)))
    return rows


def shown_text(text: str, matches: Sequence[Span]) -> tuple[str, tuple[Span, ...]]:
    """As one composed line (NFC), the matches moved along."""
    flat = "".join(" " if one.isspace() else one for one in text)
    composed = unicodedata.normalize("NFC", flat)
    if composed == flat:
        return flat, tuple(matches)
    moved = []
    for start, length in matches:
        first = len(unicodedata.normalize("NFC", flat[:start]))
        moved.append((first, len(unicodedata.normalize("NFC", flat[: start + length])) - first))
    return composed, tuple(moved)


def cut_before_match(text: str, matches: Sequence[Span], room: int) -> tuple[str, tuple[Span, ...]]:
    """The text from a word shortly before its first match on, if that would lie beyond about `room` characters."""
    if not matches or matches[0][0] + matches[0][1] <= room:
        return text, tuple(matches)
    start = max(0, matches[0][0] - room // 3)
    space = text.find(" ", start, matches[0][0])
    start = space + 1 if space >= 0 else start
    return "…" + text[start:], tuple((first - start + 1, length) for first, length in matches)


def utf16_spans(text: str, spans: Iterable[Span]) -> list[Span]:
    """The same spans counted as Qt counts: in UTF-16 units, two for an emoji."""
    return [(_units(text[:start]), _units(text[start : start + length])) for start, length in spans]


def _units(text: str) -> int:
    return len(text) + sum(one > "\uffff" for one in text)
