"""Reading Ember's own JSON (see `app.exchange.ember_json`): strictly, since a part left out would be lost unnoticed.

Only what speeds things up, or tells how a reply came about, is dropped where it makes no sense.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from app.conversation import Draft
from app.exchange.incoming import IncomingConversation, IncomingMessage
from app.history import well_formed
from app.records import attachments_from_json, options_from_json, statistics_from_json, usable_time
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason

_LARGEST_TOKEN_ID = 2**32 - 1


class DamagedPlaceError(Exception):
    """Something is missing or makes no sense; the words say where."""


def read_ember(content: dict[str, Any]) -> list[IncomingConversation]:
    """Raises DamagedPlaceError."""
    folders = {}
    for number, stored in enumerate(_list(content, "folders", "the file"), start=1):
        place = f"folder {number}"
        folder = _dict(stored, place)
        folders[_hashable(folder.get("id"), place)] = _text(folder, "name", place)
    chats = _list(content, "conversations", "the file")
    return [_conversation(stored, f"conversation {number}", folders) for number, stored in enumerate(chats, start=1)]


def _conversation(content: Any, place: str, folders: dict[Any, str]) -> IncomingConversation:
    stored = _dict(content, place)
    places: dict[Any, int] = {}
    messages = []
    for number, one in enumerate(_list(stored, "messages", place)):
        message_place = f"message {number + 1} of {place}"
        message = _dict(one, message_place)
        messages.append(_message(message, message_place, places))
        message_id = _hashable(message.get("id"), message_place)
        if message_id is None or message_id in places:
            raise DamagedPlaceError(f"{message_place} has no id of its own")
        places[message_id] = number
    draft = _dict(stored.get("draft") or {}, place)
    return IncomingConversation(
        title=_text(stored, "title", place),
        messages=tuple(messages),
        system_prompt=_text(stored, "system_prompt", place),
        created_at=_time(stored, "created_at", place),
        updated_at=_time(stored, "updated_at", place),
        model=_text_or_none(stored, "model", place),
        is_pinned=stored.get("is_pinned") is True,
        folder=folders.get(_hashable(stored.get("folder_id"), place)),
        options=options_from_json(json.dumps(stored.get("options") or {})),
        view_from=places.get(_hashable(stored.get("view_from"), place)),
        draft=Draft(well_formed(str(draft.get("text") or "")), _attachments(draft)),
    )


def _message(stored: dict[str, Any], place: str, places: dict[Any, int]) -> IncomingMessage:
    """`places`: of the messages before it, by their ids."""
    parent_id = _hashable(stored.get("parent_id"), place)
    if parent_id is not None and parent_id not in places:
        raise DamagedPlaceError(f"the message that {place} follows does not stand before it")
    token_ids = stored.get("token_ids")
    is_usable = isinstance(token_ids, list) and all(
        type(token_id) is int and 0 <= token_id <= _LARGEST_TOKEN_ID for token_id in token_ids
    )
    statistics = stored.get("statistics")
    return IncomingMessage(
        parent=None if parent_id is None else places[parent_id],
        role=_one_of(Role, stored.get("role"), place),
        text=_text(stored, "text", place),
        created_at=_time(stored, "created_at", place),
        is_selected=stored.get("is_selected") is not False,
        model=_text_or_none(stored, "model", place),
        token_ids=tuple(token_ids) if isinstance(token_ids, list) and is_usable else None,
        tokenizer_id=_text_or_none(stored, "tokenizer_id", place) if is_usable else None,
        finish_reason=_finish_reason(stored.get("finish_reason")),
        statistics=statistics_from_json(json.dumps(statistics)) if isinstance(statistics, dict) else None,
        attachments=_attachments(stored),
    )


def _attachments(stored: dict[str, Any]) -> Any:
    found = attachments_from_json(json.dumps(stored.get("attachments") or []))
    return tuple(type(each)(well_formed(each.name), well_formed(each.text), each.num_bytes) for each in found)


def _finish_reason(value: Any) -> FinishReason | None:
    try:
        return FinishReason(value)
    except ValueError:
        return None


def _one_of(kind: type[Role], value: Any, place: str) -> Role:
    try:
        return kind(value)
    except ValueError as error:
        raise DamagedPlaceError(f"{place} has no role") from error


def _hashable(value: Any, place: str) -> Any:
    if isinstance(value, list | dict):
        raise DamagedPlaceError(f"an id in {place} is neither a number nor a text")
    return value


def _dict(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DamagedPlaceError(f"{place} is no object")
    return value


def _list(stored: dict[str, Any], name: str, place: str) -> list[Any]:
    value = stored.get(name, [])
    if not isinstance(value, list):
        raise DamagedPlaceError(f"“{name}” of {place} is no list")
    return value


def _text(stored: dict[str, Any], name: str, place: str) -> str:
    value = stored.get(name)
    if not isinstance(value, str):
        raise DamagedPlaceError(f"{place} has no {name}")
    return well_formed(value)


def _text_or_none(stored: dict[str, Any], name: str, place: str) -> str | None:
    return None if stored.get(name) is None else _text(stored, name, place)


def _time(stored: dict[str, Any], name: str, place: str) -> datetime:
    try:
        return usable_time(datetime.fromisoformat(_text(stored, name, place)))
    except ValueError as error:
        raise DamagedPlaceError(f"{name} of {place} is no time") from error
