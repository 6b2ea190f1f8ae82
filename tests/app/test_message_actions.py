"""What can be done with one message: the store and the engine agree about it afterwards."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from app.chat_session import ChatSession
from app.conversation import Attachment, ChatOptions, Draft, MessageState
from app.conversation_store import ConversationStore
from app.errors import BusyError, EmptyMessageError, EngineFailedError, NothingToContinueError
from app.settings import Settings
from engine.protocol.commands import ChatMessage, CountTokens, Estimate, Generate, LoadModel, Role
from engine.protocol.config import ContextPolicy, Weights
from engine.protocol.errors import ContextOverflowError, GenerationError, ModelNotFoundError
from engine.protocol.events import FinishReason, ModelLoaded, ViewMoved
from tests.fakes import SilentEngine, a_model, failed, finished, text_arrived


@pytest.fixture
def store(data_dir: Path):
    store = ConversationStore(data_dir / "ember.db")
    yield store
    store.close()


@pytest.fixture
def engine() -> SilentEngine:
    return SilentEngine()


@pytest.fixture
def session(store, engine) -> ChatSession:
    session = ChatSession(store, engine, Settings())
    request_id = session.load_model(Path("models/tiny"), Weights.BITS_16)
    session.handle(ModelLoaded(request_id, a_model()))
    return session


@pytest.fixture
def chat(session, store) -> str:
    """Two turns: one, ONE, two, TWO."""
    conversation_id = session.new_conversation().id
    for text in ("one", "two"):
        session.handle(finished(session.turns.send(conversation_id, text), text.upper(), 1, 2))
    return conversation_id


def texts(store: ConversationStore, conversation_id: str) -> list[str]:
    return [message.text for message in store.messages(conversation_id)]


def ids(store: ConversationStore, conversation_id: str) -> list[int]:
    return [message.id for message in store.messages(conversation_id)]


def asked(engine: SilentEngine) -> Generate:
    return engine.generated[-1]


def given(engine: SilentEngine) -> list[str]:
    return [message.text for message in asked(engine).messages]


# another version of a reply


def test_another_version_of_a_reply_is_asked_for_with_what_led_to_it(session, store, engine, chat):
    request_id = session.turns.regenerate(chat, ids(store, chat)[1])
    assert given(engine) == ["one"]
    assert texts(store, chat) == ["one", ""]
    session.handle(finished(request_id, "ONE again", 3))
    versions = store.messages(chat)
    assert [(m.text, m.version, m.num_versions) for m in versions] == [("one", 1, 1), ("ONE again", 2, 2)]


def test_each_version_has_a_cache_of_its_own_and_the_first_keeps_the_one_it_had(session, store, engine, chat):
    first = ids(store, chat)[3]
    assert asked(engine).branch == ""
    session.handle(finished(session.turns.regenerate(chat, first), "TWO again", 3))
    second = asked(engine).branch
    assert second
    session.show_version(chat, first)
    session.handle(finished(session.turns.send(chat, "three"), "THREE", 4))
    assert asked(engine).branch == ""
    assert given(engine) == ["one", "ONE", "two", "TWO", "three"]
    session.show_version(chat, store.versions(first)[1])
    assert texts(store, chat) == ["one", "ONE", "two", "TWO again"]
    session.turns.send(chat, "three")
    assert asked(engine).branch == second


def test_regenerating_a_question_that_was_never_answered_answers_it(session, store, engine, chat):
    session.handle(failed(session.turns.send(chat, "three"), GenerationError("Broken."), chat))
    assert texts(store, chat)[-1] == "three"
    session.handle(finished(session.turns.regenerate(chat, ids(store, chat)[-1]), "THREE", 5))
    assert texts(store, chat)[-2:] == ["three", "THREE"]


def test_a_version_that_fails_before_any_text_leaves_the_one_before(session, store, chat):
    session.handle(failed(session.turns.regenerate(chat, ids(store, chat)[3]), GenerationError("Broken."), chat))
    assert texts(store, chat) == ["one", "ONE", "two", "TWO"]
    assert store.messages(chat)[3].num_versions == 1


# another wording of a question


def test_an_edited_question_is_asked_anew_and_the_old_one_kept(session, store, engine, chat):
    request_id = session.turns.edit(chat, ids(store, chat)[2], "zwei")
    assert request_id == asked(engine).request_id
    assert given(engine) == ["one", "ONE", "zwei"]
    session.handle(finished(request_id, "ZWEI", 7))
    assert texts(store, chat) == ["one", "ONE", "zwei", "ZWEI"]
    session.show_version(chat, store.versions(ids(store, chat)[2])[0])
    assert texts(store, chat) == ["one", "ONE", "two", "TWO"]


def test_the_first_question_can_be_edited_and_keeps_its_files(session, store, engine):
    conversation_id = session.new_conversation().id
    note = Attachment("notes.txt", "the notes", 9)
    session.handle(finished(session.turns.send(conversation_id, Draft("read", (note,))), "ok", 1))
    session.turns.edit(conversation_id, ids(store, conversation_id)[0], "read it")
    assert "the notes" in given(engine)[0]
    assert given(engine)[0].endswith("read it")
    assert store.messages(conversation_id)[0].attachments == (note,)


def test_an_edited_reply_asks_nothing_and_its_ids_are_no_longer_fed(session, store, engine, chat):
    before = len(engine.generated)
    assert session.turns.edit(chat, ids(store, chat)[3], "Zwei, in fact") is None
    assert len(engine.generated) == before
    session.turns.send(chat, "three")
    assert asked(engine).messages[3] == ChatMessage(Role.ASSISTANT, "Zwei, in fact", None)


def test_an_edit_too_long_for_the_context_goes_into_the_draft_and_the_old_branch_is_back(session, store, chat):
    request_id = session.turns.edit(chat, ids(store, chat)[2], "long " * 9)
    session.handle(failed(request_id, ContextOverflowError("Too long."), chat))
    assert texts(store, chat) == ["one", "ONE", "two", "TWO"]
    assert store.conversation(chat).draft.text == "long " * 9
    assert store.conversation(chat).title == "one"


def test_an_edit_to_nothing_is_refused(session, store, chat):
    with pytest.raises(EmptyMessageError):
        session.turns.edit(chat, ids(store, chat)[2], " \n")
    assert texts(store, chat) == ["one", "ONE", "two", "TWO"]


# going on


@pytest.fixture
def stopped(session, store, chat) -> str:
    request_id = session.turns.send(chat, "three")
    session.handle(text_arrived(request_id, "THR", 8))
    session.handle(finished(request_id, "THR", 8, reason=FinishReason.CANCELLED))
    return chat


def test_a_stopped_reply_goes_on_where_it_was_cut(session, store, engine, stopped):
    request_id = session.turns.continue_reply(stopped)
    assert asked(engine).continues
    assert asked(engine).messages[-1] == ChatMessage(Role.ASSISTANT, "THR", (8,))
    assert store.messages(stopped)[-1].state is MessageState.STREAMING
    session.handle(text_arrived(request_id, "E", 9))
    assert texts(store, stopped)[-1] == "THRE"
    session.handle(finished(request_id, "EE", 9, 10))
    reply = store.messages(stopped)[-1]
    assert (reply.text, reply.token_ids, reply.finish_reason) == ("THREE", (8, 9, 10), FinishReason.STOP)


def test_a_reply_whose_ids_were_lost_goes_on_from_its_text(session, store, engine, chat):
    session.turns.send(chat, "three")
    session.handle(text_arrived(asked(engine).request_id, "THR", 8))
    session.close()
    request_id = session.turns.continue_reply(chat)
    assert asked(engine).messages[-1] == ChatMessage(Role.ASSISTANT, "THR", None)
    session.handle(finished(request_id, "EE", 9, 10))
    assert (store.messages(chat)[-1].text, store.messages(chat)[-1].token_ids) == ("THREE", None)


def test_going_on_that_fails_leaves_the_reply_as_it_was(session, store, stopped):
    before = store.messages(stopped)
    session.handle(failed(session.turns.continue_reply(stopped), ContextOverflowError("Full."), stopped))
    assert store.messages(stopped) == before


def test_closing_amid_going_on_keeps_both_parts(session, store, stopped):
    request_id = session.turns.continue_reply(stopped)
    session.handle(text_arrived(request_id, "E", 9))
    session.close()
    reply = store.messages(stopped)[-1]
    assert (reply.text, reply.state, reply.finish_reason) == ("THRE", MessageState.COMPLETE, FinishReason.CANCELLED)


def test_a_whole_reply_and_an_empty_chat_have_nothing_to_go_on_with(session, chat):
    for conversation_id in (chat, session.new_conversation().id):
        with pytest.raises(NothingToContinueError):
            session.turns.continue_reply(conversation_id)


# deleting, and copies


@pytest.mark.parametrize(("and_below", "left"), [(False, ["one", "ONE", "TWO"]), (True, ["one", "ONE"])])
def test_deleting_a_message_can_be_undone(session, store, engine, chat, and_below, left):
    before = store.tree(chat)
    removed = session.delete_message(chat, ids(store, chat)[2], and_below=and_below)
    assert texts(store, chat) == left
    session.undo_delete(chat, removed)
    assert store.tree(chat) == before
    session.turns.send(chat, "three")
    assert given(engine) == ["one", "ONE", "two", "TWO", "three"]


def test_nothing_is_changed_while_a_reply_comes(session, store, chat):
    first, *_, last = ids(store, chat)
    session.turns.send(chat, "three")
    before = store.tree(chat)
    for refused in (
        lambda: session.turns.regenerate(chat, last),
        lambda: session.turns.edit(chat, first, "eins"),
        lambda: session.turns.continue_reply(chat),
        lambda: session.show_version(chat, first),
        lambda: session.delete_message(chat, first, and_below=True),
    ):
        with pytest.raises(BusyError):
            refused()
    assert store.tree(chat) == before


def test_a_chat_from_here_holds_the_way_to_there_and_goes_on_with_the_same_ids(session, store, engine, chat):
    copy = store.duplicate_conversation(chat, until=ids(store, chat)[1])
    assert texts(store, copy.id) == ["one", "ONE"]
    session.turns.send(copy.id, "other")
    assert asked(engine).messages[1] == ChatMessage(Role.ASSISTANT, "ONE", (1, 2))
    assert texts(store, chat) == ["one", "ONE", "two", "TWO"]


# what leaves the model's view


def test_what_left_the_view_is_not_sent_again_and_the_system_prompt_stays(session, store, engine):
    conversation_id = session.new_conversation("Be brief.").id
    for text in ("one", "two"):
        session.handle(finished(session.turns.send(conversation_id, text), text.upper(), 1))
    request_id = session.turns.send(conversation_id, "three")
    session.handle(ViewMoved(conversation_id, request_id, 2, 100))
    session.handle(finished(request_id, "THREE", 1))
    assert store.conversation(conversation_id).view_from == ids(store, conversation_id)[2]
    session.turns.send(conversation_id, "four")
    assert given(engine) == ["Be brief.", "two", "TWO", "three", "THREE", "four"]


def test_a_view_moved_ahead_for_the_next_turn_may_leave_only_the_last_reply(session, store, engine, chat):
    request_id = asked(engine).request_id
    session.handle(ViewMoved(chat, request_id, 2, 100, is_ahead=True))
    session.turns.send(chat, "three")
    assert given(engine) == ["two", "TWO", "three"]


def test_a_late_or_foreign_view_changes_nothing(session, store, engine, chat):
    session.handle(ViewMoved(chat, "another request", 2, 100))
    session.handle(ViewMoved("another chat", asked(engine).request_id, 2, 100))
    session.handle(ViewMoved(chat, asked(engine).request_id, 99, 100))
    assert store.conversation(chat).view_from is None


def test_a_branch_that_ends_before_the_view_is_seen_whole(session, store, engine, chat):
    session.handle(ViewMoved(chat, asked(engine).request_id, 2, 100))
    session.turns.edit(chat, ids(store, chat)[0], "eins")
    assert given(engine) == ["eins"]


# a conversation's own ways


def test_a_conversation_draws_replies_in_its_own_way(session, engine):
    conversation_id = session.new_conversation(options=ChatOptions(temperature=0.0, max_new_tokens=5)).id
    session.turns.send(conversation_id, "Hello")
    assert asked(engine).sampling == dataclasses.replace(Settings().sampling(), temperature=0.0)
    assert asked(engine).max_new_tokens == 5


def test_the_policy_of_the_settings_goes_along(session, engine, chat):
    session.settings_changed(Settings(context_policy=ContextPolicy.COMPRESS))
    session.turns.send(chat, "three")
    assert asked(engine).on_overflow is ContextPolicy.COMPRESS


def test_files_are_read_before_the_words_in_a_fence_that_they_cannot_close(session, store, engine):
    conversation_id = session.new_conversation().id
    nested = Attachment("a.md", "text\n````\ncode\n````", 20)
    session.turns.send(conversation_id, Draft("", (nested,)))
    assert given(engine) == ["a.md:\n`````\ntext\n````\ncode\n````\n`````"]
    assert store.conversation(conversation_id).title == "a.md"


def test_a_conversation_with_a_model_of_its_own_loads_it_and_the_next_one_goes_back(store, engine):
    loads: list[str] = []
    session = ChatSession(store, engine, Settings(model="usual"), find_model=lambda name: Path("models") / name)
    session.on_load = loads.append
    request_id = session.load_model(Path("models/usual"), Weights.BITS_16)
    session.handle(ModelLoaded(request_id, a_model("usual")))
    own, other = session.new_conversation(model="special").id, session.new_conversation().id
    session.turns.send(own, "Hello")
    paths = [command.path.name for command in engine.commands if isinstance(command, LoadModel)]
    assert (paths, len(engine.generated)) == (["usual", "special"], 0)
    session.handle(ModelLoaded(loads[0], a_model("special")))
    session.handle(finished(asked(engine).request_id, "Hi", 1))
    session.turns.send(own, "again")
    assert len(loads) == 1
    session.turns.send(other, "Hello")
    assert len(loads) == 2
    assert [c.path.name for c in engine.commands if isinstance(c, LoadModel)] == ["usual", "special", "usual"]


def test_a_conversation_whose_own_model_is_gone_says_so_and_keeps_the_message(store, engine):
    def find(name: str) -> Path:
        if name == "gone":
            raise ModelNotFoundError("There is no model gone.", path="gone")
        return Path("models") / name

    session = ChatSession(store, engine, Settings(model="usual"), find_model=find)
    session.load_model(Path("models/usual"), Weights.BITS_16)
    conversation_id = session.new_conversation(model="gone").id
    with pytest.raises(EngineFailedError, match="no model gone"):
        session.turns.send(conversation_id, "Hello")
    assert texts(store, conversation_id) == []


# incognito


def test_an_incognito_conversation_tells_the_engine_to_keep_nothing(session, store, engine, chat):
    secret = session.new_conversation(is_incognito=True).id
    session.handle(finished(session.turns.send(secret, "psst"), "ok", 1))
    session.handle(finished(session.turns.regenerate(secret, ids(store, secret)[1]), "ok!", 1))
    assert [command.is_incognito for command in engine.generated[-2:]] == [True, True]
    session.turns.send(chat, "three")
    assert not asked(engine).is_incognito


# what it would cost


def test_an_estimate_sends_what_sending_would(session, store, engine, chat):
    draft = Draft("three", (Attachment("a.txt", "file", 4),))
    request_id = session.costs.estimate(chat, draft)
    estimate = engine.commands[-1]
    assert isinstance(estimate, Estimate)
    session.turns.send(chat, draft)
    sent = asked(engine)
    assert estimate == Estimate(
        chat, request_id, sent.messages, sent.started_on, sent.branch, sent.on_overflow, sent.max_new_tokens
    )


def test_an_estimate_of_a_new_chat_begins_with_the_system_prompt_of_the_settings(session, engine):
    session.settings_changed(Settings(system_prompt="Be kind."))
    session.costs.estimate(None, Draft("Hello"))
    estimate = engine.commands[-1]
    assert isinstance(estimate, Estimate)
    assert [message.text for message in estimate.messages] == ["Be kind.", "Hello"]
    request_id = session.costs.count_tokens(("a", "b\ud800"))
    assert engine.commands[-1] == CountTokens(request_id, ("a", "b\ufffd"))
