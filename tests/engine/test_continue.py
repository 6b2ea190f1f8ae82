"""A reply that was cut short goes on where it stopped: as if it had never been stopped, and hardly anything is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.generation.detokenizer import Detokenizer
from engine.model.chat_template import ChatTemplate
from engine.model.tokens import HistoryTokens
from engine.protocol.commands import ChatMessage, Generate, Role
from engine.protocol.config import GREEDY
from engine.protocol.errors import TemplateError
from engine.protocol.events import Failed, Finished, FinishReason, TextArrived
from tests.engine.conftest import TEMPLATE, Engine, build_tokenizer, user
from tests.engine.families import BY_NAME

StartEngine = Callable[..., Engine]
REAL = Path(__file__).resolve().parents[2] / "resources" / "models" / "SmolLM2-135M-Instruct"
WHOLE, STOPPED = 40, 15


def continued(engine: Engine, conversation: str, messages: list[ChatMessage], max_new_tokens: int) -> Finished:
    """Go on with the last message; what is new is appended to it."""
    begun = messages[-1]
    finished = engine.reply(conversation, messages, max_new_tokens=max_new_tokens, continues=True)
    new = messages.pop()
    ids = (*begun.token_ids, *finished.token_ids) if begun.token_ids else None
    messages[-1] = ChatMessage(Role.ASSISTANT, begun.text + new.text, ids)
    return finished


def check_goes_on(engine: Engine, question: str, *, most_fed: int = 4) -> None:
    """A greedy reply stopped and continued is the reply that was not stopped, token for token."""
    whole = engine.reply("whole", [user(question)], max_new_tokens=WHOLE)
    engine.forget("whole")
    messages = [user(question)]
    first = engine.reply("a", messages, max_new_tokens=STOPPED)
    assert first.finish_reason is FinishReason.LENGTH
    engine.events.clear()
    rest = continued(engine, "a", messages, WHOLE - STOPPED)
    assert messages[-1].token_ids == whole.token_ids
    assert messages[-1].text == whole.text
    assert rest.text == whole.text[len(first.text) :]
    assert rest.token_ids == whole.token_ids[STOPPED:]
    assert rest.statistics.prefilled_tokens <= most_fed
    assert rest.statistics.miss_code is None
    texts = [event for event in engine.events if isinstance(event, TextArrived)]
    assert "".join(event.text for event in texts) == rest.text
    assert tuple(i for event in texts for i in event.token_ids) == rest.token_ids
    messages.append(user("and now"))
    assert engine.reply("a", messages).statistics.prefilled_tokens < 32


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "mixtral", "gemma3_text", "mistral_window", "lfm2"])
def test_a_family_goes_on(start_engine: StartEngine, tmp_path: Path, name: str) -> None:
    engine = start_engine(BY_NAME[name].save(tmp_path / name))
    check_goes_on(engine, "tell a story " * 6)


@pytest.mark.skipif(not REAL.is_dir(), reason="the model is not there")
def test_the_real_model_goes_on(start_engine: StartEngine) -> None:
    engine = start_engine(REAL)
    check_goes_on(engine, "Write a story about a lighthouse keeper and a storm.")


def test_after_a_restart_hardly_anything_is_read(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    whole = engine.reply("whole", [user("talk")], max_new_tokens=WHOLE)
    engine.forget("whole")
    messages = [user("talk")]
    engine.reply("a", messages, max_new_tokens=STOPPED)
    engine = start_engine(tiny_model)
    rest = continued(engine, "a", messages, WHOLE - STOPPED)
    assert messages[-1].token_ids == whole.token_ids
    assert rest.statistics.prefilled_tokens <= 4


def test_a_reply_that_was_stopped_by_hand_goes_on(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    engine.worker.submit(Generate("a", "r", (user("talk"),), GREEDY, 300))
    engine.wait(TextArrived)
    engine.worker.cancel("r")
    stopped = engine.wait(Finished)
    assert isinstance(stopped, Finished)
    assert stopped.finish_reason is FinishReason.CANCELLED
    messages = [user("talk"), ChatMessage(Role.ASSISTANT, stopped.text, stopped.token_ids)]
    rest = continued(engine, "a", messages, 20)
    assert rest.statistics.prefilled_tokens <= 4
    total = len(stopped.token_ids) + 20
    assert messages[-1].token_ids == engine.reply("b", [user("talk")], max_new_tokens=total).token_ids


def test_a_text_without_ids_goes_on_after_its_last_character(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    messages = [user("talk"), ChatMessage(Role.ASSISTANT, "the quick brown ")]
    rest = continued(engine, "a", messages, 10)
    cache = engine.runtime._caches
    assert cache is not None
    resident = cache.resident("a")
    assert resident is not None
    text = AutoTokenizer.from_pretrained(tiny_model).decode(resident.token_ids)
    assert text.startswith("<|start|>user\ntalk<|end|>\n<|start|>assistant\nthe quick brown " + rest.text[:3])


def test_a_character_cut_in_two_is_completed(start_engine: StartEngine, tiny_model: Path) -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer.encode("안녕 hi", add_special_tokens=False)
    for cut in range(1, len(ids)):
        first, second = Detokenizer(tokenizer), Detokenizer(tokenizer)
        shown = "".join(map(first.add, ids[:cut])) + first.flush()
        second.resume(ids[:cut])
        assert shown + "".join(map(second.add, ids[cut:])) + second.flush() == "안녕 hi"


def test_what_is_not_a_reply_cannot_be_continued(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine(tiny_model)
    engine.worker.submit(Generate("a", "r", (user("talk"),), GREEDY, 5, continues=True))
    failed = engine.wait(Failed, Finished)
    assert isinstance(failed, Failed)
    assert failed.code == "template"


# -- templates ---------------------------------------------------------------------------------------------------------

WITHOUT_PROMPT = TEMPLATE.partition("{% if add_generation_prompt")[0]
THINKING = TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
SHORT = ChatMessage(Role.ASSISTANT, "the fox ")


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (TEMPLATE, "<|start|>assistant\nthe fox "),
        (TEMPLATE.replace("m['content'] }}", "m['content'].strip() }}"), "<|start|>assistant\nthe fox "),
        (WITHOUT_PROMPT, "<|start|>assistant\nthe fox "),
        (THINKING, "<|start|>assistant\n<think>\nthe fox "),
        (None, "Assistant:the fox "),
    ],
)
def test_the_prompt_ends_with_the_open_reply(template: str | None, end: str) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    history = HistoryTokens(tokenizer, ChatTemplate(tokenizer))
    assert tokenizer.decode(history.open_ids([user("q"), SHORT])).endswith(end)
    generated = dataclasses.replace(SHORT, token_ids=(7, 8, 9))
    assert history.open_ids([user("q"), generated])[-3:] == [7, 8, 9]
    assert history.open_ids([user("q"), generated])[:-3] == history.ids([user("q")])


def test_a_template_that_cannot_leave_a_reply_open_says_so() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = WITHOUT_PROMPT.replace("m['content']", "(m['content'] if m['role'] == 'user' else '')")
    history = HistoryTokens(tokenizer, ChatTemplate(tokenizer))
    with pytest.raises(TemplateError, match="cannot leave a reply open"):
        history.open_ids([user("q"), SHORT])
    with pytest.raises(TemplateError, match="no reply to continue"):
        history.open_ids([user("q")])
