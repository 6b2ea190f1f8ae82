"""How the transcript feels: opening and scrolling 2,000 messages, a fast reply, long code, and opening chats all day.

make bench ARGS="tests/benchmarks/bench_transcript.py"
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import psutil
import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QObject, QPoint, QPointF, Qt, QTimer
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.conversation import Message, MessageState
from app.paths import resources_dir
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason
from ui.theme import Theme
from ui.transcript.transcript import Transcript

BEAT_MS = 2
NUM_MESSAGES = 2000
PROSE = "Some **words** of a paragraph that runs over more than one line of the reading column, with `code` in it. "
CODE = "def total_{n}(costs: dict[str, int]) -> int:  # of {n}\n    return sum(costs.values()) + {n}\n\n"
KINDS = (
    "Yes.",
    PROSE * 2,
    "\n\n".join([PROSE * 4] * 6),
    "## A title\n\n- one\n- two\n  - three\n\n> quoted\n\n" + PROSE,
    "Look:\n\n```python\n" + "".join(CODE.format(n=n) for n in range(15)) + "```\n\nDone.",
    "| a | b | c |\n|---|---|---|\n" + "| one | two | three |\n" * 12,
    "한국어 문장이 여러 줄에 걸쳐 이어집니다. " * 20,
)


def chat(count: int, seed: int = 1) -> list[Message]:
    rng = random.Random(seed)
    now = datetime.now(UTC)
    roles = (Role.USER, Role.ASSISTANT)
    return [Message(seed * 10_000 + n, "c", roles[n % 2], rng.choice(KINDS), now) for n in range(count)]


class Heartbeat(QObject):
    """The gaps between beats of the GUI thread, in seconds; `work` is what of each the thread itself was busy, which
    other programs on the machine do not lengthen."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[float] = []
        self.work: list[float] = []
        self._last, self._last_work = time.perf_counter(), time.thread_time()
        self._timer = QTimer(self, interval=BEAT_MS)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_beat)
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()

    def _on_beat(self) -> None:
        now, work = time.perf_counter(), time.thread_time()
        self.gaps.append(now - self._last)
        self.work.append(work - self._last_work)
        self._last, self._last_work = now, work


class Paints(QObject):
    """How often a window was drawn."""

    count = 0

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802
        if event.type() == QEvent.Type.UpdateRequest:
            self.count += 1
        return False


@pytest.fixture
def transcript(qtbot: QtBot) -> Iterator[Transcript]:
    theme = Theme(resources_dir() / "themes")
    theme.set_mode("light")
    result = Transcript(theme)
    theme.setParent(result)
    qtbot.addWidget(result)
    result.resize(1000, 760)
    result.show()
    qtbot.waitExposed(result)
    gc.collect()
    gc.freeze()  # as the engine does when a model is loaded
    yield result
    gc.unfreeze()


def until(is_reached: Callable[[], bool]) -> None:
    while not is_reached():
        QCoreApplication.processEvents()


def settle(transcript: Transcript) -> None:
    until(lambda: not transcript.is_building)
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


