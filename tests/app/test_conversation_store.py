from __future__ import annotations

import sqlite3
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.conversation import Attachment, Draft, MessageState
from app.conversation_store import IN_MEMORY, ConversationStore
from app.errors import ReadOnlyError, StorageError, UnknownConversationError
from app.folding import fold
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
    store.set_draft(conversation.id, Draft(text))
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
    store.set_draft(second.id, Draft("half a thought"))
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
    assert database.execute("PRAGMA temp_store").fetchone()[0] == 2, "incognito texts are sorted in memory"
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


def test_what_another_connection_writes_while_this_one_reads_is_seen_whole_or_not_at_all(store, data_dir, monkeypatch):
    conversation = store.create_conversation()
    first = store.add_message(conversation.id, Role.USER, "first words")
    reader = ConversationStore(data_dir / "ember.db")
    look, find = reader._tree_of, reader._found

    def look_while_another_writes(conversation_id):
        tree = look(conversation_id)
        store.add_message(conversation.id, Role.USER, "more words")
        return tree

    def find_while_another_deletes(words):
        found = list(find(words))
        store.delete_conversation(conversation.id)
        return iter(found)

    monkeypatch.setattr(reader, "_tree_of", look_while_another_writes)
    monkeypatch.setattr(reader, "_found", find_while_another_deletes)
    try:
        assert [message.id for message in reader.messages(conversation.id)] == [first.id]
        assert len(reader.tree(conversation.id)) == 2
        assert reader.message(first.id).text == "first words"
        assert len(reader.search("first")) == 1
        assert reader.conversations() == []
    finally:
        reader.close()


def test_half_a_character_never_stops_a_text_from_being_kept(store):
    """A file's name, or what a clipboard held, may have a lone surrogate, which no database takes."""
    conversation = store.create_conversation()
    store.set_draft(conversation.id, Draft("a\ud800b", (Attachment("\udcff.txt", "x", 1),)))
    store.add_message(conversation.id, Role.USER, "c\ud83d", attachments=[Attachment("\udcff.txt", "x", 1)])
    kept = store.conversation(conversation.id).draft
    assert (kept.text, kept.attachments[0].name) == ("a\ufffdb", "\ufffd.txt")
    assert store.messages(conversation.id)[0].text == "c\ufffd"


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


MARKER = "geheimnisvolle 비밀의 marker"


def bytes_of_all(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_an_incognito_conversation_is_in_no_file_at_any_moment(tmp_path, data_dir, monkeypatch):
    """The folder of temporary files is watched too; what is kept beside it is, to show that it would be seen."""
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store = ConversationStore(data_dir / "ember.db")
    kept = store.create_conversation()
    store.add_message(kept.id, Role.USER, "plain words")
    hidden = store.create_conversation(system_prompt=MARKER, is_incognito=True)
    store.set_title(hidden.id, MARKER)
    store.set_draft(hidden.id, Draft(MARKER, (Attachment("a", MARKER, 1),)))
    question = store.add_message(hidden.id, Role.USER, MARKER, attachments=[Attachment("a", MARKER, 1)])
    reply = store.add_message(hidden.id, Role.ASSISTANT, "", state=MessageState.STREAMING)
    store.update_reply(reply.id, text=MARKER * 1000, token_ids=(1, 2), tokenizer_id=MARKER)
    assert MARKER.encode() not in bytes_of_all(tmp_path)
    store.finish_reply(
        reply.id,
        text=MARKER * 5000,
        token_ids=(1, 2),
        tokenizer_id=MARKER,
        finish_reason=FinishReason.STOP,
        statistics=some_statistics(),
    )
    with store.transaction():
        for number in range(50):
            store.add_message(hidden.id, Role.USER, f"{MARKER} {number}" * 200)
        assert MARKER.encode() not in bytes_of_all(tmp_path)
    assert len(store.search("비밀의")) == 53
    store.duplicate_conversation(hidden.id)
    store.put_back(store.remove_branch(question.id))
    store.conversations()
    found = bytes_of_all(tmp_path)
    assert b"plain words" in found
    for form in (MARKER, fold(MARKER), "비밀"):
        assert form.encode() not in found
    store.delete_conversation(hidden.id)
    store.close()
    found = bytes_of_all(tmp_path)
    assert b"plain words" in found
    assert MARKER.encode() not in found


def test_incognito_conversations_are_listed_with_the_others_and_gone_after_closing(store, data_dir):
    kept, hidden = store.create_conversation(), store.create_conversation(is_incognito=True)
    assert (kept.is_incognito, hidden.is_incognito) == (False, True)
    assert hidden.id.startswith("incognito-")
    message = store.add_message(hidden.id, Role.USER, "hello")
    assert message.id >= 2**48
    assert store.add_message(kept.id, Role.USER, "hello").id < 2**48
    assert [entry.id for entry in store.conversations()] == [kept.id, hidden.id]
    store.set_pinned(hidden.id, True)
    assert store.pinned_ids() == {hidden.id}
    later = reopened(store, data_dir)
    try:
        assert [entry.id for entry in later.conversations()] == [kept.id]
        assert later.messages(hidden.id) == []
        with pytest.raises(UnknownConversationError):
            later.conversation(hidden.id)
    finally:
        later.close()


def test_an_incognito_conversation_can_lie_in_a_folder(store):
    folder = store.create_folder("private")
    hidden = store.create_conversation(is_incognito=True, folder_id=folder.id)
    assert store.conversation(hidden.id).folder_id == folder.id
    store.delete_folder(folder.id)
    assert store.conversation(hidden.id).folder_id is None


def test_a_failure_undoes_what_was_written_to_both(store):
    kept, hidden = store.create_conversation(), store.create_conversation(is_incognito=True)

    def change_and_fail() -> None:
        with store.transaction():
            for one in (kept, hidden):
                store.add_message(one.id, Role.USER, "x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    assert store.messages(kept.id) == store.messages(hidden.id) == []


def test_every_conversation_of_a_store_in_memory_is_incognito(tmp_path):
    store = ConversationStore(IN_MEMORY)
    assert store.create_conversation().is_incognito
    assert store.create_conversation(is_incognito=True).is_incognito
    store.close()
