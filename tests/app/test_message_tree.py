"""Versions and branches: choosing, adding, removing, putting back; and trees that are damaged."""

from __future__ import annotations

import random
import sqlite3

import pytest

from app.conversation import Attachment, ChatOptions, Draft, MessageState
from app.conversation_store import LEAF, ConversationStore
from app.errors import UnknownConversationError, UnknownFolderError, UnknownMessageError
from app.message_tree import Link, MessageTree
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason
from tests.fakes import some_statistics

FILE = Attachment("표.csv", "가,나\n1,2", 12)


@pytest.fixture
def store(data_dir):
    store = ConversationStore(data_dir / "ember.db")
    yield store
    store.close()


@pytest.fixture(params=[False, True], ids=["in the file", "incognito"])
def chat(store, request):
    """Two turns: question, reply, question, reply."""
    conversation = store.create_conversation(is_incognito=request.param)
    for number in (1, 2):
        store.add_message(conversation.id, Role.USER, f"question {number}")
        store.add_message(conversation.id, Role.ASSISTANT, f"reply {number}")
    return conversation.id


def shown(store, chat: str) -> list[str]:
    return [message.text for message in store.messages(chat)]


def ids(store, chat: str) -> list[int]:
    return [message.id for message in store.messages(chat)]


def picture(store, chat: str) -> object:
    """All that can be seen of a conversation: every message with its place, what is shown, and the view."""
    return store.tree(chat), store.messages(chat), store.conversation(chat).view_from


def test_messages_form_a_chain_when_nothing_else_is_asked_for(store, chat):
    messages = store.messages(chat)
    assert [message.parent_id for message in messages] == [None, *(message.id for message in messages[:-1])]
    assert {(message.version, message.num_versions) for message in messages} == {(1, 1)}
    assert store.branch_name(chat) == ""


def test_another_reply_to_the_same_question_is_a_version_of_it_and_is_shown(store, chat):
    _, first_reply, _, _ = ids(store, chat)
    question = store.messages(chat)[0]
    second_reply = store.add_message(chat, Role.ASSISTANT, "reply 1b", parent_id=question.id)
    assert (second_reply.version, second_reply.num_versions, second_reply.parent_id) == (2, 2, question.id)
    assert shown(store, chat) == ["question 1", "reply 1b"]
    assert store.versions(first_reply) == store.versions(second_reply.id) == [first_reply, second_reply.id]
    assert [message.text for message in store.tree(chat)] == [
        "question 1",
        "reply 1",
        "question 2",
        "reply 2",
        "reply 1b",
    ]


def test_another_first_question_is_a_version_of_the_first(store, chat):
    store.add_message(chat, Role.USER, "question 1b", parent_id=None)
    assert shown(store, chat) == ["question 1b"]
    assert [(one.version, one.num_versions) for one in store.messages(chat)] == [(2, 2)]


def test_choosing_a_version_shows_the_branch_through_it_as_it_was_left(store, chat):
    question_1, reply_1, question_2, reply_2 = ids(store, chat)
    other = store.add_message(chat, Role.ASSISTANT, "reply 2b", parent_id=question_2)
    store.add_message(chat, Role.USER, "question 1b", parent_id=None)
    store.select_version(reply_1)
    assert ids(store, chat) == [question_1, reply_1, question_2, other.id]
    store.add_message(chat, Role.USER, "question 1c", parent_id=None)
    store.select_version(reply_2)
    assert ids(store, chat) == [question_1, reply_1, question_2, reply_2]


def test_a_version_added_in_a_branch_that_is_not_shown_is_shown_with_its_ancestors(store, chat):
    _, _, question_2, _ = ids(store, chat)
    store.add_message(chat, Role.USER, "question 1b", parent_id=None)
    store.add_message(chat, Role.ASSISTANT, "reply 2b", parent_id=question_2)
    assert shown(store, chat) == ["question 1", "reply 1", "question 2", "reply 2b"]


def test_what_is_added_without_a_parent_goes_below_the_branch_shown(store, chat):
    _, reply_1, _, _ = ids(store, chat)
    store.add_message(chat, Role.USER, "question 2b", parent_id=reply_1)
    store.add_message(chat, Role.ASSISTANT, "reply 2b", parent_id=LEAF)
    assert shown(store, chat) == ["question 1", "reply 1", "question 2b", "reply 2b"]


