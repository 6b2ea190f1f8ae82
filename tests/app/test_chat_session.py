from __future__ import annotations

import random
from pathlib import Path

import pytest

from app.chat_session import ChatSession
from app.conversation import Draft, MessageState
from app.conversation_store import IN_MEMORY, ConversationStore
from app.errors import (
    BusyError,
    CompressingError,
    DiskFullError,
    EmptyMessageError,
    NothingToCompressError,
    StorageError,
    UnknownConversationError,
    UserError,
)
from app.settings import Settings
from engine.protocol.commands import (
    ChatMessage,
    Compress,
    CompressMethod,
    Forget,
    ForgetUnknown,
    Generate,
    LoadModel,
    Pin,
    Role,
    Undo,
    Verify,
)
from engine.protocol.config import GREEDY, Weights
from engine.protocol.errors import ContextOverflowError, GenerationError, ModelDamagedError
from engine.protocol.events import (
    CacheReported,
    Compressed,
    EngineStopped,
    Event,
    Failed,
    FinishReason,
    LoadStage,
    ModelLoaded,
    ModelLoading,
    Phase,
    PhaseChanged,
    SnapshotNotSaved,
    SnapshotSaved,
)
from tests.fakes import SilentEngine, a_model, failed, finished, some_statistics, text_arrived


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(data_dir: Path):
    store = ConversationStore(data_dir / "ember.db")
    yield store
    store.close()


@pytest.fixture
def engine() -> SilentEngine:
    return SilentEngine()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[StorageError]:
    return []


@pytest.fixture
def session(store, engine, clock, told) -> ChatSession:
    session = ChatSession(store, engine, Settings(), on_storage_error=told.append, clock=clock)
    load(session)
    engine.commands.clear()
    return session


def load(session: ChatSession, tokenizer_id: str = "tokenizer-1", name: str = "tiny") -> None:
    request_id = session.load_model(Path("models") / name, Weights.BITS_16)
    session.handle(ModelLoaded(request_id, a_model(name, tokenizer_id)))


def texts(store: ConversationStore, conversation_id: str) -> list[str]:
    return [message.text for message in store.messages(conversation_id)]


def test_a_message_is_stored_before_the_engine_hears_of_it(session, store, engine):
    conversation = session.new_conversation("Be brief.")
    on_disk_then: list[list[str]] = []
    engine.submit = lambda command: on_disk_then.append(texts(store, conversation.id))
    session.turns.send(conversation.id, "Hello")
    assert on_disk_then == [["Hello", ""]]


def test_the_engine_gets_the_history_and_the_settings(session, store, engine):
    conversation = session.new_conversation("Be brief.")
    request_id = session.turns.send(conversation.id, "Hello")
    (command,) = engine.generated
    assert command == Generate(
        conversation.id,
        request_id,
        (ChatMessage(Role.SYSTEM, "Be brief."), ChatMessage(Role.USER, "Hello")),
        Settings().sampling(),
        Settings().max_new_tokens,
        started_on=conversation.created_at.astimezone().date(),
        on_overflow=Settings().context_policy,
    )
    (_, reply) = store.messages(conversation.id)
    assert (reply.role, reply.state, reply.model) == (Role.ASSISTANT, MessageState.STREAMING, "tiny")


def test_changed_settings_and_those_of_the_call_are_used(session, engine):
    session.settings_changed(Settings(temperature=0.1, max_new_tokens=7))
    session.turns.send(session.new_conversation().id, "a")
    session.turns.send(session.new_conversation().id, "b", sampling=GREEDY, max_new_tokens=3)
    first, second = engine.generated
    assert (first.sampling.temperature, first.max_new_tokens) == (0.1, 7)
    assert (second.sampling, second.max_new_tokens) == (GREEDY, 3)


