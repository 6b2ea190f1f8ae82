"""What a model thought is told apart from its answer, whatever pieces it comes in, and is seen when asked for."""

from __future__ import annotations

import random

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from ui.markdown.reasoning import ReasoningSplitter, split_reasoning
from ui.theme import Theme
from ui.transcript.reply_body import ReplyBody

THOUGHTFUL = "<think>\nFirst I think.\n\nThen more.\n</think>\n\nThe *answer*."


def streamed(text: str, size: int) -> tuple[str, str]:
    splitter = ReasoningSplitter()
    thought = answer = ""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    for split in [*(splitter.feed(piece) for piece in pieces), splitter.finish()]:
        if split.restarts:
            thought, answer = split.thought, split.answer
        else:
            thought, answer = thought + split.thought, answer + split.answer
    return thought.rstrip(), answer


REPLIES = [
    (THOUGHTFUL, "First I think.\n\nThen more.", "The *answer*."),
    ("  <thinking>a < b</thinking>c", "a < b", "c"),
    ("<reasoning>x</think></reasoning>\ny", "x</think>", "y"),
    ("[THINK]x[/THINK]y", "x", "y"),
    ("<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>y", "x", "y"),
    ("<think>\n\n</think>\n\nno thought", "", "no thought"),
    ("no opening\n</think>\n\nthe answer", "no opening", "the answer"),
    ("no opening\n</think>", "no opening", ""),
    ("it says `</think>` there", "", "it says `</think>` there"),
    ("```\n</think>\n```\ncode", "", "```\n</think>\n```\ncode"),
    ("plain <think>later</think>", "", "plain <think>later</think>"),
    ("<think>never closed </thi", "never closed </thi", ""),
    ("<thin", "", "<thin"),
    ("<table> is html", "", "<table> is html"),
    ("", "", ""),
]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(("text", "thought", "answer"), REPLIES)
def test_thought_and_answer(text: str, thought: str, answer: str, size: int) -> None:
    assert streamed(text, size) == (thought, answer)
    assert split_reasoning(text) == (thought, answer)


def test_nothing_is_lost_whatever_the_pieces() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    marks = ["<think>", "</think>", "\n", "word ", "<", "</", "think", ">", "[THINK]", "한글", "```\n", "<|end|>"]
    for _ in range(400):
        text = "".join(rng.choices(marks, k=rng.randint(1, 25)))
        assert streamed(text, rng.randint(1, 7)) == split_reasoning(text), repr(text)
        thought, answer = split_reasoning(text)
        assert (thought + answer).count("한글") == text.count("한글"), repr(text)


@pytest.fixture
def body(qtbot: QtBot, theme: Theme) -> ReplyBody:
    result = ReplyBody(theme)
    qtbot.addWidget(result)
    result.resize(600, 400)
    result.show()
    qtbot.waitExposed(result)
    return result


def test_a_thought_is_shown_while_it_comes_and_closed_by_the_answer(body: ReplyBody) -> None:
    for piece in ("", "<th", "ink>", "I wonder", " a lot"):
        body.feed(piece)
    section = body.reasoning
    assert section is not None
    assert section.isVisible()
    assert section.is_open
    assert section.button.text() == "Thinking…"
    assert body.plain_text() == "I wonder a lot▍"
    body.feed("\n</think>\n\nIt is")
    assert section.button.text() == "Thought for 1 s"
    assert section.button.accessibleName() == "Thought for 1 s (closed)"
    assert not section.is_open
    assert body.plain_text() == "It is▍"
    body.feed(" so.")
    body.finish()
    assert (body.plain_text(), body.markdown()) == ("It is so.", "It is so.")


def test_the_keyboard_opens_it_and_then_it_is_copied_too(body: ReplyBody) -> None:
    body.show_text(THOUGHTFUL)
    section = body.reasoning
    assert section is not None
    assert section.button.text() == "Thought, 5 words"
    assert body.plain_text() == "The answer."
    assert body.markdown() == "The *answer*."
    section.button.setFocus(Qt.FocusReason.TabFocusReason)
    QTest.keyClick(section.button, Qt.Key.Key_Space)
    assert section.button.accessibleName() == "Thought, 5 words (open)"
    assert body.plain_text() == "First I think.\nThen more.\nThe answer."
    assert body.markdown() == "First I think.\n\nThen more.\n\nThe *answer*."
    QTest.keyClick(section.button, Qt.Key.Key_Space)
    assert body.plain_text() == "The answer."


def test_what_the_reader_chose_stays(body: ReplyBody) -> None:
    body.feed("<think>a")
    section = body.reasoning
    assert section is not None
    section.button.click()
    section.button.click()
    body.feed("b</think>c")
    assert section.is_open
    body.finish()
    body.replace_text("<think>other</think>text")
    assert body.reasoning is section
    assert section.is_open
    assert body.plain_text() == "other\ntext"
    body.replace_text("none")
    assert body.reasoning is None
    assert body.plain_text() == "none"


def test_an_empty_thought_is_not_shown(body: ReplyBody) -> None:
    body.feed("<think>\n\n</think>\n\nAnswer")
    assert body.reasoning is None or not body.reasoning.isVisible()
    body.finish()
    assert body.plain_text() == "Answer"


def test_a_lone_closing_mark_makes_a_thought_of_what_came_before(body: ReplyBody) -> None:
    body.feed("I wonder.\n")
    assert body.reasoning is None
    body.feed("</think>\n\nYes")
    assert body.plain_text() == "Yes▍"
    body.finish()
    assert body.reasoning is not None
    body.reasoning.button.click()
    assert body.plain_text() == "I wonder.\nYes"


def test_a_reply_that_ends_in_its_thought_stays_open(body: ReplyBody) -> None:
    body.feed("<think>half a thou")
    body.finish()
    assert body.plain_text() == "half a thou"
