from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest

from app.conversation import MessageState
from app.errors import DiskFullError
from app.settings import Settings
from engine.protocol.config import Weights
from engine.protocol.events import Failed, FinishReason, ModelLoaded, Phase, PhaseChanged, SnapshotNotSaved
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import turn_statistics
from ui.transcript.message_actions import Action
from ui.transcript.messages import AssistantMessage, UserMessage


def test_a_first_message_makes_a_conversation_and_its_reply_streams_into_the_window(desk: Desk) -> None:
    assert desk.window.page.is_empty
    request = desk.send("What is Jeju?")
    transcript = desk.window.page.transcript
    assert not desk.window.page.is_empty
    assert desk.window.page.composer.button.text() == "Stop"
    assert desk.window.header.title.full_text == "What is Jeju?"

    desk.engine.begin(request, "An **is")
    desk.engine.text(request, "land** in Korea.")
    desk.settle()
    desk.flush()
    question, reply = transcript.built()
    assert isinstance(question, UserMessage)
    assert isinstance(reply, AssistantMessage)
    assert question.text == "What is Jeju?"
    assert reply.body.plain_text().rstrip("▍") == "An island in Korea."
    assert not reply.statistics.isVisible()

    desk.engine.finish(request, "An **island** in Korea.")
    desk.settle()
    assert reply.body.plain_text() == "An island in Korea."
    assert reply.statistics.text.replace("\u00a0", " ").split("\u2003") == [
        "138 tok/s",
        "first token 0.06 s",
        "6,371 of 6,408 tokens reused",
    ]
    assert desk.window.page.composer.button.text() == "Send"
    stored = desk.store.messages(request.conversation_id)
    assert [message.text for message in stored] == ["What is Jeju?", "An **island** in Korea."]
    assert transcript.live is None


def test_one_may_type_at_once_after_the_start(desk: Desk) -> None:
    assert desk.window.focusWidget() is desk.window.page.composer.edit


def test_stop_cancels_the_request_and_the_reply_says_so(desk: Desk) -> None:
    request = desk.send("Tell me a long story")
    desk.engine.begin(request, "Once upon")
    desk.settle()
    desk.window.page.composer.button.click()
    assert desk.engine.cancelled == [request.request_id]
    statistics = turn_statistics(decode_tps=None, ttft_s=None)
    desk.engine.finish(request, "Once upon", FinishReason.CANCELLED, statistics)
    desk.settle()
    reply = desk.window.page.transcript.built()[-1]
    assert isinstance(reply, AssistantMessage)
    assert reply.statistics.text.startswith("Stopped")
    assert "tok/s" not in reply.statistics.text
    assert desk.window.page.composer.button.text() == "Send"


def test_escape_stops_only_while_a_reply_runs(desk: Desk) -> None:
    QTest.keyClick(desk.window, Qt.Key.Key_Escape)
    assert desk.engine.cancelled == []
    request = desk.send("hello")
    QTest.keyClick(desk.window.page.composer.edit, Qt.Key.Key_Escape)
    desk.settle()
    assert desk.engine.cancelled == [request.request_id]


def test_a_message_sent_while_the_model_loads_waits_for_it(open_desk: OpenDesk) -> None:
    desk = open_desk(loaded=False)
    assert "loading" in desk.window.page.composer.hint.text()
    desk.session.load_model(desk.library._paths.data_dir, Settings().weights)
    desk.window.page.composer.edit.setPlainText("early")
    desk.window.page.composer.button.click()
    assert desk.engine.generates == []
    desk.engine.load(desk.engine.loads[-1].request_id)
    desk.settle()
    assert [request.messages[-1].text for request in desk.engine.generates] == ["early"]
    assert desk.window.page.composer.button.text() == "Stop"


def test_a_failure_is_a_quiet_sentence_in_the_transcript_until_the_next_message(desk: Desk) -> None:
    request = desk.send("hello")
    desk.engine.fail(request, "out_of_memory", "Memory ran out.")
    desk.settle()
    notice = desk.window.page.transcript.notice
    assert notice is not None
    assert (
        notice.text == "Memory ran out, even after other chats were freed; close other programs or use a smaller model."
    )
    assert [type(widget) for widget in desk.window.page.transcript.built()] == [UserMessage]
    assert desk.window.page.composer.button.text() == "Send"
    desk.window.language.set_mode("ko")
    desk.settle()
    notice = desk.window.page.transcript.notice
    assert notice is not None
    assert notice.text.startswith("다른 대화를 비운 뒤에도")
    desk.send("again")
    assert desk.window.page.transcript.notice is None