def test_a_finished_reply_is_stored_and_its_ids_are_fed_again(session, store, engine):
    conversation = session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")
    session.handle(text_arrived(request_id, "Hi", 5))
    session.handle(finished(request_id, "Hi!", 5, 6))
    reply = store.messages(conversation.id)[1]
    assert (reply.text, reply.token_ids, reply.tokenizer_id) == ("Hi!", (5, 6), "tokenizer-1")
    assert (reply.state, reply.finish_reason) == (MessageState.COMPLETE, FinishReason.STOP)
    assert reply.statistics == some_statistics(2)
    assert not session.is_busy(conversation.id)
    session.turns.send(conversation.id, "And now?")
    assert engine.generated[-1].messages == (
        ChatMessage(Role.USER, "Hello"),
        ChatMessage(Role.ASSISTANT, "Hi!", (5, 6)),
        ChatMessage(Role.USER, "And now?"),
    )


def test_ids_are_not_fed_to_a_model_with_another_tokenizer(session, engine):
    conversation = session.new_conversation()
    session.handle(finished(session.turns.send(conversation.id, "Hello"), "Hi!", 5, 6))
    load(session, tokenizer_id="tokenizer-2", name="other")
    session.turns.send(conversation.id, "And now?")
    assert engine.generated[-1].messages[1] == ChatMessage(Role.ASSISTANT, "Hi!", None)


def test_ids_that_do_not_match_the_text_are_not_kept(session, store):
    conversation = session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")
    session.handle(finished(request_id, "cut", 5, 6, ids_match_text=False))
    reply = store.messages(conversation.id)[1]
    assert (reply.token_ids, reply.tokenizer_id) == (None, None)


def test_a_reply_is_kept_about_once_a_second_while_it_comes(session, store, clock):
    conversation = session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")
    kept = []
    for part in ("a", "b", "c", "d"):
        session.handle(text_arrived(request_id, part, 1))
        kept.append(texts(store, conversation.id)[1])
        clock.now += 0.6
    assert kept == ["a", "a", "abc", "abc"]
    assert store.messages(conversation.id)[1].state is MessageState.STREAMING


def test_the_title_is_the_first_line_of_the_first_message(session, store):
    conversation = session.new_conversation()
    session.handle(finished(session.turns.send(conversation.id, "\n  값을\t읽다 \nsecond line"), "ok", 1))
    session.turns.send(conversation.id, "Another")
    assert store.conversation(conversation.id).title == "값을 읽다"


def test_sending_empties_the_draft(session, store):
    conversation = session.new_conversation()
    store.set_draft(conversation.id, Draft("Hel"))
    session.turns.send(conversation.id, "Hello")
    assert store.conversation(conversation.id).draft.text == ""


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000"])
def test_an_empty_message_is_refused_and_nothing_changes(session, store, engine, text):
    conversation = session.new_conversation()
    with pytest.raises(EmptyMessageError):
        session.turns.send(conversation.id, text)
    assert texts(store, conversation.id) == []
    assert engine.commands == []


def test_a_conversation_that_answers_takes_no_second_message(session, store, engine):
    conversation, other = session.new_conversation(), session.new_conversation()
    session.turns.send(conversation.id, "one")
    with pytest.raises(BusyError):
        session.turns.send(conversation.id, "two")
    session.turns.send(other.id, "elsewhere")
    assert texts(store, conversation.id) == ["one", ""]
    assert len(engine.generated) == 2


def test_sending_to_an_unknown_conversation_is_refused(session, engine):
    with pytest.raises(UnknownConversationError):
        session.turns.send("nope", "Hello")
    assert engine.commands == []


def test_half_characters_do_not_reach_the_database(session, store, engine):
    conversation = session.new_conversation()
    session.turns.send(conversation.id, "a\ud83c b \ud83c\udf4a")
    assert texts(store, conversation.id)[0] == "a\ufffd b 🍊"
    assert engine.generated[0].messages[0].text == "a\ufffd b 🍊"


