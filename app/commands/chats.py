"""`ember conversations`, `ember show ID`, `ember delete ID`, `ember pin ID`, `ember unpin ID`."""

from __future__ import annotations

import unicodedata
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from app.commands.call import Call, argument_text, find_conversation
from app.conversation import Conversation, Message
from app.errors import from_os_error
from app.title import MAX_TITLE, shortened
from engine.kv.store.deletion import delete_from_disk
from engine.protocol.commands import Role


def conversations(call: Call) -> int:
    with call.store() as store:
        found = store.conversations()
    if call.arguments.json:
        call.print_json({"conversations": [_head(conversation) for conversation in found]})
        return 0
    for conversation in found:
        words = conversation.title or "(empty)"
        call.print(f"{conversation.id}  {_day(conversation.updated_at)}  {conversation.num_messages:4}  {words}")
    return 0


def show(call: Call) -> int:
    with call.store() as store:
        conversation = find_conversation(store, call.arguments.id)
        messages = store.messages(conversation.id)
    if call.arguments.json:
        call.print_json({**_head(conversation), "messages": [_message(message) for message in messages]})
        return 0
    call.print(f"{conversation.title or '(empty)'}\n{conversation.id}  {_day(conversation.created_at)}")
    if conversation.system_prompt:
        call.print(f"\n[{Role.SYSTEM}]\n{conversation.system_prompt}")
    for message in messages:
        files = "".join(f"[attached: {_printable(each.name)}]\n" for each in message.attachments)
        call.print(f"\n[{message.role}{_speed(message)}]\n{files}{_printable(message.text)}")
    if conversation.draft.text:
        call.print(f"\n[draft]\n{conversation.draft.text}")
    return 0


def delete(call: Call) -> int:
    """Delete a conversation and its snapshots. The lock is held, so no engine has them; none is started."""
    with call.lock():  # on a full disk this makes the room that the database needs to be written
        _delete_snapshots(call, argument_text(call.arguments.id))
    with call.own_store() as store:
        conversation = find_conversation(store, call.arguments.id)
        _delete_snapshots(call, conversation.id)  # first: what cannot be deleted stays known, to be tried again
        store.delete_conversation(conversation.id)
    if call.arguments.json:
        call.print_json({"id": conversation.id, "title": conversation.title})
    else:
        call.print(f"Deleted {_name(conversation)}")
    return 0


def _delete_snapshots(call: Call, conversation_id: str) -> None:
    """Raises StorageError."""
    try:
        delete_from_disk(call.paths.kv_dir, conversation_id)
    except OSError as error:
        raise from_os_error(error, call.paths.kv_dir) from error


def pin(call: Call) -> int:
    return _set_pinned(call, True)


def unpin(call: Call) -> int:
    return _set_pinned(call, False)


def _set_pinned(call: Call, is_pinned: bool) -> int:
    with call.own_store() as store:
        conversation = find_conversation(store, call.arguments.id)
        store.set_pinned(conversation.id, is_pinned)
    if call.arguments.json:
        call.print_json(_head(replace(conversation, is_pinned=is_pinned)))
    else:
        call.print(f"{'Pinned' if is_pinned else 'Unpinned'} {_name(conversation)}")
    return 0


def _name(conversation: Conversation) -> str:
    return f"{conversation.id}  {_printable(shortened(conversation.title, MAX_TITLE)) or '(empty)'}"


def _head(conversation: Conversation) -> dict[str, Any]:
    times = {
        "created_at": conversation.created_at.isoformat(),
        "updated_at": conversation.updated_at.isoformat(),
    }
    return asdict(conversation) | times | {"draft": conversation.draft.text}


def _message(message: Message) -> dict[str, Any]:
    content = asdict(message) | {"created_at": message.created_at.isoformat()}
    del content["conversation_id"]
    return content


def _printable(text: str) -> str:
    """Without control characters, which a terminal would obey."""
    return "".join(character for character in text if character in "\n\t" or unicodedata.category(character) != "Cc")


def _speed(message: Message) -> str:
    if message.statistics is None or message.statistics.decode_tps is None:
        return ""
    return f", {message.statistics.decode_tps:.1f} tokens/s"


def _day(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M")