def test_the_branch_is_named_after_its_deepest_message_that_is_not_the_first_version(store, chat):
    question_1, reply_1, _, _ = ids(store, chat)
    other_reply = store.add_message(chat, Role.ASSISTANT, "reply 1b", parent_id=question_1).id
    assert store.branch_name(chat) == str(other_reply)
    store.add_message(chat, Role.USER, "question 2b")
    assert store.branch_name(chat) == str(other_reply)
    deeper = store.add_message(chat, Role.USER, "question 2c", parent_id=other_reply).id
    assert store.branch_name(chat) == str(deeper)
    store.select_version(reply_1)
    assert store.branch_name(chat) == ""


def test_unknown_messages_are_told(store, chat):
    gone = store.add_message(chat, Role.USER, "gone").id
    store.delete_message(gone)
    store.delete_message(gone)
    for attempt in (
        lambda: store.message(gone),
        lambda: store.versions(gone),
        lambda: store.select_version(gone),
        lambda: store.remove_message(gone),
        lambda: store.remove_branch(gone),
        lambda: store.add_message(chat, Role.USER, "x", parent_id=gone),
        lambda: store.duplicate_conversation(chat, until=gone),
    ):
        with pytest.raises(UnknownMessageError):
            attempt()
    assert shown(store, chat) == ["question 1", "reply 1", "question 2", "reply 2"]


def test_a_parent_in_another_conversation_is_unknown(store, chat):
    stranger = store.add_message(store.create_conversation().id, Role.USER, "elsewhere")
    with pytest.raises(UnknownMessageError):
        store.add_message(chat, Role.USER, "x", parent_id=stranger.id)


def test_attachments_and_drafts_with_files_come_back(store, chat):
    sent = store.add_message(chat, Role.USER, "see", attachments=[FILE])
    assert sent.attachments == store.message(sent.id).attachments == (FILE,)
    assert store.messages(chat)[0].attachments == ()
    store.set_draft(chat, Draft("and", (FILE, FILE)))
    assert store.conversation(chat).draft == Draft("and", (FILE, FILE))
    store.set_draft(chat, Draft())
    assert store.conversation(chat).draft == Draft()


def test_what_a_conversation_sets_for_itself_comes_back(store, data_dir):
    options = ChatOptions(temperature=0.0, top_k=1, max_new_tokens=10)
    folder = store.create_folder("일")
    made = store.create_conversation(system_prompt="Be brief.", options=options, model="m", folder_id=folder.id)
    assert (made.options, made.model, made.folder_id, made.view_from) == (options, "m", folder.id, None)
    store.set_options(made.id, ChatOptions(min_p=0.5))
    store.set_system_prompt(made.id, "Be long.")
    message = store.add_message(made.id, Role.USER, "x")
    store.set_view_from(made.id, message.id)
    store.close()
    again = ConversationStore(data_dir / "ember.db")
    try:
        kept = again.conversation(made.id)
        assert (kept.options, kept.system_prompt, kept.view_from) == (
            ChatOptions(min_p=0.5),
            "Be long.",
            message.id,
        )
        again.set_options(made.id, ChatOptions())
        assert again.conversation(made.id).options == ChatOptions()
    finally:
        again.close()


@pytest.mark.parametrize("stored", ["no json", "[" * 100_000, "[]", '{"temperature": "hot", "top_k": true, "new": 1}'])
def test_options_and_attachments_that_cannot_be_read_are_left_out(store, data_dir, stored):
    conversation = store.create_conversation(options=ChatOptions(top_p=0.5))
    store.add_message(conversation.id, Role.USER, "text", attachments=[FILE])
    with sqlite3.connect(data_dir / "ember.db") as raw:
        raw.execute("UPDATE conversations SET options = ?, draft_attachments = ?", [stored, stored])
        raw.execute("UPDATE messages SET attachments = ?", [stored])
    raw.close()
    assert store.conversation(conversation.id).options == ChatOptions()
    assert store.conversation(conversation.id).draft == Draft()
    (message,) = store.messages(conversation.id)
    assert (message.text, message.attachments) == ("text", ())


def test_another_wording_drops_the_ids_of_the_old_one(store, chat):
    reply = store.messages(chat)[-1].id
    store.update_reply(reply, text="reply 2", token_ids=(1, 2), tokenizer_id="t")
    store.set_text(reply, "my own words")
    kept = store.message(reply)
    assert (kept.text, kept.token_ids, kept.tokenizer_id) == ("my own words", None, None)