def test_a_reply_waits_for_the_model_that_is_being_loaded(store, engine):
    session = ChatSession(store, engine, Settings())
    conversation = session.new_conversation()
    load_id = session.load_model(Path("models/tiny"), Weights.BITS_8)
    request_id = session.turns.send(conversation.id, "Hello")
    assert engine.commands[1:] == [LoadModel(load_id, Path("models/tiny"), Weights.BITS_8)]
    assert session.is_busy(conversation.id)
    session.handle(ModelLoading(load_id, LoadStage.WEIGHTS, None))
    session.handle(ModelLoaded(load_id, a_model()))
    assert [command.request_id for command in engine.generated] == [request_id]
    session.handle(finished(request_id, "Hi", 1))
    assert store.messages(conversation.id)[1].tokenizer_id == "tokenizer-1"


def test_a_reply_stopped_while_it_waits_is_cancelled_once_it_is_asked_for(store, engine):
    session = ChatSession(store, engine, Settings())
    conversation = session.new_conversation()
    load_id = session.load_model(Path("models/tiny"), Weights.BITS_16)
    request_id = session.turns.send(conversation.id, "Hello")
    session.stop(conversation.id)
    engine.cancelled.clear()
    session.handle(ModelLoaded(load_id, a_model()))
    assert [command.request_id for command in engine.generated] == [request_id]
    assert engine.cancelled == [request_id]


def test_a_reply_whose_model_cannot_be_loaded_is_left_to_the_engine_to_fail(store, engine):
    session = ChatSession(store, engine, Settings())
    conversation = session.new_conversation()
    load_id = session.load_model(Path("models/tiny"), Weights.BITS_16)
    request_id = session.turns.send(conversation.id, "Hello")
    session.handle(failed(load_id, ModelDamagedError("The file is cut short.")))
    assert [command.request_id for command in engine.generated] == [request_id]
    session.handle(Failed(request_id, conversation.id, "no_model_loaded", "No model."))
    assert texts(store, conversation.id) == ["Hello"]
    assert not session.is_busy(conversation.id)


def test_a_model_that_cannot_be_loaded_leaves_none(session):
    assert session.model is not None
    load_id = session.load_model(Path("models/broken"), Weights.BITS_16)
    session.handle(failed(load_id, ModelDamagedError("Broken.")))
    assert session.model is None


def test_a_message_longer_than_the_context_goes_back_to_the_draft(session, store):
    conversation = session.new_conversation()
    request_id = session.turns.send(conversation.id, "A very long message")
    session.handle(failed(request_id, ContextOverflowError("Too long."), conversation.id))
    kept = store.conversation(conversation.id)
    assert (kept.draft.text, kept.title, kept.num_messages) == ("A very long message", "", 0)
    assert not session.is_busy(conversation.id)


def test_a_message_that_goes_back_stands_before_what_was_typed_since(session, store):
    conversation = session.new_conversation()
    session.handle(finished(session.turns.send(conversation.id, "first"), "ok", 1))
    request_id = session.turns.send(conversation.id, "long")
    store.set_draft(conversation.id, Draft("typed since"))
    session.handle(failed(request_id, ContextOverflowError("Too long."), conversation.id))
    kept = store.conversation(conversation.id)
    assert (kept.draft.text, kept.title) == ("long\ntyped since", "first")
    assert texts(store, conversation.id) == ["first", "ok"]


def test_a_failure_before_any_text_keeps_the_message_alone(session, store, engine):
    conversation = session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")
    session.handle(failed(request_id, GenerationError("Broken."), conversation.id))
    assert texts(store, conversation.id) == ["Hello"]
    session.turns.send(conversation.id, "Again")
    assert engine.generated[-1].messages == (ChatMessage(Role.USER, "Hello\n\nAgain"),)


def test_a_failure_in_the_middle_keeps_what_had_come(session, store, clock):
    conversation = session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")
    for part in ("half ", "a reply"):
        session.handle(text_arrived(request_id, part, 1))
    session.handle(failed(request_id, GenerationError("Broken."), conversation.id))
    reply = store.messages(conversation.id)[1]
    assert (reply.text, reply.finish_reason, reply.state) == (
        "half a reply",
        FinishReason.CANCELLED,
        MessageState.COMPLETE,
    )


