"""Importing a file: reading it, knowing what it is, and keeping all of it or nothing.

Nothing that is there already is changed or replaced: conversations and messages get ids of their own, and a file that
is imported twice is there twice.
"""

from __future__ import annotations

import codecs
import io
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.conversation_store import ConversationStore
from app.exchange.chatgpt_import import is_chatgpt, read_chatgpt
from app.exchange.ember_import import DamagedPlaceError, read_ember
from app.exchange.ember_json import FORMAT, VERSION
from app.exchange.failures import (
    damaged_export,
    empty,
    newer,
    not_json,
    not_text,
    too_large,
    unknown_format,
    unreadable,
)
from app.exchange.incoming import IncomingConversation, Skipped
from app.exchange.plain_import import is_plain_conversation, is_plain_list, is_plain_message, read_plain

_MOST_MB = 256
_MOST_LINES = 1_000_000
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """`skipped` tells in words what the file has and Ember left out."""

    num_conversations: int
    num_messages: int
    skipped: tuple[str, ...] = ()


def import_file(store: ConversationStore, path: Path) -> ImportResult:
    """Ember's own JSON, ChatGPT's, or plain lists of messages; JSON Lines of these. In UTF-8 or UTF-16.

    Raises ImportFailedError and StorageError; nothing was kept then.
    """
    skipped = Skipped()
    try:
        chats = _conversations(_parsed(_text_of(path), path), path, skipped)
    except RecursionError as error:  # nested thousands deep, as no conversation is
        raise unknown_format(path) from error
    except MemoryError as error:
        raise too_large(path, _MOST_MB) from error
    if not chats:
        raise empty(path)
    store.add_imported(chats)
    return ImportResult(len(chats), sum(len(chat.messages) for chat in chats), skipped.sentences())


def _text_of(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise unreadable(path, "it is no ordinary file")
        if status.st_size > _MOST_MB * 2**20:
            raise too_large(path, _MOST_MB)
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    is_utf_16 = content.startswith(_UTF_16) or b"\0" in content[:2]  # JSON begins with an ASCII character
    order = "utf-16" if content.startswith(_UTF_16) else "utf-16-be" if content[:1] == b"\0" else "utf-16-le"
    try:
        return content.decode(order if is_utf_16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_text(path) from error


def _parsed(text: str, path: Path) -> list[Any]:
    """The values in the file: one, or (JSON Lines) one a line."""
    try:
        return [json.loads(text)]
    except ValueError as error:
        line = getattr(error, "lineno", 1)
    values: list[Any] = []
    for number, words in enumerate(io.StringIO(text), start=1):
        if not words.strip():
            continue
        try:
            values.append(json.loads(words))
        except ValueError as error:  # a value that breaks off within the first line was never meant as lines
            raise not_json(path, number if values else line) from error
        if not isinstance(values[-1], dict | list) or len(values) > _MOST_LINES:
            raise unknown_format(path)
    if not values:
        raise empty(path)
    return values


def _conversations(values: list[Any], path: Path, skipped: Skipped) -> list[IncomingConversation]:
    if len(values) > 1 and all(map(is_plain_message, values)):
        values = [values]
    found: list[IncomingConversation] = []
    for value in values:
        if isinstance(value, dict) and value.get("format") == FORMAT:
            found.extend(_ember(value, path))
        else:
            found.extend(_with_messages(_foreign(value, path, skipped), skipped))
    return found


def _ember(value: dict[str, Any], path: Path) -> list[IncomingConversation]:
    version = value.get("version")
    if type(version) is not int or version < 1:
        raise damaged_export(path, "it has no version")
    if version > VERSION:
        raise newer(path)
    try:
        return read_ember(value)
    except DamagedPlaceError as error:
        raise damaged_export(path, str(error)) from error


def _foreign(value: Any, path: Path, skipped: Skipped) -> Iterator[IncomingConversation]:
    several = value if isinstance(value, list) and not is_plain_list(value) else [value]
    for each in several:
        if is_chatgpt(each):
            yield read_chatgpt(each, skipped)
        elif is_plain_list(each):
            yield read_plain(each, skipped)
        elif is_plain_conversation(each):
            yield read_plain(each["messages"], skipped, title=each.get("title"), system_prompt=each.get("system"))
        elif each not in ([], {}):
            raise unknown_format(path)


def _with_messages(chats: Iterator[IncomingConversation], skipped: Skipped) -> Iterator[IncomingConversation]:
    for chat in chats:
        if chat.messages:
            yield chat
        else:
            skipped.add("conversations without a message")
