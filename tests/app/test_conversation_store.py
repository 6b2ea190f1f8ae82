from __future__ import annotations

import sqlite3
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.conversation import MessageState
from app.conversation_store import IN_MEMORY, ConversationStore
from app.errors import ReadOnlyError, StorageError, UnknownConversationError
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason
from tests.fakes import some_statistics


@pytest.fixture
def store(data_dir: Path):
    store = ConversationStore(data_dir / "ember.db")
    yield store
    store.close()


def reopened(store: ConversationStore, data_dir: Path) -> ConversationStore:
    store.close()
    return ConversationStore(data_dir / "ember.db")


def test_a_new_conversation_is_empty_and_its_times_are_aware(store):
    conversation = store.create_conversation(system_prompt="Be brief.")
    assert (conversation.title, conversation.system_prompt, conversation.num_messages) == ("", "Be brief.", 0)
    assert conversation.created_at.tzinfo is UTC
    assert abs((datetime.now(UTC) - conversation.created_at).total_seconds()) < 60
    assert store.messages(conversation.id) == []


def test_messages_come_back_in_order_after_a_restart(store, data_dir):
    conversation = store.create_conversation()
    store.add_message(conversation.id, Role.USER, "one")
    store.add_message(conversation.id, Role.ASSISTANT, "two", model="tiny")
    with_again = reopened(store, data_dir)
    try:
        messages = with_again.messages(conversation.id)
        assert [(message.role, message.text, message.model) for message in messages] == [
            (Role.USER, "one", None),
            (Role.ASSISTANT, "two", "tiny"),
        ]
        assert with_again.conversation(conversation.id).num_messages == 2
    finally:
        with_again.close()


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_hangul_comes_back_in_the_very_form_it_came_in(store, form):
    text = unicodedata.normalize(form, "안녕하세요, 각하! 값을 읽다 🍊 \u0000 끝")
    conversation = store.create_conversation(system_prompt=text)
    store.add_message(conversation.id, Role.USER, text)
    store.set_title(conversation.id, text)
    store.set_draft(conversation.id, text)
    kept = store.conversation(conversation.id)
    assert [kept.system_prompt, kept.title, kept.draft.text, store.messages(conversation.id)[0].text] == [text] * 4


def test_a_finished_reply_keeps_ids_statistics_and_reason(store):
    conversation = store.create_conversation()
    reply = store.add_message(conversation.id, Role.ASSISTANT, "", state=MessageState.STREAMING)
    assert reply.state is MessageState.STREAMING
    ids = (0, 1, 255, 256, 151_643, 2**32 - 1)
    store.finish_reply(
        reply.id,
        text="done",
        token_ids=ids,
        tokenizer_id="t",
        finish_reason=FinishReason.LENGTH,
        statistics=some_statistics(),
    )
    (kept,) = store.messages(conversation.id)
    assert (kept.text, kept.token_ids, kept.tokenizer_id) == ("done", ids, "t")
    assert (kept.finish_reason, kept.statistics, kept.state) == (
        FinishReason.LENGTH,
        some_statistics(),
        MessageState.COMPLETE,
    )


def test_token_ids_lie_in_the_file_as_little_endian_uint32(store, data_dir):
    conversation = store.create_conversation()
    reply = store.add_message(conversation.id, Role.ASSISTANT, "")
    store.update_reply(reply.id, text="x", token_ids=(1, 0x01020304), tokenizer_id="t")
    with sqlite3.connect(data_dir / "ember.db") as raw:
        ((blob,),) = raw.execute("SELECT token_ids FROM messages").fetchall()
    raw.close()
    assert blob == b"\x01\x00\x00\x00\x04\x03\x02\x01"


def test_ids_of_no_tokens_are_told_from_no_ids(store):
    conversation = store.create_conversation()
    reply = store.add_message(conversation.id, Role.ASSISTANT, "")
    assert store.messages(conversation.id)[0].token_ids is None
    store.update_reply(reply.id, text="", token_ids=(), tokenizer_id="t")
    assert store.messages(conversation.id)[0].token_ids == ()


def test_statistics_of_another_version_are_left_out_and_the_text_stays(store, data_dir):
    conversation = store.create_conversation()
    for statistics in ('{"from": "the future"}', "not json", '{"cache": 3}'):
        store.add_message(conversation.id, Role.ASSISTANT, "text")
        with sqlite3.connect(data_dir / "ember.db") as raw:
            raw.execute("UPDATE messages SET statistics = ? WHERE id = (SELECT max(id) FROM messages)", [statistics])
        raw.close()
    assert [(message.text, message.statistics) for message in store.messages(conversation.id)] == [("text", None)] * 3