def test_an_unknown_failure_shows_its_own_message(desk: Desk) -> None:
    request = desk.send("hello")
    desk.engine.fail(request, "from_the_future", "The flux is low; wait a moment.")
    desk.settle()
    assert desk.window.page.transcript.notice is not None
    assert desk.window.page.transcript.notice.text == "The flux is low; wait a moment."


def test_a_message_too_long_for_the_model_comes_back_before_what_was_typed_since(desk: Desk) -> None:
    first = desk.send("short")
    desk.engine.finish(first, "ok")
    desk.settle()
    request = desk.send("a very long message")
    composer = desk.window.page.composer
    composer.edit.setPlainText("typed since")
    desk.engine.fail(request, "context_overflow", "Too long.", prompt_tokens="9000", context_length="8192")
    desk.settle()
    assert composer.edit.toPlainText() == "a very long message\ntyped since"
    assert desk.store.conversation(request.conversation_id).draft.text == "a very long message\ntyped since"
    assert desk.transcript_text() == "short\nok"
    assert desk.window.page.transcript.notice is not None
    assert "9000" in desk.window.page.transcript.notice.text


def test_a_stored_draft_is_not_doubled_when_a_message_comes_back(desk: Desk) -> None:
    desk.engine.finish(desk.send("short"), "ok")
    desk.settle()
    request = desk.send("too long")
    desk.window.page.composer.edit.setPlainText("next")
    desk.window.drafts.keep()
    desk.engine.fail(request, "context_overflow", "Too long.", prompt_tokens="9000", context_length="8192")
    desk.settle()
    assert desk.window.page.composer.edit.toPlainText() == "too long\nnext"


