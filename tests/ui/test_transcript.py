from __future__ import annotations

import random
import unicodedata
from datetime import UTC, datetime
from itertools import pairwise
from time import perf_counter

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QObject, QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QTextEdit, QWidget
from pytestqt.qtbot import QtBot

from app.conversation import Message, MessageState
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason
from tests.ui.conftest import Desk, OpenDesk
from ui.theme import Theme
from ui.tokens import contrast
from ui.transcript.flow_text import FlowText
from ui.transcript.height_index import HeightIndex
from ui.transcript.messages import AssistantMessage
from ui.transcript.quiet_theme import quieted
from ui.transcript.transcript import Transcript
from ui.transcript.word_search import find_words

MOST_BUILT = 60
PROSE = "Some **words** of a paragraph that runs over more than one line of the reading column, with `code` in it. "
TEXTS = [
    "Yes.",
    PROSE * 2,
    "\n\n".join([PROSE * 3] * 6),
    "Look:\n\n```python\n" + "value = compute(1)  # a note\n" * 30 + "```\n\nDone.",
    "| a | b |\n|---|---|\n" + "| one | two |\n" * 8,
    "- one\n- two\n  - three\n\n> quoted\n\n# Title\n\ntext",
    "한국어 문장이 여러 줄에 걸쳐 이어집니다. " * 12,
    "",
]


def messages(count: int, text: str = "A line of text that is said in message {n}.") -> list[Message]:
    now = datetime.now(UTC)
    roles = (Role.USER, Role.ASSISTANT)
    return [Message(n + 1, "c", roles[n % 2], text.format(n=n + 1), now) for n in range(count)]


def mixed(count: int, rng: random.Random) -> list[Message]:
    now = datetime.now(UTC)
    roles = (Role.USER, Role.ASSISTANT)
    return [Message(n + 1, "c", roles[n % 2], rng.choice(TEXTS), now) for n in range(count)]


@pytest.fixture
def transcript(qtbot: QtBot, theme: Theme) -> Transcript:
    result = Transcript(theme)
    qtbot.addWidget(result)
    result.resize(800, 600)
    result.show()
    qtbot.waitExposed(result)
    return result


def settle(transcript: Transcript, qtbot: QtBot) -> None:
    """Until all that is wanted near what is seen is built, and what is far is gone."""
    qtbot.waitUntil(lambda: not transcript.is_building)


def top_of(transcript: Transcript, widget: QWidget) -> int:
    return widget.mapTo(transcript.viewport(), QPoint(0, 0)).y()


def seen(transcript: Transcript) -> list[int]:
    """Ids of the messages that are at least partly seen, from the top."""
    height = transcript.viewport().height()
    return [
        widget.message.id
        for widget in transcript.built()
        if top_of(transcript, widget) < height and top_of(transcript, widget) + widget.height() > 0
    ]