def test_stopping_cancels_the_request_and_keeps_an_empty_reply(session, store, engine):
    conversation = session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")
    session.stop(conversation.id)
    assert engine.cancelled == [request_id]
    assert session.is_busy(conversation.id)
    session.handle(finished(request_id, "", reason=FinishReason.CANCELLED))
    reply = store.messages(conversation.id)[1]
    assert (reply.text, reply.finish_reason) == ("", FinishReason.CANCELLED)
    session.stop(conversation.id)
    assert engine.cancelled == [request_id]


def test_deleting_a_conversation_that_answers_cancels_and_forgets_it(session, store, engine):
    conversation, other = session.new_conversation(), session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")
    session.delete(conversation.id)
    assert engine.cancelled == [request_id]
    assert engine.commands[-1] == Forget(conversation.id)
    session.handle(text_arrived(request_id, "late", 1))
    session.handle(finished(request_id, "late", 1, conversation_id=conversation.id))
    assert [entry.id for entry in store.conversations()] == [other.id]


def test_the_engine_hears_of_pins_before_it_loads_and_whenever_they_change(store, engine):
    kept, other = store.create_conversation().id, store.create_conversation().id
    store.set_pinned(kept, True)
    session = ChatSession(store, engine, Settings())
    load(session)
    assert [type(command) for command in engine.commands] == [ForgetUnknown, Pin, LoadModel]
    load(session)
    session.set_pinned(kept, True)
    session.set_pinned(other, True)
    session.delete(kept)
    session.set_pinned(other, False)
    pins = [command.conversation_ids for command in engine.commands if isinstance(command, Pin)]
    assert pins == [{kept}, {kept, other}, {other}, frozenset()]


def test_pins_that_cannot_be_read_do_not_keep_a_model_from_loading(store, engine, monkeypatch, caplog):
    def fail() -> frozenset[str]:
        raise StorageError("The disk is gone.")

    monkeypatch.setattr(store, "pinned_ids", fail)
    load(ChatSession(store, engine, Settings()))
    assert [type(command) for command in engine.commands] == [ForgetUnknown, LoadModel]
    assert "The disk is gone." in caplog.text


def test_deletions_that_were_cut_off_are_finished_before_the_first_model_and_never_by_an_incognito_chat(store, engine):
    known = {store.create_conversation().id, store.create_conversation().id}
    session = ChatSession(store, engine, Settings())
    load(session)
    load(session)
    load(ChatSession(ConversationStore(IN_MEMORY), engine, Settings()))
    assert [command for command in engine.commands if isinstance(command, ForgetUnknown)] == [ForgetUnknown(known)]
    assert isinstance(engine.commands[0], ForgetUnknown)


def test_chats_of_a_store_in_memory_are_incognito(engine):
    store = ConversationStore(IN_MEMORY)
    session = ChatSession(store, engine, Settings())
    load(session)
    request_id = session.turns.send(session.new_conversation().id, "secret")
    session.handle(finished(request_id, "Hush", 1))
    session.turns.send(store.conversations()[0].id, "again")
    assert [command.is_incognito for command in engine.generated] == [True, True]
    assert [message.text for message in engine.generated[-1].messages] == ["secret", "Hush", "again"]
    store.close()


def test_stale_and_doubled_events_change_nothing(session, store):
    conversation = session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")
    session.handle(finished(request_id, "Hi", 1))
    before = store.messages(conversation.id)
    for event in (
        text_arrived(request_id, "late", 2),
        finished(request_id, "twice", 2),
        failed(request_id, ContextOverflowError("late"), conversation.id),
        failed("unknown", GenerationError("?"), conversation.id),
        finished("unknown", "?", 1, conversation_id=conversation.id),
    ):
        session.handle(event)
    assert store.messages(conversation.id) == before


def test_verifying_sends_the_history(session, engine):
    conversation = session.new_conversation()
    session.handle(finished(session.turns.send(conversation.id, "Hello"), "Hi", 1))
    request_id = session.cache.verify(conversation.id)
    command = engine.commands[-1]
    assert isinstance(command, Verify)
    assert command.request_id == request_id
    assert [message.token_ids for message in command.messages] == [None, (1,)]