def test_what_cannot_be_stored_is_not_sent_and_stays_in_the_field(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFullError("No space is left.", path="/data/ember.db")

    monkeypatch.setattr(desk.store, "add_message", full)
    desk.window.page.composer.edit.setPlainText("precious")
    desk.window.page.composer.button.click()
    desk.settle()
    assert desk.engine.generates == []
    assert desk.window.page.composer.edit.toPlainText() == "precious"
    assert desk.window.page.transcript.notice is not None
    assert "/data/ember.db" in desk.window.page.transcript.notice.text
    assert desk.window.page.composer.button.text() == "Send"


def test_a_chat_opened_while_its_reply_streams_shows_all_that_has_come(open_desk: OpenDesk) -> None:
    other: list[str] = []
    desk = open_desk(fill=lambda desk: other.append(desk.add_conversation("other")))
    request = desk.send("count")
    desk.engine.begin(request, "one ")
    desk.engine.text(request, "two ")
    desk.settle()
    desk.window.controller.open(other[0])
    assert desk.window.page.composer.button.text() == "Send"
    desk.engine.text(request, "three")
    desk.settle()
    assert desk.transcript_text() == "question 0\nreply 0"
    desk.window.controller.open(request.conversation_id)
    assert desk.transcript_text() == "count\none two three"
    assert desk.window.page.composer.button.text() == "Stop"
    desk.engine.finish(request, "one two three")
    desk.settle()
    assert desk.transcript_text() == "count\none two three"
    assert desk.store.messages(request.conversation_id)[-1].state is MessageState.COMPLETE


def test_events_of_a_deleted_conversation_are_ignored(desk: Desk) -> None:
    request = desk.send("soon gone")
    desk.window.deletions.delete(request.conversation_id)
    desk.window.deletions.commit()
    desk.engine.begin(request, "late")
    desk.engine.tell(PhaseChanged(request.conversation_id, request.request_id, Phase.SAVING))
    desk.engine.finish(request, "late")
    desk.engine.saved(request)
    desk.settle()
    assert desk.window.page.is_empty
    assert desk.store.conversations() == []
    desk.qtbot.waitUntil(lambda: desk.window.meter.state.text() == "Ready")


def test_copy_puts_the_markdown_of_the_reply_on_the_clipboard(desk: Desk) -> None:
    request = desk.send("hello")
    desk.engine.finish(request, "**bold**")
    desk.settle()
    reply = desk.window.page.transcript.built()[-1]
    assert isinstance(reply, AssistantMessage)
    reply.perform(Action.COPY)
    assert QGuiApplication.clipboard().text() == "**bold**"


def test_a_suggestion_is_sent(desk: Desk) -> None:
    button = desk.window.page.empty.suggestions[1]
    button.click()
    desk.settle()
    assert desk.engine.generates[-1].messages[-1].text == "Write a short poem about rain on a tin roof"


def test_a_model_that_cannot_be_loaded_is_said_under_the_composer_and_the_window_lives_on(open_desk: OpenDesk) -> None:
    desk = open_desk(loaded=False)
    desk.engine.tell(Failed("start", None, "model_damaged", "Damaged.", {"path": "/m/x.gguf"}))
    desk.settle()
    sentence = "The model at /m/x.gguf is damaged or incomplete; fetch it again, or choose another one at the top."
    assert desk.window.page.composer.hint.text() == sentence
    assert desk.window.page.empty.status.text() == sentence
    desk.qtbot.waitUntil(lambda: desk.window.meter.state.text() == "No model")
    assert desk.window.header.model_button.text() == "Choose a model"
    desk.load()
    assert desk.window.page.empty.status.text() == "SmolLM2-135M-Instruct is ready"
    assert desk.window.header.model_button.text() == "SmolLM2-135M · 16-bit"


def test_a_cache_that_cannot_be_saved_is_told_once(desk: Desk) -> None:
    request = desk.send("hello")
    desk.engine.finish(request, "hi")
    desk.engine.tell(SnapshotNotSaved(request.conversation_id, request.request_id, "The disk is full."))
    desk.settle()
    notice = desk.window.page.transcript.notice
    assert notice is not None
    assert notice.text.endswith("The disk is full.")
    request = desk.send("more")
    desk.engine.finish(request, "sure")
    desk.engine.tell(SnapshotNotSaved(request.conversation_id, request.request_id, "The disk is full."))
    desk.settle()
    assert desk.window.page.transcript.notice is None


def test_choosing_other_weights_loads_the_model_again(desk: Desk) -> None:
    desk.window.preferences.choose_weights("4bit")  # the test's library is empty: a sentence, not an exception
    desk.settle()
    assert "model" in desk.window.page.composer.hint.text()
    assert desk.saved[-1].weights == "4bit"


@pytest.mark.parametrize(("language", "words"), [("en", "loaded in 1.2 s"), ("ko", "불러오기 1.2초")])
def test_the_menu_tells_what_each_precision_took(open_desk: OpenDesk, language: str, words: str) -> None:
    desk = open_desk(Settings(language=language, theme="light"))
    model = desk.session.model
    assert model is not None
    desk.library.handle(ModelLoaded("r", replace(model, weights=Weights.BITS_4, weights_bytes=97_000_000, load_s=1.2)))
    menu = desk.window.header.model_menu
    menu.aboutToShow.emit()
    shown = {action.data(): action.text() for action in menu.actions() if action.data() in set(Weights)}
    assert shown[Weights.BITS_16] == "16-bit"
    assert shown[Weights.BITS_4].startswith("4-bit   97 MB")
    assert words in shown[Weights.BITS_4]


@pytest.mark.parametrize("num_turns", [2, 20])
def test_a_window_at_rest_lays_nothing_out(open_desk: OpenDesk, num_turns: int) -> None:
    """It once did, for ever: painting asked for a layout, and a core was kept busy."""
    desk = open_desk(fill=lambda desk: desk.add_conversation("chat", num_turns), reopens=True)
    transcript = desk.window.page.transcript
    desk.qtbot.waitUntil(lambda: transcript.num_built > 0 and not transcript.is_building)
    desk.qtbot.waitUntil(lambda: not desk.window.meter._timer.isActive())  # what the load told is drawn: now it rests
    desk.settle()

    class Watcher(QObject):
        seen: ClassVar[list[str]] = []

        def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802
            if event.type() == QEvent.Type.LayoutRequest:
                self.seen.append(type(watched).__name__)
            return False

    watcher = Watcher()
    application = QCoreApplication.instance()
    assert application is not None
    application.installEventFilter(watcher)
    desk.qtbot.wait(200)  # the time in which nothing may happen
    application.removeEventFilter(watcher)
    assert len(watcher.seen) < 10
