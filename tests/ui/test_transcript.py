from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pytestqt.qtbot import QtBot

from app.conversation import Message
from engine.protocol.commands import Role
from tests.ui.conftest import Desk, OpenDesk
from ui.theme import Theme
from ui.transcript.flow_text import FlowText
from ui.transcript.messages import AssistantMessage
from ui.transcript.transcript import FIRST_BUILT, OLDER_BUILT, Transcript


def messages(count: int, text: str = "A line of text that is said in message {n}.") -> list[Message]:
    now = datetime.now(UTC)
    roles = (Role.USER, Role.ASSISTANT)
    return [Message(n, "c", roles[n % 2], text.format(n=n), now) for n in range(count)]


@pytest.fixture
def transcript(qtbot: QtBot, theme: Theme) -> Transcript:
    result = Transcript(theme)
    qtbot.addWidget(result)
    result.resize(800, 600)
    result.show()
    qtbot.waitExposed(result)
    return result


def test_a_chat_of_two_thousand_messages_builds_only_the_last_ones(transcript: Transcript) -> None:
    transcript.show_messages(messages(2000), None, None)
    assert 0 < transcript.num_built <= FIRST_BUILT
    assert transcript.built()[-1].text.endswith("message 1999.")
    bar = transcript.verticalScrollBar()
    assert bar.value() == bar.maximum() > 0


def test_older_messages_are_built_when_scrolled_up_to_and_the_view_stays(transcript: Transcript) -> None:
    transcript.show_messages(messages(2000), None, None)
    before, first = transcript.num_built, transcript.built()[0]
    bar = transcript.verticalScrollBar()
    bar.setValue(0)
    assert transcript.num_built == before + OLDER_BUILT
    assert transcript.built()[0].text == f"A line of text that is said in message {2000 - before - OLDER_BUILT}."
    assert first.mapTo(transcript.viewport(), first.rect().topLeft()).y() == 22  # where it was before


def test_scrolling_up_reaches_the_very_first_message(transcript: Transcript) -> None:
    transcript.show_messages(messages(75), None, None)
    bar = transcript.verticalScrollBar()
    for _ in range(10):
        bar.setValue(0)
    assert transcript.num_built == 75
    assert transcript.built()[0].text.endswith("message 0.")


def stream(transcript: Transcript, qtbot: QtBot, text: str) -> None:
    transcript.append_text(text)
    live = transcript.live
    assert live is not None
    qtbot.waitUntil(lambda: live.is_drawn)


def test_it_follows_a_reply_only_while_the_reader_is_at_the_end(transcript: Transcript, qtbot: QtBot) -> None:
    transcript.show_messages(messages(20), None, None)
    transcript.add_turn(messages(1)[0])
    bar = transcript.verticalScrollBar()
    stream(transcript, qtbot, "a paragraph\n\n" * 20)
    qtbot.waitUntil(lambda: bar.value() == bar.maximum())
    assert not transcript._jump.isVisible()

    bar.setValue(bar.maximum() - 200)
    place, end = bar.value(), bar.maximum()
    stream(transcript, qtbot, "another paragraph\n\n" * 20)
    qtbot.waitUntil(lambda: bar.maximum() > end)
    assert bar.value() == place
    assert transcript._jump.isVisible()

    transcript._jump.click()
    assert bar.value() == bar.maximum()
    assert not transcript._jump.isVisible()
    end = bar.maximum()
    stream(transcript, qtbot, "more\n\n" * 20)
    qtbot.waitUntil(lambda: bar.maximum() > end and bar.value() == bar.maximum())


def test_sending_goes_to_the_end_wherever_the_reader_was(transcript: Transcript) -> None:
    transcript.show_messages(messages(40), None, None)
    bar = transcript.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    transcript.add_turn(messages(1)[0])
    assert bar.value() == bar.maximum()
    assert transcript.is_following


def test_arriving_text_is_drawn_at_most_thirty_times_a_second(desk: Desk) -> None:
    request = desk.send("fast")
    desk.engine.begin(request)
    for _ in range(1000):
        desk.engine.text(request, "word ")
    desk.settle()
    live = desk.window.page.transcript.live
    assert live is not None
    assert live.num_flushes <= 2
    desk.flush()
    assert live.text == "word " * 1000
    assert live._flush_timer.interval() >= 33


def test_the_column_stays_over_the_composer_with_and_without_a_scroll_bar(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend((desk.add_conversation("short"), desk.add_conversation("long", 30))))
    for conversation_id in ids:
        desk.window.controller.open(conversation_id)
        desk.settle()
        widget = desk.window.page.transcript.built()[-1]
        composer = desk.window.page.composer
        page = desk.window.page
        assert widget.mapTo(page, widget.rect().topLeft()).x() == composer.x()
        assert widget.width() == composer.width() == 740


def test_nothing_of_a_reply_is_markup_or_loaded(desk: Desk) -> None:
    text = '<b>x</b> <img src="http://127.0.0.1:9/a.png"> ![alt](http://127.0.0.1:9/b.png) [j](javascript:alert(1))'
    request = desk.send("html")
    desk.engine.finish(request, text)
    desk.settle()
    reply = desk.window.page.transcript.built()[-1]
    assert isinstance(reply, AssistantMessage)
    shown = reply.body.plain_text()
    assert shown.startswith('<b>x</b> <img src="http://127.0.0.1:9/a.png"> alt [j](javascript:alert(1))')
    assert "\ufffc" not in shown


def test_a_long_chat_of_code_builds_no_more_than_two_screens_of_it(transcript: Transcript) -> None:
    code = "```python\n" + "x = 1\n" * 100 + "```"
    transcript.show_messages(messages(2000, code + " {n}"), None, None)
    assert transcript.num_built <= 6


def test_a_chat_opened_before_the_window_was_laid_out_can_be_scrolled(open_desk: OpenDesk) -> None:
    desk = open_desk(fill=lambda desk: desk.add_conversation("long", 1000), reopens=True)
    desk.settle()
    bar = desk.window.page.transcript.verticalScrollBar()
    assert bar.value() == bar.maximum() > desk.window.page.transcript.viewport().height() // 2
    assert 0 < desk.window.page.transcript.num_built <= FIRST_BUILT
    assert desk.window.page.transcript.built()[-1].text == "reply 999"


@pytest.mark.parametrize("width", [640, 700, 760, 900])
@pytest.mark.parametrize("kind", ["narrowed while open", "opened narrow"])
def test_a_message_is_never_cut_off_whatever_the_width_of_the_window(
    open_desk: OpenDesk, width: int, kind: str
) -> None:
    text = "Plan three rainy days in Jeju with two children. Keep each day short, and give me a small script. " * 2
    desk = open_desk()
    desk.engine.finish(desk.send(text), "A reply that takes more than one line in a window that is narrow. " * 3)
    desk.settle()
    if kind == "opened narrow":
        desk.window.controller.open(None)
    desk.window.resize(width, 600)
    desk.settle()
    if kind == "opened narrow":
        desk.window.controller.open(desk.store.conversations()[0].id)
        desk.settle()
    shown = desk.window.page.transcript.built()
    texts = [part for widget in shown for part in widget.findChildren(FlowText) if part.isVisible()]
    assert len(texts) >= 2
    for widget in [*shown, *texts]:
        assert widget.height() == widget.heightForWidth(widget.width())