def wheel(transcript: Transcript, notches: int) -> None:
    at = QPointF(transcript.viewport().rect().center())
    event = QWheelEvent(
        at, at, QPoint(0, 0), QPoint(0, 120 * notches), Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(transcript.viewport(), event)


def test_opening_a_long_chat(transcript: Transcript) -> None:
    times: list[float] = []
    for number in range(5):
        messages = chat(NUM_MESSAGES, number + 1)
        started = time.perf_counter()
        transcript.show_messages(messages, None, None)
        transcript.grab()
        times.append(time.perf_counter() - started)
        settle(transcript)
    started = time.perf_counter()
    transcript.go_to(messages[3].id, "words")
    transcript.grab()
    jump = time.perf_counter() - started
    print(
        f"\n{NUM_MESSAGES} messages: shown and drawn in {statistics.median(times) * 1e3:.0f} ms (median),"
        f" {max(times) * 1e3:.0f} ms (worst of 5); to message 3 in {jump * 1e3:.0f} ms; {transcript.num_built} widgets"
    )
    assert max(times) < 1.0
    assert jump < 0.3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("notches", [1, 5])
def test_scrolling_from_the_end_to_the_start_by_the_wheel(transcript: Transcript, notches: int) -> None:
    """A step each 8 ms, which is as fast as a wheel spins; single notches through the last tenth of the chat."""
    transcript.show_messages(chat(NUM_MESSAGES), None, None)
    settle(transcript)
    bar = transcript.verticalScrollBar()
    most = 0
    steps = QTimer(interval=8)
    steps.timeout.connect(lambda: wheel(transcript, notches))
    heartbeat = Heartbeat()
    steps.start()
    least = 0 if notches > 1 else bar.maximum() * 9 // 10

    def is_there() -> bool:
        nonlocal most
        most = max(most, transcript.num_built)
        return bar.value() <= least

    until(is_there)
    steps.stop()
    heartbeat.stop()
    report(f"wheel, {notches} notches a step", heartbeat, f"; at most {most} widgets at once")


@pytest.mark.timeout(600)
def test_dragging_the_bar_from_the_end_to_the_start(transcript: Transcript) -> None:
    transcript.show_messages(chat(NUM_MESSAGES), None, None)
    settle(transcript)
    bar = transcript.verticalScrollBar()
    heartbeat = Heartbeat()
    places = iter(range(1000, -1, -1))
    steps = QTimer(interval=8)
    is_done = False

    def drag() -> None:
        nonlocal is_done
        place = next(places, None)
        if place is None:
            is_done = True
        else:
            bar.setValue(bar.maximum() * place // 1000)

    steps.timeout.connect(drag)
    steps.start()
    until(lambda: is_done)
    steps.stop()
    heartbeat.stop()
    report("dragging", heartbeat)


def report(what: str, heartbeat: Heartbeat, more: str = "") -> None:
    print(f"\n{what}{more}")
    for name, gaps in (("gaps", heartbeat.gaps), ("of them work", heartbeat.work)):
        p99 = sorted(gaps)[int(len(gaps) * 0.99)]
        print(
            f"  {name}: longest {max(gaps) * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms,"
            f" {sum(gap > 0.05 for gap in gaps)} above 50 ms of {len(gaps)}"
        )


def turn() -> tuple[Message, Message]:
    now = datetime.now(UTC)
    return Message(1, "c", Role.USER, "Go.", now), Message(2, "c", Role.ASSISTANT, "", now, MessageState.STREAMING)


@pytest.mark.timeout(600)
def test_the_cost_of_a_flush_stays_while_code_grows_to_twenty_thousand_tokens(transcript: Transcript) -> None:
    """34 tokens a flush, drawn each time, in time of the thread: other programs do not count."""
    transcript.show_messages([], None, None)
    transcript.add_turn(*turn())
    live = transcript.live
    assert live is not None
    transcript.append_text("```python\n")
    source = "".join(CODE.format(n=n) for n in range(700))
    pieces = [source[at : at + 3] for at in range(0, len(source), 3)][:20_000]
    assert len(pieces) >= 19_000
    batches: list[float] = []
    for at in range(0, len(pieces), 34):
        transcript.append_text("".join(pieces[at : at + 34]))
        live._flush_timer.stop()
        QCoreApplication.processEvents()
        started = time.thread_time()
        live._flush()
        flushed = time.thread_time()
        QCoreApplication.processEvents()
        batches.append(time.thread_time() - started)
        if at % 3400 == 0:
            print(f"  {at:6} tokens: flush {(flushed - started) * 1e3:.1f} ms, with drawing {batches[-1] * 1e3:.1f} ms")
    each = 1000 // 34
    first, last = statistics.median(batches[1 : each + 1]), statistics.median(batches[-each:])
    print(
        f"\na flush of 34 tokens of code and its drawing: {first * 1e3:.1f} ms in the first thousand,"
        f" {last * 1e3:.1f} ms in the last of {len(pieces)} ({last / first:.2f} times); height {live.height()} px"
    )
    assert last < 1.5 * first


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["prose", "code"])
def test_a_thousand_tokens_a_second(transcript: Transcript, kind: str) -> None:
    transcript.show_messages(chat(30), None, None)
    transcript.add_turn(*turn())
    settle(transcript)
    words = (PROSE * 3 + "\n\n").split(" ") if kind == "prose" else CODE.format(n=1).split(" ")
    if kind == "code":
        transcript.append_text("```python\n")
    sent = 0
    started = time.perf_counter()
    feed = QTimer(interval=33)
    feed.setTimerType(Qt.TimerType.PreciseTimer)

    def arrive() -> None:
        nonlocal sent
        due = int((time.perf_counter() - started) * 1000)
        text = " ".join(words[number % len(words)] for number in range(sent, due)) + " "
        sent = due
        transcript.append_text(text)

    feed.timeout.connect(arrive)
    paints, heartbeat = Paints(), Heartbeat()
    transcript.installEventFilter(paints)
    feed.start()
    until(lambda: time.perf_counter() - started > 10)
    feed.stop()
    heartbeat.stop()
    transcript.removeEventFilter(paints)
    took = time.perf_counter() - started
    report(f"{kind} at 1,000 tokens a second", heartbeat, f"; drawn {paints.count / took:.1f} times a second")
    transcript.finish_live(None, None, FinishReason.STOP)


@pytest.mark.timeout(600)
def test_opening_chats_all_day(transcript: Transcript) -> None:
    process = psutil.Process()
    chats = [chat(30, seed) for seed in range(1, 9)]
    sizes: list[tuple[int, int]] = []
    for number in range(200):
        transcript.show_messages(chats[number % len(chats)], None, None)
        settle(transcript)
        transcript.show_messages([], None, None)
        settle(transcript)
        sizes.append((process.memory_info().rss, len(QApplication.allWidgets())))
    growth = sizes[-1][0] / sizes[20][0] - 1
    print(
        f"\n200 chats opened: {sizes[20][0] / 1e6:.0f} MB after 20, {sizes[-1][0] / 1e6:.0f} MB after 200"
        f" ({growth:+.1%}); widgets {sizes[20][1]} and {sizes[-1][1]}"
    )
    assert growth < 0.05
    assert sizes[-1][1] == sizes[20][1]
