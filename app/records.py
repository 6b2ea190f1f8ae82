"""Rows of the database to frozen records and back: times, token ids, statistics."""

from __future__ import annotations

import json
import logging
import sys
from array import array
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from app.conversation import Conversation, Draft, Message, MessageState
from engine.protocol.commands import Role
from engine.protocol.events import CacheReading, FinishReason, TurnStatistics

_log = logging.getLogger(__name__)


def conversation_from(row: dict[str, Any]) -> Conversation:
    return Conversation(
        id=row["id"],
        title=row["title"],
        created_at=datetime.fromisoformat(row["created_at"]),
        updated_at=datetime.fromisoformat(row["updated_at"]),
        system_prompt=row["system_prompt"],
        model=row["model"],
        draft=Draft(row["draft"]),
        num_messages=row["num_messages"],
        is_pinned=bool(row["is_pinned"]),
    )


def message_from(row: dict[str, Any]) -> Message:
    return Message(
        id=row["id"],
        conversation_id=row["conversation_id"],
        role=Role(row["role"]),
        text=row["text"],
        created_at=datetime.fromisoformat(row["created_at"]),
        state=MessageState(row["state"]),
        token_ids=ids_from_blob(row["token_ids"]),
        tokenizer_id=row["tokenizer_id"],
        finish_reason=FinishReason(row["finish_reason"]) if row["finish_reason"] else None,
        statistics=statistics_from_json(row["statistics"]),
        model=row["model"],
    )


def ids_to_blob(token_ids: tuple[int, ...] | None) -> bytes | None:
    """Little-endian uint32, four bytes an id."""
    if token_ids is None:
        return None
    values = array("I", token_ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def ids_from_blob(blob: bytes | None) -> tuple[int, ...] | None:
    """The ids, or None where there are none or the bytes are no whole ids (the text is then tokenized again)."""
    if blob is None or len(blob) % 4:
        return None
    values = array("I")
    values.frombytes(blob)
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)


def statistics_to_json(statistics: TurnStatistics | None) -> str | None:
    return None if statistics is None else json.dumps(asdict(statistics))


def statistics_from_json(text: str | None) -> TurnStatistics | None:
    """The statistics; None where an earlier or later version kept something else (they are no part of the truth)."""
    if text is None:
        return None
    try:
        stored = json.loads(text)
        cache = CacheReading(**_known(CacheReading, stored["cache"]))
        return TurnStatistics(**_known(TurnStatistics, stored) | {"cache": cache})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("The statistics of a message cannot be read: %s", error)
        return None


def _known(record: type[CacheReading | TurnStatistics], stored: dict[str, Any]) -> dict[str, Any]:
    names = {known.name for known in fields(record)}
    return {name: value for name, value in stored.items() if name in names}
