"""A message sent while the cache lab measures waits behind that on the one inference thread, and the window says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from engine.protocol.commands import BenchName, Generate, RunBench
from engine.protocol.events import BenchFinished, BenchProgress, EngineStopped, Failed
from tests.ui.conftest import Desk, OpenDesk

WAITS = "This chat waits for the measurement of the cache lab"
WOULD_WAIT = "The cache lab is measuring; a message you send now waits for it"


def measure(desk: Desk) -> RunBench:
    """Open the lab and press Measure. The request the engine got."""
    desk.window.lab.open()
    assert desk.window.lab.window is not None
    desk.window.lab.window.show_page(BenchName.USE_CACHE).run_button.click()
    desk.settle()
    command = desk.engine.commands[-1]
    assert isinstance(command, RunBench)
    desk.engine.tell(BenchProgress(command.request_id, 1, 5, None))
    desk.settle()
    desk.window.activateWindow()
    desk.qtbot.waitUntil(desk.window.isActiveWindow)
    return command


def hint(desk: Desk) -> tuple[str, bool]:
    """The words under the composer, and whether there is a button to stop the measurement."""
    line = desk.window.page.composer.hint
    return line.text(), line.action.isVisible()


def strip_says(desk: Desk, words: str) -> None:
    desk.qtbot.waitUntil(lambda: desk.window.meter.state.text() == words)


def answer(desk: Desk, request: Generate) -> None:
    desk.engine.begin(request, "hi")
    desk.settle()
    assert hint(desk) == ("Esc stops the reply", False)
    strip_says(desk, "Answering")
    desk.engine.finish(request, "hi")
    desk.settle()
    assert desk.transcript_text() == "hello\nhi"


def finish(desk: Desk, command: RunBench) -> None:
    desk.engine.tell(BenchFinished(command.request_id, {"rows": []}))


def stopped(desk: Desk, command: RunBench) -> None:
    line = desk.window.page.composer.hint
    line.action.click()
    assert desk.engine.cancelled == [command.request_id], "the measurement, and not the message"
    assert desk.window.focusWidget() is desk.window.page.composer.edit
    assert hint(desk) == (WAITS, False), "until the engine has heard of it"
    desk.engine.tell(Failed(command.request_id, None, "bench", "The measurement was stopped.", {}))


def lab_closed(desk: Desk, command: RunBench) -> None:
    assert desk.window.lab.window is not None
    desk.window.lab.window.close()
    assert desk.engine.cancelled == [command.request_id]


@pytest.mark.parametrize("end", [finish, stopped, lab_closed])
def test_a_message_sent_during_a_measurement_says_that_it_waits_until_that_has_ended(
    desk: Desk, end: Callable[[Desk, RunBench], None]
) -> None:
    command = measure(desk)
    request = desk.send("hello")
    assert hint(desk) == (WAITS, True)
    strip_says(desk, "Waiting")
    end(desk, command)
    desk.settle()
    assert WAITS not in hint(desk)[0]
    assert not hint(desk)[1]
    answer(desk, request)


def test_the_sentence_goes_when_the_reply_starts_whatever_the_lab_says(desk: Desk) -> None:
    measure(desk)
    answer(desk, desk.send("hello"))


def test_while_the_lab_measures_nothing_says_that_the_engine_is_ready(desk: Desk) -> None:
    strip_says(desk, "Ready")
    command = measure(desk)
    assert hint(desk) == (WOULD_WAIT, True)
    strip_says(desk, "Measuring")
    assert desk.window.page.empty.status.text() == "Measuring"
    finish(desk, command)
    desk.settle()
    assert not hint(desk)[1]
    assert WOULD_WAIT not in hint(desk)[0]
    strip_says(desk, "Ready")


def test_a_message_sent_before_the_measurement_does_not_wait_for_it(desk: Desk) -> None:
    request = desk.send("hello")
    measure(desk)
    assert hint(desk) == ("Esc stops the reply", False)
    answer(desk, request)
    assert hint(desk) == (WOULD_WAIT, True), "now it is the lab's turn"


def test_another_chat_says_it_as_well_and_the_one_that_waits_again_when_it_is_back(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.append(desk.add_conversation("other")))
    measure(desk)
    request = desk.send("hello")
    desk.window.controller.open(ids[0])
    assert hint(desk) == (WOULD_WAIT, True)
    desk.window.controller.open(request.conversation_id)
    assert hint(desk) == (WAITS, True)


def test_a_message_that_waits_can_be_taken_back_with_the_keyboard_and_the_measurement_goes_on(desk: Desk) -> None:
    command = measure(desk)
    request = desk.send("hello")
    QTest.keyClick(desk.window.page.composer.edit, Qt.Key.Key_Escape)
    assert desk.engine.cancelled == [request.request_id]
    desk.engine.finish(request, "")
    desk.settle()
    assert hint(desk) == (WOULD_WAIT, True)
    finish(desk, command)


def test_the_sentence_follows_the_language_and_goes_with_the_engine(desk: Desk) -> None:
    measure(desk)
    desk.send("hello")
    desk.window.language.set_mode("ko")
    desk.settle()
    assert hint(desk) == ("이 대화는 캐시 실험실의 측정이 끝나기를 기다리고 있습니다", True)
    assert desk.window.page.composer.hint.action.text() == "측정 멈추기"
    desk.engine.tell(EngineStopped())
    desk.settle()
    assert not hint(desk)[1]
    desk.window.language.set_mode("en")