def test_a_reopened_reply_streams_on_with_its_text_and_ids(store, chat):
    reply = store.messages(chat)[-1].id
    store.finish_reply(
        reply,
        text="half",
        token_ids=(1, 2),
        tokenizer_id="t",
        finish_reason=FinishReason.LENGTH,
        statistics=some_statistics(),
    )
    store.reopen_reply(reply)
    kept = store.message(reply)
    assert (kept.text, kept.token_ids, kept.state) == ("half", (1, 2), MessageState.STREAMING)


def test_a_reply_whose_continuation_was_cut_off_is_a_cancelled_one_with_its_text(store):
    conversation = store.create_conversation()
    store.add_message(conversation.id, Role.USER, "question")
    reply = store.add_message(conversation.id, Role.ASSISTANT, "")
    store.finish_reply(
        reply.id, text="half", token_ids=(1,), tokenizer_id="t", finish_reason=FinishReason.LENGTH, statistics=None
    )
    store.reopen_reply(reply.id)
    assert store.close_interrupted_replies() == 1
    kept = store.message(reply.id)
    assert (kept.text, kept.state, kept.finish_reason) == ("half", MessageState.COMPLETE, FinishReason.CANCELLED)


def test_removing_one_message_closes_the_gap(store, chat):
    question_1, reply_1, question_2, reply_2 = ids(store, chat)
    removed = store.remove_message(reply_1)
    assert ids(store, chat) == [question_1, question_2, reply_2]
    assert store.message(question_2).parent_id == question_1
    assert removed.num_messages == 1


def test_what_was_shown_below_a_removed_message_is_shown_still(store, chat):
    question_1, reply_1, question_2, reply_2 = ids(store, chat)
    store.add_message(chat, Role.USER, "question 2b", parent_id=reply_1)
    store.add_message(chat, Role.ASSISTANT, "reply 1b", parent_id=question_1)
    store.select_version(question_2)
    store.remove_message(reply_1)
    assert ids(store, chat) == [question_1, question_2, reply_2]
    assert [message.text for message in map(store.message, store.versions(question_2))] == [
        "question 2",
        "question 2b",
        "reply 1b",
    ]
    store.select_version(question_2)
    store.remove_message(store.versions(question_2)[1])
    assert ids(store, chat) == [question_1, question_2, reply_2]


def test_removing_a_branch_shows_the_newest_version_left(store, chat):
    question_1, reply_1, _, _ = ids(store, chat)
    second = store.add_message(chat, Role.ASSISTANT, "reply 1b", parent_id=question_1).id
    store.add_message(chat, Role.ASSISTANT, "reply 1c", parent_id=question_1)
    store.select_version(reply_1)
    assert store.remove_branch(reply_1).num_messages == 3
    assert shown(store, chat) == ["question 1", "reply 1c"]
    store.remove_branch(second)
    assert shown(store, chat) == ["question 1", "reply 1c"]
    store.remove_branch(question_1)
    assert store.tree(chat) == []


def test_removing_the_version_shown_shows_the_newest_of_the_others(store, chat):
    question_1, _, _, _ = ids(store, chat)
    other = store.add_message(chat, Role.ASSISTANT, "", parent_id=question_1)
    store.delete_message(other.id)
    assert shown(store, chat) == ["question 1", "reply 1", "question 2", "reply 2"]


def test_a_view_that_begins_with_a_removed_message_begins_with_the_next_one(store, chat):
    _, _, question_2, reply_2 = ids(store, chat)
    store.set_view_from(chat, question_2)
    removed = store.remove_message(question_2)
    assert store.conversation(chat).view_from == reply_2
    store.put_back(removed)
    assert store.conversation(chat).view_from == question_2
    store.remove_branch(question_2)
    assert store.conversation(chat).view_from is None


