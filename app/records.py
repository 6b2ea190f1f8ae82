"""Rows of the database to frozen records and back: times, token ids, statistics, attachments, options."""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from app.conversation import Attachment, ChatOptions, Conversation, Draft, Message, MessageState
from engine.protocol.commands import Role
from engine.protocol.events import CacheReading, FinishReason, TurnStatistics

_log = logging.getLogger(__name__)
_FIELDS = {record: frozenset(known.name for known in fields(record)) for record in (CacheReading, TurnStatistics)}
_ROLES = {role.value: role for role in Role}
_STATES = {state.value: state for state in MessageState}
_WHOLE_OPTIONS = ("top_k", "max_new_tokens")  # the others are fractions


def conversation_from(row: dict[str, Any], *, is_in_memory: bool) -> Conversation:
    return Conversation(
        id=row["id"],
        title=row["title"],
        created_at=datetime.fromisoformat(row["created_at"]),
        updated_at=datetime.fromisoformat(row["updated_at"]),
        system_prompt=row["system_prompt"],
        model=row["model"],
        draft=Draft(row["draft"], attachments_from_json(row["draft_attachments"])),
        num_messages=row["num_messages"],
        is_pinned=bool(row["is_pinned"]),
        is_incognito=is_in_memory,
        folder_id=row["folder_id"],
        options=options_from_json(row["options"]),
        view_from=row["view_from"],
    )


def message_from(row: dict[str, Any], parent_id: int | None, version: tuple[int, int]) -> Message:
    """`version` is (which, of how many), from 1; the parent is told, since the stored one may be gone."""
    return Message(
        id=row["id"],
        conversation_id=row["conversation_id"],
        role=_ROLES[row["role"]],
        text=row["text"],
        created_at=datetime.fromisoformat(row["created_at"]),
        state=_STATES[row["state"]],
        token_ids=ids_from_blob(row["token_ids"]),
        tokenizer_id=row["tokenizer_id"],
        finish_reason=FinishReason(row["finish_reason"]) if row["finish_reason"] else None,
        statistics=statistics_from_json(row["statistics"]),
        model=row["model"],
        parent_id=parent_id,
        version=version[0],
        num_versions=version[1],
        attachments=attachments_from_json(row["attachments"]),
    )


def attachments_to_json(attachments: Sequence[Attachment]) -> str | None:
    return json.dumps([asdict(each) for each in attachments], ensure_ascii=False) if attachments else None


def attachments_from_json(text: str | None) -> tuple[Attachment, ...]:
    """The attachments; without those that cannot be read."""
    if text is None:
        return ()
    found = []
    for stored in _list(text):
        try:
            found.append(Attachment(str(stored["name"]), str(stored["text"]), int(stored["num_bytes"])))
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("An attachment cannot be read: %s", error)
    return tuple(found)


def options_to_json(options: ChatOptions) -> str | None:
    chosen = {name: value for name, value in asdict(options).items() if value is not None}
    return json.dumps(chosen) if chosen else None


def options_from_json(text: str | None) -> ChatOptions:
    """The options; without those that another version kept, or that are no numbers."""
    if text is None:
        return ChatOptions()
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        _log.warning("The options of a conversation cannot be read")
        return ChatOptions()
    chosen = {}
    for name in (known.name for known in fields(ChatOptions)):
        value = stored.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            chosen[name] = int(value) if name in _WHOLE_OPTIONS else float(value)
    return ChatOptions(**chosen)  # type: ignore[arg-type]  # which of them are whole numbers is told above


def _list(text: str) -> list[Any]:
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, list):
        _log.warning("The attachments of a message cannot be read")
        return []
    return stored


def ids_to_blob(token_ids: tuple[int, ...] | None) -> bytes | None:
    """Little-endian uint32, four bytes an id."""
    return None if token_ids is None else struct.pack(f"<{len(token_ids)}I", *token_ids)


def ids_from_blob(blob: bytes | None) -> tuple[int, ...] | None:
    """The ids, or None where there are none or the bytes are no whole ids (the text is then tokenized again)."""
    if blob is None or len(blob) % 4:
        return None
    return struct.unpack(f"<{len(blob) // 4}I", blob)


def statistics_to_json(statistics: TurnStatistics | None) -> str | None:
    return None if statistics is None else json.dumps(asdict(statistics))


def statistics_from_json(text: str | None) -> TurnStatistics | None:
    """The statistics; None where an earlier or later version kept something else (they are no part of the truth)."""
    if text is None:
        return None
    try:
        stored = json.loads(text)
        cache = CacheReading(**_known(CacheReading, stored["cache"]))
        stored["cache"] = cache
        return TurnStatistics(**_known(TurnStatistics, stored))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("The statistics of a message cannot be read: %s", error)
        return None


def _known(record: type[CacheReading | TurnStatistics], stored: dict[str, Any]) -> dict[str, Any]:
    """Without what a later version added."""
    names = _FIELDS[record]
    if stored.keys() <= names:
        return stored
    return {name: value for name, value in stored.items() if name in names}