def test_compressing_and_its_undo_send_the_history_and_end_with_their_answer(session, engine):
    conversation = session.new_conversation()
    session.handle(finished(session.turns.send(conversation.id, "Hello"), "Hi", 1))
    request_id = session.cache.compress(conversation.id, keep=0.5, method=CompressMethod.STREAMING)
    command = engine.commands[-1]
    assert isinstance(command, Compress)
    assert (command.request_id, command.keep, command.method, command.is_int8) == (request_id, 0.5, "streaming", False)
    assert [message.token_ids for message in command.messages] == [None, (1,)]
    assert session.is_compressing(conversation.id)
    assert not session.is_busy(conversation.id)
    for refused in (
        lambda: session.turns.send(conversation.id, "And?"),
        lambda: session.cache.compress(conversation.id, keep=0.3),
        lambda: session.cache.undo_compression(conversation.id),
    ):
        with pytest.raises(CompressingError):
            refused()
    session.handle(Compressed(conversation.id, request_id, 12, 0.5, "streaming", 100, 50, 0.1))
    assert not session.is_compressing(conversation.id)
    undo_id = session.cache.undo_compression(conversation.id)
    assert isinstance(engine.commands[-1], Undo)
    session.handle(failed(undo_id, GenerationError("Broken."), conversation.id))
    assert not session.is_compressing(conversation.id)


def test_compressing_is_refused_while_a_reply_comes_and_of_an_empty_conversation(session, engine):
    conversation = session.new_conversation()
    with pytest.raises(NothingToCompressError):
        session.cache.compress(conversation.id, keep=0.3)
    session.turns.send(conversation.id, "Hello")
    with pytest.raises(BusyError):
        session.cache.compress(conversation.id, keep=0.3)
    assert not any(isinstance(command, Compress) for command in engine.commands)


def test_stopping_deleting_and_the_end_of_the_engine_end_compressing(session, engine):
    conversation, other = session.new_conversation(), session.new_conversation()
    for one in (conversation, other):
        session.handle(finished(session.turns.send(one.id, "Hello"), "Hi", 1))
    first, second = (session.cache.compress(one.id, keep=0.3) for one in (conversation, other))
    session.stop(conversation.id)
    assert engine.cancelled == [first]
    assert session.is_compressing(conversation.id)  # until the engine says so
    session.delete(other.id)
    assert engine.cancelled == [first, second]
    session.handle(EngineStopped())
    assert not session.is_compressing(conversation.id)


def test_closing_keeps_what_has_come_as_cancelled(session, store, clock):
    conversation = session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")
    session.handle(text_arrived(request_id, "half", 1))
    session.handle(text_arrived(request_id, " a reply", 2))
    session.close()
    reply = store.messages(conversation.id)[1]
    assert (reply.text, reply.state, reply.finish_reason) == (
        "half a reply",
        MessageState.COMPLETE,
        FinishReason.CANCELLED,
    )


def test_an_engine_that_stops_leaves_no_reply_open(session, store):
    conversation = session.new_conversation()
    session.turns.send(conversation.id, "Hello")
    session.handle(EngineStopped())
    assert not session.is_busy(conversation.id)
    assert session.model is None
    assert store.messages(conversation.id)[1].finish_reason is FinishReason.CANCELLED


def test_nothing_is_asked_where_the_message_cannot_be_stored(session, store, engine, monkeypatch):
    conversation = session.new_conversation()
    store.set_draft(conversation.id, Draft("Hello"))
    real = store.add_message

    def fill_up_at_the_reply(conversation_id, role, text, **options):
        if role is Role.ASSISTANT:
            raise DiskFullError("No space is left.")
        return real(conversation_id, role, text, **options)

    monkeypatch.setattr(store, "add_message", fill_up_at_the_reply)
    with pytest.raises(DiskFullError):
        session.turns.send(conversation.id, "Hello")
    assert engine.commands == []
    assert texts(store, conversation.id) == []
    assert (store.conversation(conversation.id).draft.text, store.conversation(conversation.id).title) == ("Hello", "")
    assert not session.is_busy(conversation.id)


