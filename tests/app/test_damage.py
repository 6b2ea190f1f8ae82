"""A database that a failing disk has changed: damage costs its own field or row, at most a StorageError."""

from __future__ import annotations

import random
import re
import sqlite3
from pathlib import Path

import pytest

from app.conversation import Draft, MessageState
from app.conversation_store import ConversationStore
from app.errors import AppError, StorageError, UserError
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason

NUM_CHATS = 6
PAGE = 4096
ODD_BYTES = "CAST(x'74ff6c' AS TEXT)"  # no UTF-8
ODD_VALUES = ["NULL", "7", "x'ff00'", "'2026-1q'", "'[1'", "1e400", ODD_BYTES]
_WORDS = rb"title \d|question \d \d|answer \d \d|20\d\d-\d\d-\d\dT|userquestion|assistantanswer|complete|streaming"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "ember.db"
    store = ConversationStore(path)
    folder = store.create_folder("folder")
    for number in range(NUM_CHATS):
        chat = store.create_conversation(system_prompt="Be brief.", folder_id=folder.id if number % 2 else None)
        store.set_title(chat.id, f"title {number}")
        store.set_draft(chat.id, Draft("and"))
        for turn in range(4):
            store.add_message(chat.id, Role.USER, f"question {number} {turn} " * 5)
            reply = store.add_message(chat.id, Role.ASSISTANT, f"answer {number} {turn} " * 5)
            if turn < 3:
                store.finish_reply(
                    reply.id,
                    text=f"answer {number} {turn} " * 10,
                    token_ids=(1, 2, 3),
                    tokenizer_id="t",
                    finish_reason=FinishReason.STOP,
                    statistics=None,
                )
    store.add_message(chat.id, Role.ASSISTANT, "answer", state=MessageState.STREAMING)
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.read_bytes()


def all_read(path: Path) -> list[str]:
    """The titles, after everything that happens at a start and when each chat is opened."""
    store = ConversationStore(path)
    try:
        store.close_interrupted_replies()
        titles = [one.title for one in store.conversations()]
        store.folders()
        store.pinned_ids()
        for chat in store.conversations():
            store.messages(chat.id)
            store.tree(chat.id)
        return titles
    finally:
        store.close()


def gone_on_with(path: Path) -> None:
    store = ConversationStore(path)
    try:
        store.search("question")
        store.search("qu")
        for chat in store.conversations()[:2]:
            store.add_message(chat.id, Role.USER, "new")
            store.duplicate_conversation(chat.id)
    finally:
        store.close()


def fuzzed(sound: bytes, number: int) -> tuple[bytes, int]:
    """With one byte of it changed, in every second case one of the texts, ids or times; and where."""
    chance = random.Random(number)
    spots = [match.start() + place for match in re.finditer(_WORDS, sound) for place in range(3)]
    spots = [spot for spot in spots if spot > PAGE]  # the first holds the schema
    at = chance.choice(spots) if number % 2 else chance.randrange(100, len(sound))
    damaged = bytearray(sound)
    damaged[at] = 0xFF if number % 4 == 3 else damaged[at] ^ 1 << chance.randrange(8)
    return bytes(damaged), at


@pytest.mark.parametrize("part", range(10))
def test_whatever_byte_is_damaged_the_rest_is_read(sound: bytes, tmp_path: Path, part: int) -> None:
    problems = []
    for number in range(part * 50, part * 50 + 50):
        content, at = fuzzed(sound, number)
        path = tmp_path / str(number) / "ember.db"
        path.parent.mkdir()
        path.write_bytes(content)
        try:
            titles = all_read(path)
            lost = NUM_CHATS - len({title for title in titles if re.fullmatch(r"title \d", title)})
            if lost > 1:
                problems.append((number, at, f"lost {lost}"))
        except StorageError as error:
            if number % 2:
                problems.append((number, at, str(error)))
        except Exception as error:  # noqa: BLE001  # all of them are looked for
            problems.append((number, at, repr(error)))
        if number % 8 > 1:
            continue
        try:
            gone_on_with(path)
        except AppError:
            pass
        except Exception as error:  # noqa: BLE001
            problems.append((number, at, f"going on: {error!r}"))
    assert problems == []


def columns_of(table: str) -> list[str]:
    store = ConversationStore(Path(":memory:"))
    try:
        return [row["name"] for row in store._query(f"PRAGMA table_info({table})")]
    finally:
        store.close()


@pytest.mark.parametrize("value", ODD_VALUES)
@pytest.mark.parametrize(
    ("table", "column"),
    [(table, column) for table in ("conversations", "messages", "folders") for column in columns_of(table)],
)
def test_an_odd_value_in_any_column_costs_no_chat(
    sound: bytes, tmp_path: Path, table: str, column: str, value: str
) -> None:
    path = tmp_path / "ember.db"
    path.write_bytes(sound)
    connection = sqlite3.connect(path)
    try:
        with connection:
            sql = "SELECT sql FROM sqlite_master WHERE name = 'index_changed_message'"
            ((trigger,),) = connection.execute(sql).fetchall()
            connection.execute("DROP TRIGGER index_changed_message")
            connection.execute(f"UPDATE {table} SET {column} = {value} WHERE rowid = 1")
            connection.execute(trigger)
    except sqlite3.IntegrityError:
        return  # SQLite itself would not take it
    finally:
        connection.close()
    titles = all_read(path)
    assert {f"title {number}" for number in range(1, NUM_CHATS)} <= set(titles)
    try:
        gone_on_with(path)
    except UserError:
        assert column in ("id", "conversation_id")