@pytest.mark.parametrize("seed", range(8))
def test_what_is_put_back_is_exactly_what_was_there(store, chat, seed):
    """Random trees, random removals one after the other, undone in reverse order."""
    chance = random.Random(seed)
    for _ in range(30):
        known = [message.id for message in store.tree(chat)]
        parent = chance.choice([LEAF, None, *known])
        store.add_message(chat, chance.choice([Role.USER, Role.ASSISTANT]), "x", parent_id=parent, attachments=[FILE])
        if chance.random() < 0.3:
            store.select_version(chance.choice(known))
    store.set_view_from(chat, chance.choice(ids(store, chat)))
    done = []
    while tree := store.tree(chat):
        before = picture(store, chat)
        remove = chance.choice([store.remove_message, store.remove_branch])
        done.append((before, remove(chance.choice(tree).id)))
        assert len(store.tree(chat)) == len(tree) - done[-1][1].num_messages
        assert all(one.parent_id is None or one.parent_id < one.id for one in store.tree(chat))
    for before, removed in reversed(done):
        store.put_back(removed)
        assert picture(store, chat) == before


def test_putting_back_twice_or_after_new_versions_harms_nothing(store, chat):
    _, reply_1, question_2, reply_2 = ids(store, chat)
    removed = store.remove_branch(question_2)
    newer = store.add_message(chat, Role.USER, "question 2b")
    for _ in range(2):
        store.put_back(removed)
        assert ids(store, chat)[-2:] == [question_2, reply_2]
        assert store.versions(question_2) == [question_2, newer.id]
        assert store.message(newer.id).parent_id == reply_1


def test_nothing_can_be_put_back_into_a_conversation_that_is_gone(store, chat):
    removed = store.remove_branch(ids(store, chat)[0])
    store.delete_conversation(chat)
    with pytest.raises(UnknownConversationError):
        store.put_back(removed)


def test_a_copy_has_every_branch_and_its_own_ids(store, chat):
    _, reply_1, question_2, reply_2 = ids(store, chat)
    store.update_reply(reply_1, text="reply 1", token_ids=(7, 8), tokenizer_id="t")
    store.add_message(chat, Role.ASSISTANT, "reply 2b", parent_id=question_2, attachments=[FILE])
    store.select_version(reply_2)
    store.set_title(chat, "title")
    store.set_view_from(chat, question_2)
    store.set_options(chat, ChatOptions(top_k=4))
    store.set_draft(chat, Draft("draft", (FILE,)))
    head = store.conversation(chat)
    copy = store.duplicate_conversation(chat)
    assert (copy.title, copy.options, copy.draft, copy.created_at) == (
        "title",
        ChatOptions(top_k=4),
        Draft("draft", (FILE,)),
        head.created_at,
    )
    assert copy.is_incognito == head.is_incognito
    old, new = store.tree(chat), store.tree(copy.id)
    assert not {message.id for message in old} & {message.id for message in new}
    renamed = {mine.id: theirs.id for theirs, mine in zip(old, new, strict=True)} | {None: None}
    assert [
        (mine.text, mine.token_ids, mine.attachments, mine.created_at, renamed[mine.parent_id]) for mine in new
    ] == [(one.text, one.token_ids, one.attachments, one.created_at, one.parent_id) for one in old]
    assert shown(store, copy.id) == shown(store, chat)
    assert copy.view_from is not None
    assert renamed[copy.view_from] == question_2


def test_a_fork_has_the_path_up_to_one_message_and_no_draft(store, chat):
    question_1, _, question_2, _ = ids(store, chat)
    store.add_message(chat, Role.ASSISTANT, "reply 1b", parent_id=question_1)
    store.set_draft(chat, Draft("draft"))
    fork = store.duplicate_conversation(chat, until=question_2)
    assert shown(store, fork.id) == ["question 1", "reply 1", "question 2"]
    assert (len(store.tree(fork.id)), fork.draft, fork.num_messages) == (3, Draft(), 3)


def test_a_reply_being_written_is_copied_as_a_cancelled_one(store, chat):
    reply = store.add_message(chat, Role.ASSISTANT, "", state=MessageState.STREAMING)
    store.update_reply(reply.id, text="so far", token_ids=(1,), tokenizer_id="t")
    copied = store.messages(store.duplicate_conversation(chat).id)[-1]
    assert (copied.text, copied.state, copied.finish_reason, copied.token_ids) == (
        "so far",
        MessageState.COMPLETE,
        FinishReason.CANCELLED,
        None,
    )