def test_a_reply_that_cannot_be_stored_is_told_once_and_stored_later(session, store, clock, told, monkeypatch):
    conversation, other = session.new_conversation(), session.new_conversation()
    request_id = session.turns.send(conversation.id, "Hello")

    def full(*positional, **named):
        raise DiskFullError("No space is left.")

    with monkeypatch.context() as disk:
        disk.setattr(store, "update_reply", full)
        disk.setattr(store, "finish_reply", full)
        for part in ("a", "b", "c"):
            session.handle(text_arrived(request_id, part, 1))
            clock.now += 2
        session.handle(finished(request_id, "abc", 1, 1, 1))
        assert [str(error) for error in told] == ["No space is left."]
        with pytest.raises(DiskFullError):
            session.turns.send(other.id, "Another")
    session.turns.send(other.id, "Another")
    assert store.messages(conversation.id)[1].text == "abc"


@pytest.mark.parametrize("seed", range(100))
def test_no_order_of_events_and_wishes_breaks_the_store(store, engine, clock, told, seed):
    """Stale, doubled and misaddressed events between every use case; the store is consistent at the end."""
    chance = random.Random(seed)
    session = ChatSession(store, engine, Settings(), on_storage_error=told.append, clock=clock)
    requests = ["never asked for"]
    conversations = ["never made"]
    for _ in range(60):
        clock.now += chance.random()
        known, request_id = chance.choice(conversations), chance.choice(requests)
        try:
            match chance.randrange(9):
                case 0:
                    conversations.append(session.new_conversation(chance.choice(["", "Be brief."])).id)
                case 1 | 2:
                    requests.append(session.turns.send(known, chance.choice(["Hello", "안녕", " "])))
                case 3:
                    session.stop(known)
                case 4:
                    session.delete(known) if chance.random() < 0.3 else store.set_draft(known, Draft("draft"))
                case 5:
                    requests.append(session.load_model(Path(f"models/{chance.randrange(3)}"), Weights.BITS_16))
                case _:
                    session.handle(_any_event(chance, known, request_id))
        except UserError:
            pass
    session.close()
    assert told == []
    for conversation in store.conversations():
        messages = store.messages(conversation.id)
        assert all(message.state is MessageState.COMPLETE for message in messages)
        replies = [number for number, message in enumerate(messages) if message.role is Role.ASSISTANT]
        assert all(messages[number - 1].role is Role.USER for number in replies), "a reply follows its question"
        assert 0 not in replies
        assert all(messages[number].finish_reason is not None for number in replies)
        assert bool(conversation.title) == bool(messages)
    session.handle(ModelLoaded(session.load_model(Path("models/last"), Weights.BITS_16), a_model()))
    last = session.new_conversation()
    session.handle(finished(session.turns.send(last.id, "Still alive?"), "Yes.", 1))
    assert texts(store, last.id) == ["Still alive?", "Yes."]


def _any_event(chance: random.Random, conversation_id: str, request_id: str) -> Event:
    told = (conversation_id, request_id)
    return chance.choice(
        [
            ModelLoading(request_id, LoadStage.TOKENIZER, None),
            ModelLoaded(request_id, a_model()),
            PhaseChanged(*told, Phase.PREFILL, 1, 2, None),
            text_arrived(request_id, chance.choice(["", "글", "x" * 50]), 1, 2, conversation_id=conversation_id),
            text_arrived(request_id, "more", 3, conversation_id=conversation_id),
            finished(request_id, "whole", 1, 2, conversation_id=conversation_id),
            finished(request_id, "", reason=FinishReason.CANCELLED, conversation_id=conversation_id),
            failed(request_id, ContextOverflowError("Too long."), conversation_id),
            failed(request_id, GenerationError("Broken."), None),
            SnapshotSaved(*told, 1, 2, 3, 0.1),
            SnapshotNotSaved(*told, "full"),
            CacheReported(request_id, 0, 0, 0, 0, 0.0, ()),
            EngineStopped(),
        ]
    )
