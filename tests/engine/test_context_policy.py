"""A chat that has grown to the length its model reads: refused with the numbers, or its oldest turns leave the view."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import context_view
from engine.protocol.commands import ChatMessage, Generate, Role
from engine.protocol.config import GREEDY, ContextPolicy
from engine.protocol.events import Failed, Finished, ViewMoved
from tests.engine.conftest import ColdReply, Engine, user

StartEngine = Callable[..., Engine]
DROP = ContextPolicy.DROP_OLDEST
SYSTEM = ChatMessage(Role.SYSTEM, "answer briefly")
CONTEXT = 512


def digits(num_tokens: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice("0123456789") for _ in range(num_tokens))


def moves(engine: Engine) -> list[ViewMoved]:
    return [event for event in engine.events if isinstance(event, ViewMoved)]


def without(messages: list[ChatMessage], num_dropped: int) -> list[ChatMessage]:
    """What a program sends after it was told."""
    system = [one for one in messages if one.role is Role.SYSTEM]
    return system + [one for one in messages if one.role is not Role.SYSTEM][num_dropped:]


def prompt_of(engine: Engine, conversation: str = "a") -> str:
    model, caches = engine.runtime._loaded()
    resident = caches.resident(conversation)
    assert resident is not None
    return str(model.tokenizer.decode(resident.token_ids))


def test_a_full_chat_goes_on_for_many_turns_and_reads_little(
    start_engine: StartEngine, tiny_model: Path, cold_reply: ColdReply
) -> None:
    engine = start_engine(tiny_model)
    messages = [SYSTEM, user(digits(390, 1))]
    engine.reply("a", messages, on_overflow=DROP)
    fed: list[int] = []
    for number in range(9):
        messages.append(user(digits(20, number + 2)))
        engine.events.clear()
        told = engine.estimate("a", messages, on_overflow=DROP, max_new_tokens=12)
        finished = engine.reply("a", messages, on_overflow=DROP)
        statistics = finished.statistics
        assert told.prompt_tokens == statistics.prompt_tokens < CONTEXT - 12
        assert told.new_tokens == statistics.prefilled_tokens
        assert told.num_dropped == sum(move.num_dropped for move in moves(engine) if not move.is_ahead)
        assert statistics.miss_code is None
        assert "<|start|>system\nanswer briefly" in prompt_of(engine)
        fed.append(statistics.prefilled_tokens)
        engine.report()
        if moves(engine):
            messages = without(messages, moves(engine)[-1].num_dropped)
    assert max(fed) < 64
    assert finished.token_ids == cold_reply(tiny_model, messages[:-1]).token_ids or moves(engine)


def test_a_request_that_overflows_is_moved_and_told(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [SYSTEM]
    for number in range(6):
        messages += [user(digits(60, number)), ChatMessage(Role.ASSISTANT, digits(20, number))]
    messages.append(user("and now?"))
    told = engine.estimate("a", messages, on_overflow=DROP)
    assert told.fits
    finished = engine.reply("a", messages, on_overflow=DROP)
    (move,) = [move for move in moves(engine) if not move.is_ahead]
    assert move.num_dropped == told.num_dropped > 0
    assert move.num_dropped % 2 == 0
    assert move.tokens == finished.statistics.prompt_tokens == told.prompt_tokens <= CONTEXT // 2
    assert finished.statistics.prefilled_tokens == told.new_tokens
    assert digits(60, 0) not in prompt_of(engine)
    assert digits(60, 5) in prompt_of(engine)


def test_after_a_move_the_next_ones_are_far_away(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user(digits(200))]
    num_moves = 0
    for number in range(14):
        engine.events.clear()
        engine.reply("a", messages, on_overflow=DROP)
        engine.report()
        if moves(engine):
            num_moves += 1
            messages = without(messages, moves(engine)[-1].num_dropped)
        messages.append(user(digits(30, number)))
    assert 1 <= num_moves <= 4


def test_the_view_is_moved_ahead_and_read_while_nobody_waits(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [SYSTEM]
    for number in range(3):
        messages += [user(digits(50, number)), ChatMessage(Role.ASSISTANT, digits(20, number))]
    room = CONTEXT - 50 - engine.estimate("a", [*messages, user("")]).prompt_tokens
    messages.append(user(digits(room // 2)))
    messages += [ChatMessage(Role.ASSISTANT, "y"), user("z")]
    room = CONTEXT - 50 - engine.estimate("a", messages).prompt_tokens
    messages[-1] = user(digits(room))
    finished = engine.reply("a", messages, on_overflow=DROP, max_new_tokens=30)
    engine.report()
    assert finished.statistics.prompt_tokens < CONTEXT - 30
    (move,) = moves(engine)
    assert move.is_ahead
    messages = [*without(messages, move.num_dropped), user("next")]
    following = engine.reply("a", messages, on_overflow=DROP, max_new_tokens=30)
    assert following.statistics.prefilled_tokens < 24
    assert following.statistics.reused_tokens >= move.tokens - 4


def test_what_cannot_be_compressed_and_moved_together_leaves_the_view_and_says_so(
    start_engine: StartEngine, tiny_model: Path
) -> None:
    engine = start_engine(tiny_model)
    messages = [user(digits(250)), ChatMessage(Role.ASSISTANT, "y"), user(digits(250, 1))]
    finished = engine.reply("a", messages, on_overflow=ContextPolicy.COMPRESS)
    (move,) = [move for move in moves(engine) if not move.is_ahead]
    assert move.num_dropped == 2
    assert any("left the model's view" in note for note in finished.notes)
    plain = engine.reply("b", [user("short")], on_overflow=ContextPolicy.COMPRESS)
    assert plain.notes == ()


def test_what_does_not_fit_by_itself_is_refused_with_the_numbers(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = (SYSTEM, user("x"), ChatMessage(Role.ASSISTANT, "y"), user(digits(600)))
    assert not engine.estimate("a", messages, on_overflow=DROP).fits
    engine.worker.submit(Generate("a", "r", messages, GREEDY, 12, on_overflow=DROP))
    failed = engine.wait(Failed, Finished)
    assert isinstance(failed, Failed)
    assert failed.code == "context_overflow"
    assert failed.params["context_length"] == str(CONTEXT)
    assert 600 < int(failed.params["prompt_tokens"]) < 700
    assert moves(engine) == []


def test_a_policy_of_stopping_stops(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user(digits(300)), ChatMessage(Role.ASSISTANT, "y"), user(digits(300))]
    assert engine.fail("a", messages).code == "context_overflow"
    assert not engine.estimate("a", messages).fits
    assert engine.reply("a", messages[-1:]).statistics.prompt_tokens < CONTEXT
    assert moves(engine) == []


@pytest.mark.parametrize("num_turns", [1, 2, 3, 8, 9])
def test_the_first_view_that_is_short_enough_is_taken(num_turns: int) -> None:
    def ids_of(messages: object) -> list[int]:
        assert isinstance(messages, tuple)
        return [0] * (10 * len(messages))

    messages = [SYSTEM] + [one for _ in range(num_turns) for one in (user("q"), ChatMessage(Role.ASSISTANT, "a"))]
    for context_length in (20, 60, 120):
        view = context_view.move(messages, ids_of, context_length)
        assert view.messages[0] == SYSTEM
        assert view.messages == (SYSTEM, *messages[1 + view.num_dropped :])
        assert view.messages[1].role is Role.USER
        if num_turns > 1:
            assert view.num_dropped >= 2
        is_short = len(view.token_ids) <= context_length // 2
        assert is_short or view.num_dropped == 2 * (num_turns - 1)
        if is_short and view.num_dropped > 2:
            assert len(view.token_ids) + 20 > context_length // 2


def test_what_is_kept_free_for_a_reply() -> None:
    assert context_view.reserve(12, 512) == 12
    assert context_view.reserve(4000, 512) == 128
    assert context_view.reserve(None, 512) == 128
    assert context_view.reserve(0, 512) == context_view.reserve(1, 2) == 1
