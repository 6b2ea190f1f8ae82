"""What sending costs: asked when someone can read it, worded without a guess, and a refusal before the engine's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.conversation import Attachment, Draft
from app.errors import UnknownConversationError
from app.paths import resources_dir
from engine.protocol.commands import Estimate
from engine.protocol.events import (
    CacheState,
    Compressed,
    EngineStopped,
    Estimated,
    Failed,
    ModelInfo,
    ModelLoaded,
    PressureActed,
    TokensCounted,
)
from engine.protocol.misses import MissCode
from tests.ui.conftest import OpenDesk
from tests.ui.fakes import model_info
from ui.composer.composer import Composer
from ui.composer.cost_feed import CostFeed
from ui.composer.cost_words import cost_of
from ui.estimate_words import about
from ui.language import Language
from ui.sidebar.warmth import Warmth

NOTES = Attachment("notes.txt", "some notes", 10)
BOOK = Attachment("book.txt", "a whole book", 900_000)


class FakeSession:
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        self.model: ModelInfo | None = model_info()
        self.asked: list[tuple[str | None, Draft]] = []
        self.counted: list[tuple[str, ...]] = []
        self.is_gone = False

    def estimate(self, conversation_id: str | None, draft: Draft) -> str:
        if self.is_gone:
            raise UnknownConversationError("gone", id="gone")
        self.asked.append((conversation_id, draft))
        return f"estimate {len(self.asked)}"

    def count_tokens(self, texts: tuple[str, ...]) -> str:
        self.counted.append(texts)
        return f"count {len(self.counted)}"


def estimated(**values: object) -> Estimated:
    usual: dict[str, object] = {
        "conversation_id": "chat",
        "request_id": "estimate 1",
        "prompt_tokens": 6408,
        "new_tokens": 37,
        "from_disk_tokens": 0,
        "seconds": 0.06,
        "context_length": 8192,
    }
    return Estimated(**(usual | values))  # type: ignore[arg-type]


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def composer(qtbot: QtBot) -> Composer:
    result = Composer()
    qtbot.addWidget(result)
    result.resize(740, 200)
    result.show()
    qtbot.waitExposed(result)
    return result


@pytest.fixture
def feed(session: FakeSession, composer: Composer) -> CostFeed:
    result = CostFeed(session, composer, composer)
    result._timer.setInterval(1)
    result.show_conversation("chat")
    result._timer.stop()  # each test begins its own questions
    return result


@pytest.fixture
def korean(qtbot: QtBot) -> Iterator[None]:
    language = Language(resources_dir() / "translations")
    language.set_mode("ko")
    yield
    language.set_mode("en")


def settle(feed: CostFeed) -> None:
    """Let the moment after the last change pass."""
    while feed._timer.isActive():
        QCoreApplication.processEvents()


def write(composer: Composer, feed: CostFeed, text: str) -> None:
    composer.edit.insertPlainText(text)
    settle(feed)


# words


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "Sending reads 37 new tokens, about 0.06 s"),
        ({"new_tokens": 1}, "Sending reads 1 new token, about 0.06 s"),
        ({"seconds": 3.24}, "Sending reads 37 new tokens, about 3.2 s"),
        ({"seconds": 75.2}, "Sending reads 37 new tokens, about 1 min 15 s"),
        ({"seconds": None}, "Sending reads 37 new tokens"),
        ({"seconds": 0.0}, "Sending reads 37 new tokens"),
        ({"seconds": float("inf")}, "Sending reads 37 new tokens"),
        ({"seconds": float("nan")}, "Sending reads 37 new tokens"),
        (
            {"new_tokens": 6120, "seconds": 14.2, "miss_code": MissCode.MODEL_CHANGED},
            "Sending reads 6,120 tokens, about 14 s: the model changed",
        ),
        (
            {"new_tokens": 900, "seconds": 2.0, "miss_code": "history_changed", "miss_params": {"token": "88"}},
            "Sending reads 900 tokens, about 2.0 s: the chat changed after token 88",
        ),
        ({"new_tokens": 900, "seconds": None, "miss_code": "a later one"}, "Sending reads 900 tokens"),
        (
            {"from_disk_tokens": 5900, "seconds": 0.2},
            "Sending restores 5,900 tokens from disk and reads 37 new tokens, about 0.2 s",
        ),
        (
            {"num_dropped": 12},
            "Sending reads 37 new tokens, about 0.06 s; the oldest 12 messages will leave the model's view",
        ),
        (
            {"num_dropped": 1, "seconds": None},
            "Sending reads 37 new tokens; the oldest message will leave the model's view",
        ),
    ],
)
def test_the_cost_in_words(values: dict[str, object], words: str) -> None:
    cost = cost_of(estimated(**values), "SmolLM2", is_blank=False, has_files=False)
    assert cost is not None
    assert cost.words == words
    assert cost.strong in words
    assert not cost.is_refused


@pytest.mark.parametrize(
    ("values", "has_files", "words"),
    [
        (
            {"conversation_id": ""},
            True,
            "This message has 9,120 tokens with its files, but SmolLM2 reads at most 8,192 in all; shorten it",
        ),
        (
            {"num_dropped": 4},
            False,
            "This message has 9,120 tokens, but SmolLM2 reads at most 8,192 in all; shorten it",
        ),
        (
            {},
            True,
            "With this message the chat has 9,120 tokens, but SmolLM2 reads at most 8,192; shorten it or start anew",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(values: dict[str, object], has_files: bool, words: str) -> None:
    event = estimated(prompt_tokens=9120, fits=False, **values)
    cost = cost_of(event, "SmolLM2", is_blank=False, has_files=has_files)
    assert cost is not None
    assert (cost.words, cost.is_refused) == (words, True)


def test_an_empty_field_tells_only_a_cost_worth_knowing() -> None:
    assert cost_of(estimated(), "m", is_blank=True, has_files=False) is None
    cold = cost_of(
        estimated(new_tokens=6120, seconds=14.4, miss_code="model_changed"), "m", is_blank=True, has_files=False
    )
    assert cold is not None
    assert cold.words == "The next message will read 6,120 tokens, about 14 s: the model changed"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0123, "0.012 s"),
        (0.064, "0.06 s"),
        (0.1, "0.1 s"),
        (0.149, "0.15 s"),
        (0.2949, "0.29 s"),
        (0.34, "0.3 s"),
        (0.996, "1.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (0.00001, "0.001 s"),
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
    ],
)
def test_a_time_in_words(seconds: float | None, words: str) -> None:
    assert about(seconds) == words


def test_rounding_takes_little_of_what_an_estimate_may_be_wrong_by() -> None:
    seconds = 0.003
    while seconds < 59:
        shown = float(about(seconds).removesuffix(" s"))
        assert shown == pytest.approx(seconds, rel=0.2)
        seconds *= 1.01


def test_the_cost_in_korean(korean: None) -> None:
    cost = cost_of(estimated(), "m", is_blank=False, has_files=False)
    assert cost is not None
    assert (cost.words, cost.strong) == ("보내면 새 토큰 37개를 읽습니다, 약 0.06초", "새 토큰 37개")


# asking


def test_it_is_asked_once_the_writing_rests_and_shown(session: FakeSession, composer: Composer, feed: CostFeed) -> None:
    feed._timer.setInterval(250)
    for character in "hello":
        composer.edit.insertPlainText(character)
    assert session.asked == []
    settle(feed)
    assert session.asked == [("chat", Draft("hello"))]
    assert feed.take(estimated())
    assert composer.hint.text() == "Sending reads 37 new tokens, about 0.06 s"
    assert composer.hint.keys.text() == "Enter sends, Shift+Enter starts a new line"
    assert composer.hint.keys.isVisible()
    assert "<span" in composer.hint.label.text()


def test_the_keys_give_way_where_there_is_no_room(session: FakeSession, composer: Composer, feed: CostFeed) -> None:
    composer.resize(420, 200)
    write(composer, feed, "hello")
    feed.take(estimated())
    QApplication.processEvents()
    assert not composer.hint.keys.isVisible()


def test_never_twice_at_once(session: FakeSession, composer: Composer, feed: CostFeed) -> None:
    write(composer, feed, "one")
    write(composer, feed, " two")
    write(composer, feed, " three")
    assert len(session.asked) == 1
    assert feed.take(estimated())  # for a draft that is no longer there
    assert "Sending" not in composer.hint.text()
    settle(feed)
    assert session.asked[1:] == [("chat", Draft("one two three"))]
    feed.take(estimated(request_id="estimate 2", new_tokens=5))
    assert composer.hint.text() == "Sending reads 5 new tokens, about 0.06 s"


def test_a_change_meanwhile_is_asked_about_afterwards(session: FakeSession, composer: Composer, feed: CostFeed) -> None:
    write(composer, feed, "one")
    feed.take(PressureActed("chat", "drop", 1, None, 0, 0))
    settle(feed)
    assert len(session.asked) == 1
    feed.take(estimated())
    settle(feed)
    assert len(session.asked) == 2


def test_an_answer_lost_to_someone_elses_question_is_asked_for_again(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    write(composer, feed, "one")
    assert not feed.take(estimated(request_id="of another part"))
    settle(feed)
    assert len(session.asked) == 2


def test_nobody_asks_while_the_window_is_not_seen(
    qtbot: QtBot, session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    composer.hide()
    write(composer, feed, "one")
    assert session.asked == []
    composer.show()
    settle(feed)
    assert session.asked == [("chat", Draft("one"))]
    feed.take(estimated())
    composer.showMinimized()
    write(composer, feed, " two")
    assert len(session.asked) == 1
    composer.showNormal()
    settle(feed)
    assert session.asked[1:] == [("chat", Draft("one two"))]


def test_nobody_asks_while_a_reply_runs_or_without_a_model(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    composer.set_busy(True)
    write(composer, feed, "next")
    assert session.asked == []
    assert composer.hint.text() == "Esc stops the reply"
    composer.set_busy(False)
    settle(feed)
    assert session.asked == [("chat", Draft("next"))]
    session.model = None
    feed.take(Failed("load", None, "model_damaged", "Damaged."))
    settle(feed)
    assert len(session.asked) == 1
    session.model = model_info()
    feed.take(ModelLoaded("load", session.model))
    settle(feed)
    assert len(session.asked) == 2


def test_an_answer_that_comes_during_a_reply_is_not_shown(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    write(composer, feed, "one")
    composer.set_busy(True)
    assert feed.take(estimated())
    assert composer.hint.text() == "Esc stops the reply"


def test_the_cost_of_one_chat_is_never_shown_in_another(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    write(composer, feed, "one")
    feed.take(estimated())
    assert "37" in composer.hint.text()
    composer.show_draft(Draft("one"), owner="other")
    feed.show_conversation("other")
    assert "37" not in composer.hint.text()
    settle(feed)
    assert session.asked[-1] == ("other", Draft("one"))
    composer.show_draft(Draft("one"), owner="chat")
    feed.show_conversation("chat")
    feed.take(estimated(request_id="estimate 2", conversation_id="other", new_tokens=99))
    assert "99" not in composer.hint.text()


def test_an_empty_new_chat_is_not_asked_about(session: FakeSession, composer: Composer, feed: CostFeed) -> None:
    feed.show_conversation(None)
    settle(feed)
    assert session.asked == []
    write(composer, feed, "hello")
    assert session.asked == [(None, Draft("hello"))]


def test_failures_leave_the_hint_as_it_is_without_a_cost(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    write(composer, feed, "one")
    assert feed.take(Failed("estimate 1", "chat", "bug", "Something."))
    assert composer.hint.text() == "Enter sends, Shift+Enter starts a new line"
    session.is_gone = True
    write(composer, feed, " two")
    assert composer.hint.text() == "Enter sends, Shift+Enter starts a new line"
    session.is_gone = False
    write(composer, feed, " three")
    assert len(session.asked) == 2
    assert not feed.take(EngineStopped())
    assert not feed.take(estimated(request_id="estimate 2"))


def test_what_changes_the_cache_of_this_chat_is_asked_about_again(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    write(composer, feed, "one")
    feed.take(estimated())
    for event in (
        Compressed("chat", "x", 6408, 0.3, "kvzip", 1, 1, 1.0),
        PressureActed("chat", "drop", 1, None, 0, 0),
        PressureActed("another", "drop", 1, None, 0, 0),
    ):
        feed.take(event)
        settle(feed)
        if feed._question is not None:
            feed.take(estimated(request_id=feed._question.request_id))
            settle(feed)
    assert len(session.asked) == 3


# refusing


def test_what_does_not_fit_is_not_sent_and_the_draft_stays(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    sent: list[Draft] = []
    composer.send_requested.connect(sent.append)
    write(composer, feed, "far too long")
    feed.take(estimated(fits=False, prompt_tokens=9120))
    words = composer.hint.text()
    assert words.startswith(
        "With this message the chat has 9,120 tokens, but SmolLM2-135M-Instruct reads at most 8,192"
    )
    assert composer.button.isEnabled()  # no dead button: it tells
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    composer.button.click()
    assert sent == []
    assert composer.hint.label.property("loud")
    assert composer.hint.text() == words
    assert composer.draft == Draft("far too long")
    composer.set_hint("Another chat is answering; a message you send now waits its turn")
    assert composer.hint.text() == words  # the reason why nothing happens comes first
    composer.set_hint(None)
    composer.edit.setPlainText("short")  # not known yet: the engine decides
    assert not composer.hint.label.property("loud")
    composer.button.click()
    assert sent == [Draft("short")]


def test_the_tokens_of_files_are_counted_once_and_before_anything_else(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    composer.show_draft(Draft("", (NOTES, BOOK)), owner="chat")
    settle(feed)
    assert session.counted == [("some notes", "a whole book")]
    assert session.asked == []
    assert [chip.details.text() for chip in composer.files.chips] == ["10 B · …", "900 kB · …"]
    assert feed.take(TokensCounted("count 1", (4, 300), 8192))
    assert [chip.details.text() for chip in composer.files.chips] == ["10 B · 4 tokens", "900 kB · 300 tokens"]
    settle(feed)
    assert session.asked == [("chat", Draft("", (NOTES, BOOK)))]
    composer.files.chips[1].remove_button.click()
    composer.show_draft(Draft("", (NOTES,)), owner="chat")
    settle(feed)
    assert len(session.counted) == 1
    feed.take(ModelLoaded("load", model_info("Another")))  # other tokens
    assert composer.files.chips[0].details.text() == "10 B · …"
    settle(feed)
    assert session.counted[1:] == [("some notes",)]


def test_files_that_fill_the_context_are_refused_without_asking(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    sent: list[Draft] = []
    composer.send_requested.connect(sent.append)
    composer.show_draft(Draft("read", (NOTES, BOOK)), owner="chat")
    settle(feed)
    feed.take(TokensCounted("count 1", (4, 210_000), 8192))
    settle(feed)
    assert session.asked == []
    assert composer.hint.text() == (
        "The files have 210,004 tokens, but SmolLM2-135M-Instruct reads at most 8,192 in all; remove or shorten them"
    )
    composer.button.click()
    assert sent == []
    assert composer.draft == Draft("read", (NOTES, BOOK))
    composer.files.chips[1].remove_button.click()
    settle(feed)
    assert session.asked == [("chat", Draft("read", (NOTES,)))]


def test_of_a_book_only_as_much_is_counted_as_says_that_it_is_too_long(
    session: FakeSession, composer: Composer, feed: CostFeed
) -> None:
    book, spaces = Attachment("book.txt", "word " * 100_000, 500_000), Attachment("spaces.txt", " " * 70_000, 70_000)
    composer.show_draft(Draft("", (book, spaces)), owner="chat")
    settle(feed)
    assert [len(text) for text in session.counted[0]] == [8 * 8192, 8 * 8192]
    feed.take(TokensCounted("count 1", (13_108, 900), 8192))
    assert [chip.details.text() for chip in composer.files.chips] == ["500 kB · over 13,108 tokens", "70 kB · …"]
    settle(feed)
    assert session.counted[1:] == [(spaces.text,)]  # a part said too little
    feed.take(TokensCounted("count 2", (960,), 8192))
    assert composer.files.chips[1].details.text() == "70 kB · 960 tokens"
    settle(feed)
    assert composer.hint.text().startswith("The files have over 14,068 tokens, but SmolLM2-135M-Instruct reads at most")
    composer.files.chips[0].remove_button.click()
    settle(feed)
    assert session.asked[-1] == ("chat", Draft("", (spaces,)))


def test_without_a_model_files_have_a_size_only(session: FakeSession, composer: Composer, feed: CostFeed) -> None:
    session.model = None
    composer.show_draft(Draft("", (NOTES,)), owner="chat")
    settle(feed)
    assert session.counted == []
    assert composer.files.chips[0].details.text() == "10 B"


def test_the_cost_is_said_again_in_another_language(session: FakeSession, composer: Composer, feed: CostFeed) -> None:
    write(composer, feed, "one")
    feed.take(estimated())
    language = Language(resources_dir() / "translations")
    language.set_mode("ko")
    QCoreApplication.sendPostedEvents(None, QEvent.Type.LanguageChange)
    korean = composer.hint.text()
    language.set_mode("en")
    assert korean == "보내면 새 토큰 37개를 읽습니다, 약 0.06초"


# in the whole window


def test_the_whole_window_asks_and_tells(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.append(desk.add_conversation("chat")))
    desk.window.controller.open(ids[0])
    composer = desk.window.page.composer
    composer.edit.insertPlainText("and then?")

    def asked() -> list[Estimate]:
        return [
            one for one in desk.engine.commands if isinstance(one, Estimate) and one.messages[-1].text == "and then?"
        ]

    desk.qtbot.waitUntil(lambda: len(asked()) == 1)
    assert [message.text for message in asked()[0].messages] == ["question 0", "reply 0", "and then?"]
    assert asked()[0].conversation_id == ids[0]
    desk.engine.tell(estimated(conversation_id=ids[0], request_id=asked()[0].request_id))
    desk.settle()
    assert composer.hint.text() == "Sending reads 37 new tokens, about 0.06 s"
    desk.window.controller.open(None)
    assert composer.hint.text() == "Enter sends, Shift+Enter starts a new line"


def test_a_message_that_does_not_fit_reaches_no_engine_in_the_whole_window(open_desk: OpenDesk) -> None:
    desk = open_desk()
    composer = desk.window.page.composer
    composer.edit.insertPlainText("far too long")
    desk.qtbot.waitUntil(lambda: any(isinstance(one, Estimate) for one in desk.engine.commands))
    request_id = next(one.request_id for one in desk.engine.commands if isinstance(one, Estimate))
    desk.engine.tell(estimated(conversation_id="", request_id=request_id, fits=False, prompt_tokens=9120))
    desk.settle()
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    desk.settle()
    assert desk.engine.generates == []
    assert desk.store.conversations() == []
    assert composer.draft.text == "far too long"
    assert composer.hint.text().startswith(
        "This message has 9,120 tokens, but SmolLM2-135M-Instruct reads at most 8,192"
    )


# in the list


def test_a_row_tells_what_going_on_takes_once_the_pointer_rests_on_it(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("stored", "here", "open")))
    stored, here, shown = ids
    desk.window.controller.open(shown)
    model, view = desk.window.sidebar.model, desk.window.sidebar.view
    model.set_warmth(stored, Warmth(CacheState.ON_DISK, 6120, 148_000_000, "bf16"))
    model.set_warmth(here, Warmth(CacheState.WARM, 6120, 148_000_000, "bf16"))
    model.set_warmth(shown, Warmth(CacheState.ON_DISK, 6120, 148_000_000, "bf16"))

    def asked(conversation_id: str) -> list[Estimate]:
        mine = (one for one in desk.engine.commands if isinstance(one, Estimate))
        return [one for one in mine if one.conversation_id == conversation_id and not one.messages[-1].text]

    def rest_on(conversation_id: str) -> None:
        view.entered.emit(model.index_of(conversation_id))
        desk.qtbot.waitUntil(lambda: not desk.window.row_costs._timer.isActive())

    def tooltip() -> str:
        return str(model.index_of(stored).data(Qt.ItemDataRole.ToolTipRole))

    rest_on(here)
    assert asked(here) == [], "it goes on at once"
    rest_on(stored)
    rest_on(stored)
    assert len(asked(stored)) == 1, "one question is enough"
    assert "resumes without reading" in tooltip()
    desk.engine.tell(estimated(conversation_id=stored, request_id=asked(stored)[0].request_id, seconds=0.31))
    desk.settle()
    assert "resumes in about 0.3 s" in tooltip()
    rest_on(stored)
    assert len(asked(stored)) == 1, "it is known"
    model.set_warmth(stored, Warmth(CacheState.COLD))
    rest_on(stored)
    assert len(asked(stored)) == 2, "in another state it costs something else"
    desk.engine.tell(Failed(asked(stored)[1].request_id, stored, "template", "The template takes no such chat."))
    desk.settle()
    assert desk.window.page.transcript.notice is None, "nobody asked for anything that failed"
    rest_on(stored)
    assert len(asked(stored)) == 3


def test_the_draft_is_no_part_of_what_a_row_tells(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.append(desk.add_conversation("chat")))
    desk.window.controller.open(ids[0])
    desk.window.sidebar.model.set_warmth(ids[0], Warmth(CacheState.COLD))
    role = Qt.ItemDataRole.ToolTipRole
    for text, is_told in (("a long question", False), ("", True)):
        desk.window.page.composer.edit.setPlainText(text)
        num_asked = sum(isinstance(one, Estimate) for one in desk.engine.commands)
        desk.qtbot.waitUntil(
            lambda before=num_asked: sum(isinstance(one, Estimate) for one in desk.engine.commands) > before
        )
        request_id = [one.request_id for one in desk.engine.commands if isinstance(one, Estimate)][-1]
        desk.engine.tell(estimated(conversation_id=ids[0], request_id=request_id, new_tokens=6408))
        desk.settle()
        told = desk.window.sidebar.model.index_of(ids[0]).data(role)
        assert ("6,408" in told) is is_told