def test_a_chain_far_deeper_than_sqlite_recurses_is_read_copied_and_deleted(store):
    conversation = store.create_conversation()
    with store.transaction():
        first = store.add_message(conversation.id, Role.USER, "0")
        store._open_db.conn.executemany(
            "INSERT INTO messages (conversation_id, role, text, state, created_at, parent_id) "
            "VALUES (?, 'user', ?, 'complete', '2026-01-01T00:00:00+00:00', ?)",
            [(conversation.id, str(number), first.id + number - 1) for number in range(1, 3000)],
        )
    assert shown(store, conversation.id) == [str(number) for number in range(3000)]
    copy = store.duplicate_conversation(conversation.id)
    assert store.remove_branch(store.messages(copy.id)[0].id).num_messages == 3000
    store.delete_conversation(conversation.id)
    assert store.messages(conversation.id) == []


def damaged(store, data_dir, statement: str, *values: object) -> None:
    with sqlite3.connect(data_dir / "ember.db") as raw:
        raw.execute(statement, values)
    raw.close()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE messages SET is_selected = 1", ["question 1", "reply 1b"]),
        ("UPDATE messages SET is_selected = 0", ["question 1", "reply 1b"]),
        ("UPDATE messages SET parent_id = 999 WHERE id = 3", ["question 1", "reply 1", "question 2", "reply 2"]),
        ("UPDATE messages SET parent_id = -1 WHERE id = 1", ["question 1", "reply 1", "question 2", "reply 2"]),
        ("UPDATE messages SET parent_id = id", ["question 1", "reply 1", "question 2", "reply 2"]),
        ("UPDATE messages SET parent_id = 4 WHERE id = 3", ["question 1", "reply 1", "question 2", "reply 2"]),
        ("UPDATE messages SET parent_id = 4 WHERE id = 1", ["question 1", "reply 1", "question 2", "reply 2"]),
        ("DELETE FROM messages WHERE id = 2", ["question 1", "question 2", "reply 2"]),
        ("DELETE FROM messages WHERE id = 1", ["reply 1", "question 2", "reply 2"]),
    ],
)
def test_a_damaged_tree_still_shows_a_branch_and_can_be_worked_with(store, data_dir, statement, expected):
    chat = store.create_conversation().id
    for text in ("question 1", "reply 1", "question 2", "reply 2"):
        store.add_message(chat, Role.USER, text)
    store.add_message(chat, Role.ASSISTANT, "reply 1b", parent_id=1)
    store.select_version(4)
    damaged(store, data_dir, statement)
    assert shown(store, chat)[: len(expected)] == expected
    assert len(store.tree(chat)) == store.conversation(chat).num_messages
    for message in store.tree(chat):
        store.select_version(message.id)
        assert message.id in ids(store, chat)
        assert message.id in store.versions(message.id)
    store.branch_name(chat)
    before = shown(store, chat)
    store.add_message(chat, Role.USER, "more")
    assert shown(store, chat) == [*before, "more"]
    copy = store.duplicate_conversation(chat)
    assert shown(store, copy.id) == shown(store, chat)
    while tree := store.tree(chat):
        store.remove_message(tree[len(tree) // 2].id)


@pytest.mark.parametrize("seed", range(20))
def test_no_links_whatever_make_a_walk_endless_or_lose_a_message(seed):
    chance = random.Random(seed)
    links = [
        Link(number, chance.choice([None, *range(40)]), chance.random() < 0.5)
        for number in chance.sample(range(1, 40), 25)
    ]
    tree = MessageTree(links)
    assert sorted(known for root in tree.children(None) for known in tree.below(root)) == tree.ids
    for known in tree.ids:
        assert tree.path(known)[-1] == known
        assert tree.path(known)[0] in tree.children(None)
    assert tree.shown() == tree.path(tree.shown()[-1])


def test_folders_are_listed_by_name_and_their_conversations_outlive_them(store, chat):
    later, earlier = store.create_folder("나"), store.create_folder("가")
    assert store.folders() == [earlier, later]
    store.rename_folder(earlier.id, "\u1103\u1161")  # 다, decomposed
    assert [folder.id for folder in store.folders()] == [later.id, earlier.id]
    store.set_folder(chat, later.id)
    assert store.conversation(chat).folder_id == later.id
    store.delete_folder(later.id)
    assert store.conversation(chat).folder_id is None
    assert [folder.id for folder in store.folders()] == [earlier.id]
    with pytest.raises(UnknownFolderError):
        store.set_folder(chat, later.id)
