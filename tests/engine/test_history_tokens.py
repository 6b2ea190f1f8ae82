"""Histories -> ids: generated ids survive, the rest is tokenized, templates may be difficult."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from engine.model.chat_template import ChatTemplate
from engine.model.tokens import HistoryTokens
from engine.protocol.commands import ChatMessage, Role
from engine.protocol.errors import TemplateError
from tests.engine.conftest import TEMPLATE, user

REASONING = (
    "{% for m in messages %}{% set text = m['content'] %}"
    "{% if m['role'] == 'assistant' and not loop.last %}{% set text = text.split('</think>')[-1].strip() %}{% endif %}"
    "<|start|>{{ m['role'] }}\n{{ text }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@pytest.fixture
def tokenizer(tiny_model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_model)


def history(tokenizer: PreTrainedTokenizerBase, template: str | None = TEMPLATE) -> HistoryTokens:
    tokenizer.chat_template = template
    return HistoryTokens(tokenizer, ChatTemplate(tokenizer))


def reply(tokenizer: PreTrainedTokenizerBase, text: str) -> ChatMessage:
    """A reply whose ids are not what re-tokenizing its text gives: one id a character."""
    ids = [i for character in text for i in tokenizer.encode(character, add_special_tokens=False)]
    assert ids != tokenizer.encode(text, add_special_tokens=False)
    return ChatMessage(Role.ASSISTANT, text, tuple(ids))


def contains(ids: list[int], part: tuple[int, ...] | None) -> bool:
    assert part
    return any(tuple(ids[start : start + len(part)]) == part for start in range(len(ids)))


def test_generated_ids_are_fed_again_as_they_are(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = history(tokenizer)
    prompt = [user("the story")]
    answer = reply(tokenizer, "the quick fox")
    first = tokens.ids(prompt)
    second = tokens.ids([*prompt, answer, user("the dog")])
    assert second[: len(first)] == first
    assert tuple(second[len(first) : len(first) + len(answer.token_ids or ())]) == answer.token_ids
    assert tokenizer.decode(second) == tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.text} for m in [*prompt, answer, user("the dog")]],
        tokenize=False,
        add_generation_prompt=True,
    )


def test_a_user_who_repeats_the_reply_does_not_confuse_it(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = history(tokenizer)
    answer = reply(tokenizer, "the fox")
    ids = tokens.ids([user("the fox"), answer, user("the fox"), reply(tokenizer, "the dog"), user("x")])
    assert sum(tuple(ids[i : i + len(answer.token_ids or ())]) == answer.token_ids for i in range(len(ids))) == 1


@pytest.mark.parametrize("text", ["the fox\n", "  the fox", "the <|end|>\n<|start|>user\n fox"])
def test_whitespace_and_template_words_inside_a_reply_keep_its_ids(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> None:
    for template in (TEMPLATE, TEMPLATE.replace("m['content'] }}", "m['content'].strip() }}")):
        tokens = history(tokenizer, template)
        answer = reply(tokenizer, text)
        assert contains(
            tokens.ids([user("q"), answer, user("next"), reply(tokenizer, "the end"), user("z")]), answer.token_ids
        )


def test_a_template_that_drops_reasoning_drops_its_ids_too(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = history(tokenizer, REASONING)
    thoughtful = reply(tokenizer, "hm, the fox</think>the answer")
    ids = tokens.ids([user("q"), thoughtful, user("next"), reply(tokenizer, "the end"), user("z")])
    text = tokenizer.decode(ids)
    assert "hm, the fox" not in text
    assert "the answer" in text
    assert contains(ids, reply(tokenizer, "the end").token_ids)


def test_a_template_without_system_role_gets_it_merged(tokenizer: PreTrainedTokenizerBase) -> None:
    strict = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
        "<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    )
    tokens = history(tokenizer, strict)
    text = tokenizer.decode(tokens.ids([ChatMessage(Role.SYSTEM, "be brief"), user("a"), user("b")]))
    assert text == "<|start|>user\nbe brief\n\na\n\nb<|end|>\n"


def test_a_template_that_fails_in_any_form_is_a_sentence(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = history(tokenizer, "{{ raise_exception('not today') }}")
    with pytest.raises(TemplateError, match="not today"):
        tokens.ids([user("a")])


def test_a_model_without_template_gets_a_transcript_and_a_note(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = history(tokenizer, None)
    assert "User: hello" in tokenizer.decode(tokens.ids([user("hello")]))
    assert tokens.template.notes
    assert tokens.template.stop_strings == ("\nUser:",)


def test_the_date_in_a_prompt_is_the_day_the_chat_began(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = history(tokenizer, "{{ strftime_now('%d %B %Y %H:%M') }}" + TEMPLATE)
    day = dt.date(2026, 2, 3)
    first, second = (tokens.ids([user("hi")], started_on=day) for _ in range(2))
    assert first == second
    assert "03 February 2026" in tokenizer.decode(first)


def test_an_empty_reply_is_no_obstacle(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = history(tokenizer)
    ids = tokens.ids([user("a"), ChatMessage(Role.ASSISTANT, "", ()), user("b")])
    assert "assistant\n<|end|>" in tokenizer.decode(ids)