def test_the_conversation_written_to_last_comes_first(store):
    first, second = store.create_conversation(), store.create_conversation()
    assert [entry.id for entry in store.conversations()] == [second.id, first.id]
    store.add_message(first.id, Role.USER, "hello")
    assert [entry.id for entry in store.conversations()] == [first.id, second.id]
    store.set_draft(second.id, "half a thought")
    assert [entry.id for entry in store.conversations()] == [first.id, second.id]


def test_deleting_a_conversation_deletes_its_messages_and_no_others(store, data_dir):
    gone, kept = store.create_conversation(), store.create_conversation()
    store.add_message(gone.id, Role.USER, "a")
    store.add_message(kept.id, Role.USER, "b")
    store.delete_conversation(gone.id)
    with pytest.raises(UnknownConversationError):
        store.conversation(gone.id)
    with sqlite3.connect(data_dir / "ember.db") as raw:
        assert raw.execute("SELECT text FROM messages").fetchall() == [("b",)]
    raw.close()


def test_the_id_of_a_deleted_message_is_not_given_again(store):
    conversation = store.create_conversation()
    first = store.add_message(conversation.id, Role.USER, "a")
    store.delete_message(first.id)
    assert store.add_message(conversation.id, Role.USER, "b").id > first.id


def test_an_unknown_conversation_is_named(store):
    for attempt in (
        lambda: store.conversation("nope"),
        lambda: store.delete_conversation("nope"),
        lambda: store.add_message("nope", Role.USER, "x"),
    ):
        with pytest.raises(UnknownConversationError, match="nope"):
            attempt()


def test_a_transaction_is_kept_whole_or_not_at_all(store):
    conversation = store.create_conversation()

    def change_and_fail() -> None:
        with store.transaction():
            store.add_message(conversation.id, Role.USER, "a")
            store.set_title(conversation.id, "title")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    assert store.messages(conversation.id) == []
    assert store.conversation(conversation.id).title == ""


def test_replies_cut_off_become_cancelled_ones_without_ids_that_may_run_ahead(store):
    conversation = store.create_conversation()
    reply = store.add_message(conversation.id, Role.ASSISTANT, "", state=MessageState.STREAMING)
    store.update_reply(reply.id, text="half", token_ids=(1, 2), tokenizer_id="t")
    assert store.close_interrupted_replies() == 1
    assert store.close_interrupted_replies() == 0
    (kept,) = store.messages(conversation.id)
    assert (kept.text, kept.state, kept.finish_reason, kept.token_ids) == (
        "half",
        MessageState.COMPLETE,
        FinishReason.CANCELLED,
        None,
    )


def test_the_database_is_set_up_to_survive_a_crash(store):
    database = store._open_db
    pragmas = {name: database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
    assert pragmas == {"journal_mode": "wal", "synchronous": 1}
    assert database.execute("PRAGMA foreign_keys").fetchone()[0] == 1
    assert database.execute("PRAGMA busy_timeout").fetchone()[0] > 0


def test_another_connection_reads_while_this_one_writes(store, data_dir):
    conversation = store.create_conversation()
    reader = ConversationStore(data_dir / "ember.db")
    try:
        with store.transaction():
            store.add_message(conversation.id, Role.USER, "not yet visible")
            assert reader.messages(conversation.id) == []
        assert [message.text for message in reader.messages(conversation.id)] == ["not yet visible"]
    finally:
        reader.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.raises(ReadOnlyError, match="--data-dir") as caught:
        ConversationStore(file / "data" / "ember.db")
    assert str(file) in str(caught.value)


def test_a_database_path_that_is_a_folder_is_a_storage_error(tmp_path):
    (tmp_path / "ember.db").mkdir()
    with pytest.raises(StorageError):
        ConversationStore(tmp_path / "ember.db")


def test_pins_come_back_after_a_restart(store, data_dir):
    first, second = store.create_conversation(), store.create_conversation()
    assert (first.is_pinned, store.pinned_ids()) == (False, frozenset())
    store.set_pinned(first.id, True)
    store.set_pinned(second.id, True)
    store.set_pinned(second.id, False)
    store.set_pinned("gone", True)
    later = reopened(store, data_dir)
    try:
        assert later.pinned_ids() == {first.id}
        assert [one.id for one in later.conversations() if one.is_pinned] == [first.id]
        later.delete_conversation(first.id)
        assert later.pinned_ids() == frozenset()
    finally:
        later.close()


def test_a_store_in_memory_makes_no_file_and_forgets_when_closed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = ConversationStore(IN_MEMORY)
    conversation = store.create_conversation(system_prompt="Be brief.")
    with store.transaction():
        store.add_message(conversation.id, Role.USER, "secret")
    assert [message.text for message in store.messages(conversation.id)] == ["secret"]
    assert store._open_db.execute("PRAGMA foreign_keys").fetchone()[0] == 1
    other = ConversationStore(IN_MEMORY)
    assert other.conversations() == []
    for each in (store, other):
        each.close()
    assert list(tmp_path.iterdir()) == []
