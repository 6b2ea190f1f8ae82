"""Rows of the database to frozen records and back: times, token ids, statistics, attachments, options.

A row may be damaged (one flipped bit is enough), and so may a file that is imported: what makes no sense costs its own
field, never the row. Every function here takes whatever SQLite or JSON may give and raises nothing.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from app.conversation import Attachment, ChatOptions, Conversation, Draft, Message, MessageState
from app.settings import Settings, checked
from engine.protocol.commands import Role
from engine.protocol.events import CacheReading, FinishReason, TurnStatistics

_log = logging.getLogger(__name__)
_ROLES = {role.value: role for role in Role}
_STATES = {state.value: state for state in MessageState}
_REASONS = {reason.value: reason for reason in FinishReason}
_SETTINGS = {setting.name: setting for setting in fields(Settings)}
_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)  # every zone of the world has a calendar for the times between these
_LATEST = datetime(2200, 1, 1, tzinfo=UTC)
_MOST = 2**53  # the largest count that JSON's numbers hold exactly


def conversation_from(row: dict[str, Any], *, is_in_memory: bool) -> Conversation:
    return Conversation(
        id=text_from(row["id"]),
        title=text_from(row["title"]),
        created_at=time_from(row["created_at"]),
        updated_at=time_from(row["updated_at"]),
        system_prompt=text_from(row["system_prompt"]),
        model=_text_or_none(row["model"]),
        draft=Draft(text_from(row["draft"]), attachments_from_json(row["draft_attachments"])),
        num_messages=row["num_messages"],
        is_pinned=bool(row["is_pinned"]),
        is_incognito=is_in_memory,
        folder_id=_id_or_none(row["folder_id"]),
        options=options_from_json(row["options"]),
        view_from=_id_or_none(row["view_from"]),
    )


def message_from(row: dict[str, Any], parent_id: int | None, version: tuple[int, int]) -> Message:
    """`version` is (which, of how many), from 1; the parent is told, since the stored one may be gone."""
    return Message(
        id=row["id"],
        conversation_id=text_from(row["conversation_id"]),
        role=_role(row),
        text=text_from(row["text"]),
        created_at=time_from(row["created_at"]),
        state=_STATES.get(row["state"], MessageState.COMPLETE),
        token_ids=ids_from_blob(row["token_ids"]),
        tokenizer_id=_text_or_none(row["tokenizer_id"]),
        finish_reason=_REASONS.get(row["finish_reason"]),
        statistics=statistics_from_json(row["statistics"]),
        model=_text_or_none(row["model"]),
        parent_id=parent_id,
        version=version[0],
        num_versions=version[1],
        attachments=attachments_from_json(row["attachments"]),
    )


def time_from(value: object) -> datetime:
    """A stored time, UTC; the earliest one where it cannot be read."""
    try:
        time = datetime.fromisoformat(value)  # type: ignore[arg-type]  # what is no text is a TypeError
    except (ValueError, TypeError) as error:
        _log.warning("A time cannot be read: %s", error)
        return _EARLIEST
    return usable_time(time)


def usable_time(time: datetime) -> datetime:
    """`time` in UTC, moved into the years that the calendar of every zone has. Without a zone it is UTC."""
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return min(max(aware, _EARLIEST), _LATEST).astimezone(UTC)


def _role(row: Mapping[str, Any]) -> Role:
    """Where it cannot be read: only a reply has a model, a reason to end, or ids."""
    role = _ROLES.get(row["role"])
    if role is not None:
        return role
    is_reply = any(row[name] is not None for name in ("finish_reason", "model", "token_ids", "statistics"))
    return Role.ASSISTANT if is_reply else Role.USER


def text_from(value: object) -> str:
    """Text of a column; after damage it may be bytes, a number, or nothing."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _id_or_none(value: object) -> int | None:
    return value if isinstance(value, int) else None


def attachments_to_json(attachments: Sequence[Attachment]) -> str | None:
    return json.dumps([asdict(each) for each in attachments], ensure_ascii=False) if attachments else None


