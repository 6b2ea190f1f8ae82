"""What was said survives a program that is killed in the middle of saying it."""

from __future__ import annotations

import json
import time

import pytest

from tests.end_to_end.conftest import Ember, kill

pytestmark = pytest.mark.timeout(600)


def test_twenty_kills_in_the_middle_of_a_reply_lose_nothing_that_was_said(ember: Ember) -> None:
    chat = ember.ask("Let us begin.", "--new", tokens=2)["conversation_id"]
    for round_ in range(20):
        process = ember.start(
            "ask", "--conversation", chat, "--greedy", "--max-new-tokens", "400", f"Tell me story number {round_}."
        )
        assert process.stdout is not None
        shown = process.stdout.read(1 + round_ * 4 % 37)  # the reply has begun
        kill(process)
        assert shown
        messages = json.loads(ember.run("show", chat, "--json"))["messages"]
        questions = [message["text"] for message in messages if message["role"] == "user"]
        assert questions[-1] == f"Tell me story number {round_}."
        assert len(questions) == round_ + 2
    after = ember.ask("Are you still there?", "--conversation", chat)
    assert after["reply"]
    replies = [m for m in json.loads(ember.run("show", chat, "--json"))["messages"] if m["role"] == "assistant"]
    assert len(replies) == 22
    assert after["miss_code"] == "not_saved"  # what the killed processes had read is read again, and said so
    assert after["reused_tokens"] > 20  # the snapshot of the first turn outlived every kill


def test_a_partial_reply_is_on_disk_about_a_second_into_it(ember: Ember) -> None:
    process = ember.start("ask", "--new", "--greedy", "--max-new-tokens", "2000", "Tell me a very long story.")
    assert process.stdout is not None
    shown = process.stdout.read(1)
    started = time.monotonic()
    while len(shown) < 120 or time.monotonic() - started < 2.5:  # some seconds of reply
        shown += process.stdout.read(1)
    kill(process)
    chat = ember.json("conversations")["conversations"][0]["id"]
    reply = ember.json("show", chat)["messages"][-1]
    assert reply["role"] == "assistant"
    assert len(reply["text"]) > 20
    assert shown.startswith(reply["text"][:20])
