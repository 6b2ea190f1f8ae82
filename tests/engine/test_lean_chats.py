"""Chats with the compiled step in use, through the engine: however they came to be, replies and caches are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.model.forward import ForwardPass
from engine.model.lean_weights import FAMILIES
from engine.protocol.commands import ChatMessage, Generate, Role
from engine.protocol.config import GREEDY, Sampling
from engine.protocol.events import Finished, FinishReason, TextArrived
from tests.engine import lean_models
from tests.engine.conftest import Engine, build_tokenizer, user

pytestmark = [pytest.mark.native_dtype, pytest.mark.usefixtures("compiled_kernels", "bfloat16_on_the_processor")]
StartEngine = Callable[..., Engine]
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
RING = 12


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lean_models.BY_NAME["qwen3"].save(tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture(scope="module")
def looping_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a leaning: after each token it likes the next one of a ring of twelve."""
    folder = tmp_path_factory.mktemp("models") / "looping"
    network = lean_models.BY_NAME["smollm3"].build()
    ids = torch.arange(lean_models.VOCABULARY)
    following = torch.where(ids % RING == RING - 1, ids - RING + 1, ids + 1)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(0.02)
        network.lm_head.weight.index_add_(0, following, network.get_parameter("model.embed_tokens.weight") * 2)
    network.bfloat16().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def forward_of(engine: Engine) -> ForwardPass:
    model = engine.runtime._model
    assert model is not None
    assert type(model.forward.step).__name__ == "LeanStep"
    return model.forward


def contents(engine: Engine, conversation: str) -> tuple[list[int], torch.Tensor]:
    """The ids that are cached, and their keys and values to the bit."""
    engine.report()  # by then nothing reads ahead any more
    caches = engine.runtime._caches
    cache = caches.active_cache(conversation) if caches is not None else None
    assert cache is not None
    return list(cache.token_ids), torch.stack(cache.arena.read(0, cache.length)).view(torch.int16).clone()


def check_same(one: tuple[list[int], torch.Tensor], other: tuple[list[int], torch.Tensor]) -> None:
    shared = min(len(one[0]), len(other[0]))  # one may have read further ahead
    assert one[0][:shared] == other[0][:shared]
    assert torch.equal(one[1][:, :, :shared], other[1][:, :, :shared])


def ask(engine: Engine, conversation: str, messages: list[ChatMessage], question: str) -> Finished:
    messages.append(user(question))
    return engine.reply(conversation, messages)


QUESTIONS = ("Who wound the clock in the tower?", "And who oiled it, " * 6, "Why?")


def test_the_family_is_one_that_the_step_knows(start_engine: StartEngine, chat_model: Path) -> None:
    assert {"qwen3", "smollm3"} < FAMILIES
    assert forward_of(start_engine(chat_model)).multi_token_is_exact


def test_a_chat_resumes_after_restarts_to_the_bit(start_engine: StartEngine, chat_model: Path, tmp_path: Path) -> None:
    """Also with another number of threads."""
    engine = start_engine(chat_model, kv_dir=tmp_path / "never closed")
    forward_of(engine)
    messages: list[ChatMessage] = []
    expected = [ask(engine, "a", messages, question) for question in QUESTIONS]
    never_closed = contents(engine, "a")
    messages, reply = [], expected[0]
    for num_threads, question, never_closed_reply in zip((1, 2, 3), QUESTIONS, expected, strict=True):
        engine = start_engine(chat_model, kv_dir=tmp_path / "closed", num_threads=num_threads)
        reply = ask(engine, "a", messages, question)
        assert reply.token_ids == never_closed_reply.token_ids
        assert reply.statistics.prefilled_tokens == never_closed_reply.statistics.prefilled_tokens
    assert reply.statistics.reused_tokens > 100
    check_same(contents(engine, "a"), never_closed)


def test_a_reply_cancelled_midway_is_gone_on_from(
    start_engine: StartEngine, chat_model: Path, cold_reply: Callable[..., Finished]
) -> None:
    engine = start_engine(chat_model)
    messages = [user("begin")]
    engine.worker.submit(Generate("a", "cancelled", tuple(messages), GREEDY, 3000))
    engine.wait(TextArrived, request_id="cancelled")
    engine.worker.cancel("cancelled")
    finished = engine.wait(Finished, request_id="cancelled")
    assert isinstance(finished, Finished)
    assert finished.finish_reason is FinishReason.CANCELLED
    messages.append(ChatMessage(Role.ASSISTANT, finished.text, finished.token_ids))
    reply = ask(engine, "a", messages, "and now")
    assert reply.statistics.reused_tokens > 0
    assert reply.token_ids == cold_reply(chat_model, messages[:-1]).token_ids


def test_a_reply_made_anew_is_the_same(start_engine: StartEngine, chat_model: Path) -> None:
    engine = start_engine(chat_model)
    messages: list[ChatMessage] = []
    first = ask(engine, "a", messages, QUESTIONS[0])
    before = contents(engine, "a")
    for _ in range(2):
        again = engine.reply("a", messages[:1])
        assert again.token_ids == first.token_ids
        assert again.statistics.prefilled_tokens <= 2
        check_same(contents(engine, "a"), before)


def test_chats_taken_in_turn_are_those_alone(start_engine: StartEngine, chat_model: Path, tmp_path: Path) -> None:
    alone = {}
    for chat in ("a", "b"):
        engine = start_engine(chat_model, kv_dir=tmp_path / chat)
        messages: list[ChatMessage] = []
        replies = [ask(engine, chat, messages, f"{chat}: {question}").token_ids for question in QUESTIONS]
        alone[chat] = replies, contents(engine, chat)
    engine = start_engine(chat_model)
    histories: dict[str, list[ChatMessage]] = {"a": [], "b": []}
    for turn, question in enumerate(QUESTIONS):
        for chat, history in histories.items():
            assert ask(engine, chat, history, f"{chat}: {question}").token_ids == alone[chat][0][turn]
            check_same(contents(engine, chat), alone[chat][1])


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_guessing_ahead_changes_nothing_but_the_number_of_passes(
    start_engine: StartEngine, looping_model: Path, tmp_path: Path, sampling: Sampling
) -> None:
    found = {}
    for is_ahead in (False, True):
        engine = start_engine(looping_model, kv_dir=tmp_path / str(is_ahead))
        assert forward_of(engine).multi_token_is_exact
        forward_of(engine).multi_token_is_exact = is_ahead
        reply = engine.reply("a", [user("1 2 3")], sampling=sampling, max_new_tokens=200)
        found[is_ahead] = reply, contents(engine, "a")
    (plain, plain_contents), (ahead, ahead_contents) = found[False], found[True]
    assert plain.statistics.drafted_tokens == 0
    assert ahead.statistics.accepted_tokens > 10
    assert (ahead.text, ahead.token_ids) == (plain.text, plain.token_ids)
    check_same(ahead_contents, plain_contents)