def attachments_from_json(text: object) -> tuple[Attachment, ...]:
    """The attachments; without those that cannot be read. A size that makes no sense becomes that of the text."""
    if text is None:
        return ()
    found = []
    for stored in _list(text):
        if isinstance(stored, dict) and isinstance(stored.get("name"), str) and isinstance(stored.get("text"), str):
            size: Any = stored.get("num_bytes")
            num_bytes = int(size) if _is_count(size) else len(stored["text"].encode(errors="replace"))
            found.append(Attachment(stored["name"], stored["text"], num_bytes))
        else:
            _log.warning("An attachment cannot be read")
    return tuple(found)


def options_to_json(options: ChatOptions) -> str | None:
    chosen = {name: value for name, value in asdict(options).items() if value is not None}
    return json.dumps(chosen) if chosen else None


def options_from_json(text: object) -> ChatOptions:
    """The options; without those that another version kept, and those outside the bounds of the settings."""
    if text is None:
        return ChatOptions()
    stored = _json(text)
    if not isinstance(stored, dict):
        _log.warning("The options of a conversation cannot be read")
        return ChatOptions()
    chosen: dict[str, Any] = {}
    for name in (known.name for known in fields(ChatOptions)):
        if stored.get(name) is None:
            continue
        setting = _SETTINGS[name]
        try:
            chosen[name] = checked(setting.default, stored[name], setting.metadata)
        except ValueError as error:
            _log.warning("The option %s of a conversation is unusable: %.200s", name, error)
    return ChatOptions(**chosen)


def _json(text: object) -> Any:
    """None where it cannot be read."""
    if not isinstance(text, str):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _list(text: object) -> list[Any]:
    stored = _json(text)
    if not isinstance(stored, list):
        _log.warning("The attachments of a message cannot be read")
        return []
    return stored


def ids_to_blob(token_ids: tuple[int, ...] | None) -> bytes | None:
    """Little-endian uint32, four bytes an id."""
    return None if token_ids is None else struct.pack(f"<{len(token_ids)}I", *token_ids)


def ids_from_blob(blob: object) -> tuple[int, ...] | None:
    """The ids, or None where there are none or the bytes are no whole ids (the text is then tokenized again)."""
    if not isinstance(blob, bytes) or len(blob) % 4:
        return None
    return struct.unpack(f"<{len(blob) // 4}I", blob)


def statistics_to_json(statistics: TurnStatistics | None) -> str | None:
    return None if statistics is None else json.dumps(asdict(statistics))


def statistics_from_json(text: object) -> TurnStatistics | None:
    """The statistics; None where any of them makes no sense: they are no part of the truth."""
    if text is None:
        return None
    stored = _json(text)
    cache = stored.get("cache") if isinstance(stored, dict) else None
    try:
        reading = CacheReading(**_sound(CacheReading, cache))
        return TurnStatistics(**_sound(TurnStatistics, stored, cache=reading))
    except (ValueError, TypeError) as error:
        _log.warning("The statistics of a message cannot be read: %.200s", error)
        return None


def _sound(record: type[CacheReading | TurnStatistics], stored: Any, **made: object) -> dict[str, Any]:
    """The fields of `record`, each of its type, without what a later version added. Raises ValueError.

    `made` stands for the fields that are records themselves.
    """
    if not isinstance(stored, dict):
        raise ValueError("no object")
    sound: dict[str, Any] = {}
    for known in fields(record):
        if known.name in made:
            sound[known.name] = made[known.name]
        elif known.name in stored:
            if not _CHECKS[str(known.type)](stored[known.name]):
                raise ValueError(f"{known.name} makes no sense")
            sound[known.name] = stored[known.name]
    return sound


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST  # type: ignore[operator]  # nan is not: it compares to nothing


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_words(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value)) and all(map(_is_text, value.values()))


_CHECKS: dict[str, Callable[[object], bool]] = {
    "int": _is_count,
    "float": _is_number,
    "float | None": lambda value: value is None or _is_number(value),
    "str": _is_text,
    "str | None": lambda value: value is None or _is_text(value),
    "dict[str, str]": _is_words,
}
