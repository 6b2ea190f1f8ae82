"""`ember conversations`, `ember show ID`, `ember delete ID`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import uuid4

from app.commands.call import Call, find_conversation
from app.commands.engine_run import EngineRun
from app.conversation import Conversation, Message
from engine.protocol.commands import ReportCache, Role
from engine.protocol.events import CacheReported


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
        call.print(f"\n[{message.role}{_speed(message)}]\n{message.text}")
    if conversation.draft:
        call.print(f"\n[draft]\n{conversation.draft}")
    return 0


def delete(call: Call) -> int:
    """Delete a conversation, and wait until the engine has removed its files."""
    with call.own_store() as store:
        conversation = find_conversation(store, call.arguments.id)
        with EngineRun(call, store) as run:
            run.session.delete(conversation.id)
            request_id = uuid4().hex
            run.engine.submit(ReportCache(request_id))  # answered after what was asked before it
            run.answer(request_id, CacheReported)
    return 0


def _head(conversation: Conversation) -> dict[str, Any]:
    times = {
        "created_at": conversation.created_at.isoformat(),
        "updated_at": conversation.updated_at.isoformat(),
    }
    return asdict(conversation) | times


def _message(message: Message) -> dict[str, Any]:
    content = asdict(message) | {"created_at": message.created_at.isoformat()}
    del content["conversation_id"]
    return content


def _speed(message: Message) -> str:
    if message.statistics is None or message.statistics.decode_tps is None:
        return ""
    return f", {message.statistics.decode_tps:.1f} tokens/s"


def _day(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M")