def wheel(transcript: Transcript, steps: int) -> None:
    """Away from the reader is up."""
    at = QPointF(transcript.viewport().rect().center())
    event = QWheelEvent(
        at, at, QPoint(0, 0), QPoint(0, 120 * steps), Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(transcript.viewport(), event)


def check_whole(transcript: Transcript) -> None:
    """What is seen is built without a hole, as tall as its contents; the range ends with the last message."""
    rows = transcript.window_rows
    value, height = transcript.verticalScrollBar().value(), transcript.viewport().height()
    if transcript.messages:
        wanted = [
            transcript.messages[row].id
            for row in range(rows.row_at(value), rows.row_at(value + height - 1) + 1)
            if rows.top(row) < value + height and rows.top(row) + rows.height(row) > value
        ]
        assert [one for one in seen(transcript) if one in wanted] == wanted
    widgets = transcript.built()
    for widget, following in pairwise(widgets):
        if following.message.id == widget.message.id + 1 and transcript.mark is None:
            gap = top_of(transcript, following) - top_of(transcript, widget) - widget.height()
            assert gap in (2, 20)
    for widget in widgets:
        if widget.message.id in seen(transcript):
            assert widget.height() == widget.heightForWidth(widget.width())


def check_at_end(transcript: Transcript) -> None:
    bar = transcript.verticalScrollBar()
    assert bar.value() == bar.maximum()
    last = transcript.built()[-1]
    assert last.message.id == transcript.messages[-1].id
    bottom = top_of(transcript, last) + last.height()
    below = transcript.viewport().height() - bottom
    if bar.maximum():
        assert below == 24 if last.message.role is Role.ASSISTANT else 6
    else:
        assert below >= 6
    texts = [text for text in last.findChildren(QTextEdit) if text.isVisible()]
    lowest = max(text.mapTo(last, QPoint(0, text.height())).y() for text in texts) if texts else last.height()
    assert last.height() - lowest <= 40  # the line of statistics or the room of the buttons, and no empty page


# heights


def test_the_index_of_heights_agrees_with_adding_them_up() -> None:
    rng = random.Random(5)
    for count in (1, 2, 3, 7, 8, 9, 100):
        heights = [rng.randrange(0, 50) for _ in range(count)]
        index = HeightIndex(heights)
        for _ in range(30):
            row = rng.randrange(count)
            heights[row] = index_height = rng.randrange(0, 50)
            index[row] = index_height
            assert [index.top(row) for row in range(count + 1)] == [sum(heights[:row]) for row in range(count + 1)]
            y = rng.randrange(-5, sum(heights) + 5)
            found = index.row_at(y)
            if 0 <= y < sum(heights):
                assert index.top(found) <= y < index.top(found) + heights[found]
            else:
                assert found == (0 if y < 0 else count - 1) or sum(heights[found + 1 :]) == 0


def test_no_rows_have_no_row_at_any_place() -> None:
    with pytest.raises(IndexError):
        HeightIndex().row_at(0)


# opening and scrolling


def test_a_chat_of_two_thousand_messages_builds_only_what_is_seen(transcript: Transcript, qtbot: QtBot) -> None:
    transcript.show_messages(messages(2000), None, None)
    assert transcript.built()[-1].text.endswith("message 2000.")
    assert seen(transcript)[-1] == 2000
    check_at_end(transcript)
    settle(transcript, qtbot)
    assert len(seen(transcript)) <= transcript.num_built <= MOST_BUILT
    check_at_end(transcript)


@pytest.mark.parametrize("seed", range(60))
def test_a_chat_opens_at_its_end_with_no_empty_page(transcript: Transcript, qtbot: QtBot, seed: int) -> None:
    rng = random.Random(seed)
    transcript.resize(rng.choice([420, 500, 640, 760, 800, 1000]), rng.choice([300, 600, 900]))
    chat = mixed(rng.choice([1, 2, 3, 5, 9, 40]), rng)
    if rng.random() < 0.5:  # the shape that once showed an empty page: a very long message and short replies
        chat[0] = Message(1, "c", Role.USER, "\n".join([PROSE * 3] * rng.choice([20, 120])), chat[0].created_at)
    transcript.show_messages(chat, None, None)
    check_whole(transcript)
    check_at_end(transcript)
    settle(transcript, qtbot)
    check_whole(transcript)
    check_at_end(transcript)
    bar = transcript.verticalScrollBar()
    bar.setValue(0)
    settle(transcript, qtbot)
    assert top_of(transcript, transcript.built()[0]) == 22
    bar.setValue(bar.maximum())
    settle(transcript, qtbot)
    check_at_end(transcript)


def test_scrolling_up_by_the_wheel_shows_every_message_and_never_a_hole(transcript: Transcript, qtbot: QtBot) -> None:
    transcript.show_messages(mixed(80, random.Random(3)), None, None)
    met: set[int] = set()
    for _ in range(2000):
        settle(transcript, qtbot)
        check_whole(transcript)
        met.update(seen(transcript))
        assert transcript.num_built <= MOST_BUILT
        if transcript.verticalScrollBar().value() == 0:
            break
        before = {widget.message.id: top_of(transcript, widget) for widget in transcript.built()}
        value = transcript.verticalScrollBar().value()
        wheel(transcript, 1)
        moved = {
            top_of(transcript, widget) - before[widget.message.id]
            for widget in transcript.built()
            if widget.message.id in before
        }
        assert len(moved) == 1  # all together, whatever was measured above them meanwhile
        assert moved.pop() == min(value, 3 * transcript.verticalScrollBar().singleStep())
    assert met == set(range(1, 81))


def test_dragging_the_bar_anywhere_shows_what_is_there(transcript: Transcript, qtbot: QtBot) -> None:
    rng = random.Random(8)
    transcript.show_messages(mixed(500, rng), None, None)
    bar = transcript.verticalScrollBar()
    for _ in range(20):
        bar.setValue(rng.randrange(bar.maximum()))
        settle(transcript, qtbot)
        check_whole(transcript)
        assert transcript.num_built <= MOST_BUILT


def test_what_the_reader_looks_at_stays_when_something_above_it_changes(transcript: Transcript, qtbot: QtBot) -> None:
    chat = messages(60)
    transcript.show_messages(chat, None, None)
    bar = transcript.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    settle(transcript, qtbot)
    looked_at = next(widget for widget in transcript.built() if top_of(transcript, widget) >= 0)
    place = top_of(transcript, looked_at)
    changed = [
        Message(one.id, "c", one.role, one.text * (9 if one.id < looked_at.message.id else 1), one.created_at)
        for one in chat
    ]
    transcript.update_messages(changed, None, None)
    settle(transcript, qtbot)
    assert looked_at in transcript.built()
    assert top_of(transcript, looked_at) == place
    transcript.update_messages(changed[10:], None, None)
    settle(transcript, qtbot)
    assert looked_at in transcript.built()
    assert top_of(transcript, looked_at) == place


@pytest.mark.parametrize("width", [420, 560, 1100])
def test_another_width_measures_anew_and_keeps_the_place(transcript: Transcript, qtbot: QtBot, width: int) -> None:
    transcript.show_messages(mixed(120, random.Random(4)), None, None)
    bar = transcript.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    settle(transcript, qtbot)
    first = seen(transcript)[0]
    transcript.resize(width, 500)
    settle(transcript, qtbot)
    check_whole(transcript)
    assert seen(transcript)[0] == first
    transcript.jump_to_end()
    transcript.resize(width + 30, 700)
    settle(transcript, qtbot)
    check_at_end(transcript)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_short_chats_begin_at_the_top(transcript: Transcript, count: int) -> None:
    transcript.show_messages(messages(count), None, None)
    assert transcript.verticalScrollBar().maximum() == 0
    if count:
        assert top_of(transcript, transcript.built()[0]) == 22


def test_keys_scroll_while_the_transcript_has_the_focus(transcript: Transcript, qtbot: QtBot) -> None:
    transcript.show_messages(messages(300), None, None)
    transcript.activateWindow()
    transcript.setFocus()
    bar = transcript.verticalScrollBar()
    QTest.keyClick(transcript, Qt.Key.Key_PageUp)
    assert bar.maximum() - bar.value() == transcript.viewport().height() - 40
    QTest.keyClick(transcript, Qt.Key.Key_PageDown)
    check_at_end(transcript)
    QTest.keyClick(transcript, Qt.Key.Key_Up)
    assert bar.value() == bar.maximum() - bar.singleStep()
    QTest.keyClick(transcript, Qt.Key.Key_Home)
    settle(transcript, qtbot)
    assert seen(transcript)[0] == 1
    QTest.keyClick(transcript, Qt.Key.Key_End)
    settle(transcript, qtbot)
    check_at_end(transcript)


def test_keys_scroll_after_a_click_into_a_text_too(transcript: Transcript) -> None:
    transcript.show_messages(messages(300), None, None)
    transcript.activateWindow()
    text = transcript.built()[-1].findChild(FlowText)
    assert text is not None
    text.setFocus()
    QTest.keyClick(text, Qt.Key.Key_PageUp)
    bar = transcript.verticalScrollBar()
    assert bar.maximum() - bar.value() == transcript.viewport().height() - 40


def test_opening_and_closing_leaves_no_widget_behind(transcript: Transcript, qtbot: QtBot) -> None:
    chats = [mixed(30, random.Random(seed)) for seed in (1, 2)]
    counts = []
    for number in range(12):
        transcript.show_messages(chats[number % 2], None, "A notice." if number % 3 else None)
        settle(transcript, qtbot)
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        counts.append(len(QApplication.allWidgets()))
    transcript.show_messages([], None, None)
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    assert counts[6:] == counts[:6]
    assert transcript.num_built == 0


def test_a_chat_opened_while_the_transcript_is_hidden_is_right_when_it_is_shown(
    transcript: Transcript, qtbot: QtBot
) -> None:
    transcript.hide()
    chat = [Message(n + 1, "c", Role.ASSISTANT, TEXTS[3], datetime.now(UTC)) for n in range(9)]
    transcript.show_messages(chat, "Half", None)
    assert transcript.live is not None
    transcript.append_text(" a sentence")
    transcript.resize(640, 500)
    transcript.show()
    settle(transcript, qtbot)
    check_whole(transcript)
    check_at_end(transcript)
    assert transcript.built()[-1] is transcript.live


# a reply that streams


def stream(transcript: Transcript, qtbot: QtBot, text: str) -> None:
    transcript.append_text(text)
    live = transcript.live
    assert live is not None
    qtbot.waitUntil(lambda: live.is_drawn)


def turn(number: int) -> tuple[Message, Message]:
    now = datetime.now(UTC)
    return (
        Message(number, "c", Role.USER, "question", now),
        Message(number + 1, "c", Role.ASSISTANT, "", now, MessageState.STREAMING),
    )


def test_it_follows_a_reply_only_while_the_reader_is_at_the_end(transcript: Transcript, qtbot: QtBot) -> None:
    transcript.show_messages(messages(20), None, None)
    transcript.add_turn(*turn(21))
    bar = transcript.verticalScrollBar()
    stream(transcript, qtbot, "a paragraph\n\n" * 20)
    check_at_end(transcript)
    assert not transcript._jump.isVisible()

    bar.setValue(bar.maximum() - 200)
    place, end = bar.value(), bar.maximum()
    stream(transcript, qtbot, "another paragraph\n\n" * 20)
    assert bar.maximum() > end
    assert bar.value() == place
    assert transcript._jump.isVisible()

    transcript._jump.click()
    assert bar.value() == bar.maximum()
    assert not transcript._jump.isVisible()
    end = bar.maximum()
    stream(transcript, qtbot, "more\n\n" * 20)
    assert bar.maximum() > end
    check_at_end(transcript)


def test_a_reader_far_above_is_not_moved_by_a_reply_that_streams(transcript: Transcript, qtbot: QtBot) -> None:
    transcript.show_messages(mixed(300, random.Random(2)), None, None)
    transcript.add_turn(*turn(301))
    transcript.verticalScrollBar().setValue(5000)
    settle(transcript, qtbot)
    before = {widget.message.id: top_of(transcript, widget) for widget in transcript.built()}
    for _ in range(5):
        stream(transcript, qtbot, "a paragraph\n\n" * 5)
    assert transcript.live in transcript.built()
    transcript.finish_live(None, None, FinishReason.STOP)
    after = {widget.message.id: top_of(transcript, widget) for widget in transcript.built()}
    assert {key: after[key] for key in before if key != 302} == {key: before[key] for key in before if key != 302}


def test_a_reply_that_ends_moves_nothing(transcript: Transcript, qtbot: QtBot) -> None:
    transcript.show_messages(messages(20), None, None)
    transcript.add_turn(*turn(21))
    stream(transcript, qtbot, "a paragraph without its end")
    live = transcript.live
    assert live is not None
    place, height = top_of(transcript, live), live.height()
    transcript.finish_live("a paragraph without its end", None, FinishReason.STOP)
    assert (top_of(transcript, live), live.height()) == (place, height)


def test_sending_goes_to_the_end_wherever_the_reader_was(transcript: Transcript) -> None:
    transcript.show_messages(messages(400), None, None)
    bar = transcript.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    transcript.add_turn(*turn(401))
    assert transcript.is_following
    check_at_end(transcript)


def test_a_reply_that_goes_on_keeps_its_text_and_grows(transcript: Transcript, qtbot: QtBot) -> None:
    chat = messages(4)
    transcript.show_messages(chat, None, None)
    reopened = [*chat[:3], Message(4, "c", Role.ASSISTANT, "Half a sen", chat[3].created_at, MessageState.STREAMING)]
    transcript.update_messages(reopened, "Half a sen", None)
    live = transcript.live
    assert live is transcript.built()[-1]
    stream(transcript, qtbot, "tence.")
    assert live.body.plain_text().rstrip("▍") == "Half a sentence."
    transcript.finish_live("Half a sentence.", None, FinishReason.STOP)
    assert live.body.plain_text() == transcript.messages[-1].text == "Half a sentence."
    assert transcript.live is None


def test_another_reply_in_the_middle_is_followed_where_the_chat_now_ends(transcript: Transcript, qtbot: QtBot) -> None:
    chat = mixed(200, random.Random(9))
    transcript.show_messages(chat, None, None)
    transcript.go_to(100)
    settle(transcript, qtbot)
    other = Message(300, "c", Role.ASSISTANT, "", chat[0].created_at, MessageState.STREAMING, version=2, num_versions=2)
    transcript.update_messages([*chat[:99], other], "", None)
    assert transcript.live is transcript.built()[-1]
    assert transcript.live.message.id == 300
    assert transcript.is_following
    for _ in range(4):
        stream(transcript, qtbot, "a paragraph\n\n" * 10)
        check_at_end(transcript)
    transcript.update_messages([*chat[:99], chat[99]], None, None)
    settle(transcript, qtbot)
    assert transcript.live is None
    check_whole(transcript)


def test_an_update_while_a_reply_streams_leaves_it_alone(transcript: Transcript, qtbot: QtBot) -> None:
    transcript.show_messages(messages(4), None, None)
    question, reply = turn(5)
    transcript.add_turn(question, reply)
    stream(transcript, qtbot, "one ")
    live = transcript.live
    transcript.update_messages([*messages(4), question, reply], "one two", None)
    assert transcript.live is live
    assert transcript.built()[-1].text == "one two"
    transcript.update_messages([*messages(4), question, reply][2:], None, None)
    assert transcript.live is None


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


# the window around it


def test_a_flush_is_drawn_once_and_the_next_waits_for_its_time(transcript: Transcript, qtbot: QtBot) -> None:
    transcript.show_messages(messages(4), None, None)
    transcript.add_turn(*turn(5))
    transcript.append_text("```python\n" + "x = 1\n" * 40)
    live = transcript.live
    assert live is not None
    qtbot.waitUntil(lambda: live.is_drawn)
    settle(transcript, qtbot)
    drawn: list[float] = []

    class Watcher(QObject):
        def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802
            if event.type() == QEvent.Type.UpdateRequest:
                drawn.append(perf_counter())
            return False

    watcher = Watcher()
    transcript.installEventFilter(watcher)
    started, flushed = perf_counter(), live.num_flushes
    while perf_counter() - started < 0.5:
        transcript.append_text("y = 2\n")
        qtbot.wait(2)  # some hundred texts a second
    transcript.removeEventFilter(watcher)
    seconds = perf_counter() - started
    assert 1 <= live.num_flushes - flushed <= 30 * seconds + 1
    assert len(drawn) <= 30 * seconds + 2
    transcript.finish_live(None, None, FinishReason.STOP)


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


def test_a_chat_opened_before_the_window_was_laid_out_can_be_scrolled(open_desk: OpenDesk) -> None:
    desk = open_desk(fill=lambda desk: desk.add_conversation("long", 150), reopens=True)
    desk.settle()
    transcript = desk.window.page.transcript
    assert transcript.verticalScrollBar().maximum() > transcript.viewport().height()
    assert 0 < transcript.num_built <= MOST_BUILT
    assert transcript.built()[-1].text == "reply 149"
    check_at_end(transcript)


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


# what the model still reads


def test_a_line_tells_where_the_models_view_begins(transcript: Transcript, qtbot: QtBot) -> None:
    chat = messages(40)
    transcript.show_messages(chat, None, None, view_from=37)
    settle(transcript, qtbot)
    mark = transcript.mark
    assert mark is not None
    assert mark.isVisible()
    assert mark.text.startswith("The model no longer reads what is above this line")
    above, below = (next(one for one in transcript.built() if one.message.id == wanted) for wanted in (36, 37))
    assert above.geometry().bottom() < mark.y() < mark.geometry().bottom() < below.y()
    assert (above._theme.tokens.text == below._theme.tokens.text) is False
    check_at_end(transcript)
    transcript.update_messages(chat, None, None, view_from=39)
    settle(transcript, qtbot)
    assert transcript.mark is not None
    above = next(one for one in transcript.built() if one.message.id == 38)
    assert transcript.mark.y() > above.y()
    transcript.update_messages(chat, None, None)
    settle(transcript, qtbot)
    assert transcript.mark is None
    assert len({one._theme.tokens.text for one in transcript.built()}) == 1


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_what_the_model_no_longer_reads_is_quieter_and_legible(theme: Theme, mode: str) -> None:
    theme.set_mode(mode)
    quiet = quieted(theme.tokens)
    assert contrast(quiet.text, quiet.window) < contrast(theme.tokens.text, quiet.window)
    for ground in ("window", "accent_behind", "code"):
        assert contrast(quiet.text, getattr(quiet, ground)) >= 4.5


# going to a message


def marked(widget: QWidget) -> list[str]:
    return [
        selection.cursor.selectedText()
        for edit in widget.findChildren(QTextEdit)
        for selection in edit.extraSelections()
    ]


def test_going_to_an_early_message_of_many_marks_the_words_there_for_a_moment(
    transcript: Transcript, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcript._marks._timer.setInterval(50)
    chat = mixed(2000, random.Random(6))
    chat[2] = Message(3, "c", Role.USER, "Where is the harbour? The Harbour!", chat[2].created_at)
    transcript.show_messages(chat, None, None)
    transcript.go_to(3, "harbour")
    assert 3 in seen(transcript)
    assert not transcript.is_following
    assert transcript._jump.isVisible()
    widget = next(one for one in transcript.built() if one.message.id == 3)
    assert marked(widget) == ["harbour", "Harbour"]
    settle(transcript, qtbot)
    check_whole(transcript)
    qtbot.waitUntil(lambda: marked(widget) == [])


def test_the_words_found_deep_in_a_long_message_are_scrolled_to(transcript: Transcript) -> None:
    chat = messages(30)
    chat[9] = Message(10, "c", Role.ASSISTANT, "\n\n".join([PROSE] * 60 + ["needle"]), chat[9].created_at)
    transcript.show_messages(chat, None, None)
    transcript.go_to(10, "needle")
    widget = next(one for one in transcript.built() if one.message.id == 10)
    edit = next(edit for edit in widget.findChildren(QTextEdit) if edit.extraSelections())
    selections = edit.extraSelections()  # kept: the cursors are theirs
    rect = edit.cursorRect(selections[0].cursor)
    y = edit.viewport().mapTo(transcript.viewport(), rect.topLeft()).y()
    assert 0 <= y < transcript.viewport().height()


def test_words_are_marked_in_code_and_tables_too_but_not_in_a_thought_that_is_closed(transcript: Transcript) -> None:
    text = "<think>\na needle\n</think>\n\n```python\nneedle = 1\n```\n\n| a |\n|---|\n| needle |"
    transcript.show_messages([Message(1, "c", Role.ASSISTANT, text, datetime.now(UTC))], None, None)
    transcript.go_to(1, "needle")
    assert marked(transcript.built()[0]) == ["needle", "needle"]


def test_going_to_a_message_that_is_not_there_does_nothing(transcript: Transcript) -> None:
    transcript.show_messages(messages(10), None, None)
    transcript.go_to(999, "x")
    assert transcript.is_following


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("query_form", ["NFC", "NFD"])
def test_hangul_is_found_in_either_form_and_only_whole(form: str, query_form: str) -> None:
    text = unicodedata.normalize(form, "🙂 각 나라의 가을")
    places = find_words(text, unicodedata.normalize(query_form, "가"))
    units = text.encode("utf-16-le")
    found = [units[2 * start : 2 * (start + length)].decode("utf-16-le") for start, length in places]
    assert [unicodedata.normalize("NFC", one) for one in found] == ["가"]
    assert len(find_words(text, "🙂 각 나라의")) == 1
    assert len(find_words(text, "가을 나라의")) == 2  # nowhere as a whole: the words
    assert find_words(text, "없음") == find_words(text, " ") == []
