from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from time import monotonic

import pytest
from PySide6.QtCore import QEvent, QObject, QPoint, QRect, Qt, QTimer
from PySide6.QtGui import QAccessible, QPaintEvent
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.conversation import MessageState
from app.settings import Settings
from engine.protocol.commands import Role
from engine.protocol.events import (
    CacheReading,
    CacheReported,
    FinishReason,
    LoadStage,
    MemoryReading,
    ModelLoading,
    Phase,
    PhaseChanged,
    PressureActed,
    SnapshotSaved,
)
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import GB, MB, turn_statistics
from ui import numbers
from ui.meter.meter_reading import EngineState, MeterReading
from ui.meter.strip import MeterStrip
from ui.theme import Theme
from ui.transcript.statistics_line import statistics_items


def state(desk: Desk) -> str:
    desk.qtbot.waitUntil(lambda: not desk.window.meter._timer.isActive())
    return desk.window.meter.state.text()


def test_the_state_goes_through_load_restore_prefill_thinking_answering_saving(open_desk: OpenDesk) -> None:
    desk = open_desk(loaded=False)
    assert state(desk) == "Starting engine"
    for stage, fraction, words in (
        (LoadStage.CONVERTING, 0.07, "Converting model 7 %"),
        (LoadStage.TOKENIZER, None, "Loading tokenizer"),
        (LoadStage.WEIGHTS, 0.4, "Loading model 40 %"),
        (LoadStage.WARMING_UP, None, "Warming up"),
    ):
        desk.engine.tell(ModelLoading("start", stage, fraction))
        desk.settle()
        assert state(desk) == words
    desk.load()
    assert state(desk) == "Ready"
    request = desk.send("hello")
    ids = (request.conversation_id, request.request_id)
    assert state(desk) == "Waiting"
    for event, words in (
        (PhaseChanged(*ids, Phase.RESTORING), "Restoring"),
        (PhaseChanged(*ids, Phase.PREFILL, 0, 6408, None), "Reading 0 %"),
        (PhaseChanged(*ids, Phase.PREFILL, 3974, 6408, 3.2), "Reading 62 % · 3 s left"),
        (PhaseChanged(*ids, Phase.ANSWERING), "Thinking"),
    ):
        desk.engine.tell(event)
        desk.settle()
        assert state(desk) == words
    desk.engine.text(request, "Hi")
    desk.settle()
    assert state(desk) == "Answering"
    desk.engine.finish(request, "Hi")
    desk.engine.tell(PhaseChanged(*ids, Phase.SAVING))
    desk.settle()
    assert state(desk) == "Saving"
    desk.engine.tell(SnapshotSaved(*ids, 10, 1, 1, 0.1))
    desk.settle()
    assert state(desk) == "Ready"


def test_another_chat_at_work_is_said(open_desk: OpenDesk) -> None:
    desk = open_desk()
    request = desk.send("first")
    desk.engine.begin(request, "a")
    desk.settle()
    desk.window.controller.open(None)
    assert state(desk) == "Busy in another chat"
    assert "waits its turn" in desk.window.page.composer.hint.text()


def test_the_values_are_those_of_the_events(desk: Desk) -> None:
    request = desk.send("hello")
    desk.engine.begin(request, "Hi")
    desk.engine.tell(desk.engine.statistics(request, 138.2, ttft_s=0.061))
    desk.settle()
    meter = desk.window.meter
    desk.qtbot.waitUntil(lambda: not meter._timer.isActive())
    assert meter.context.value.text() == "6,412 / 8,192"
    assert meter.cache.value.text() == "148 MB"
    assert meter.cache.note.text() == "16 bit"
    assert meter.memory.value.text() == "3.2 / 8.0 GB"
    assert meter.speed.value.text() == "138 tok/s"
    assert meter.speed.note.text() == "first token 0.06 s"


def test_a_thousand_tokens_a_second_are_shown_within_five_percent(desk: Desk) -> None:
    request = desk.send("hello")
    desk.engine.begin(request, "Hi")
    desk.engine.tell(desk.engine.statistics(request, 1000.0))
    desk.settle()
    meter = desk.window.meter
    desk.qtbot.waitUntil(lambda: meter.speed.value.text() != numbers.DASH)
    shown = float(meter.speed.value.text().removesuffix(" tok/s").replace(",", ""))
    assert shown == pytest.approx(1000, rel=0.05)


def test_at_most_ten_repaints_a_second_and_none_while_hidden(qtbot: QtBot, theme: Theme) -> None:
    strip = MeterStrip(theme)
    qtbot.addWidget(strip)
    for _ in range(100):
        strip.show_reading(MeterReading())
    assert not strip._timer.isActive()
    strip.resize(1200, 40)
    strip.show()
    before = strip.num_paints
    for _ in range(1000):
        strip.show_reading(MeterReading(context_tokens=1, context_length=2))
    assert strip.num_paints == before
    assert strip._timer.isActive()
    qtbot.waitUntil(lambda: strip.num_paints == before + 1)
    assert strip.context.value.text() == "1 / 2"


def test_readings_without_end_make_at_most_ten_updates_a_second(qtbot: QtBot, strip: MeterStrip) -> None:
    flood = QTimer(strip, interval=0)
    flood.timeout.connect(lambda: strip.show_reading(MeterReading(context_tokens=strip.num_paints, context_length=9)))
    before, started = strip.num_paints, monotonic()
    flood.start()
    qtbot.waitUntil(lambda: strip.num_paints >= before + 5)
    made, elapsed = strip.num_paints - before, monotonic() - started
    flood.stop()
    assert made <= elapsed * 10 + 0.01  # a timer counts whole milliseconds


def test_after_a_reply_that_failed_the_meter_rests_with_what_the_one_before_told(desk: Desk) -> None:
    meter = desk.window.meter
    desk.engine.finish(desk.send("hello"), "Hi")
    desk.settle()
    desk.qtbot.waitUntil(lambda: meter.speed.value.text() == "138 tok/s")
    request = desk.send("and more")
    assert meter.reading.decode_tps is None  # the one before is over
    desk.engine.fail(request, "out_of_memory", "There is no memory left.")
    desk.settle()
    assert state(desk) == "Ready"
    assert (meter.speed.value.text(), meter.context.value.text()) == ("138 tok/s", "6,412 / 8,192")


def test_nothing_is_made_while_the_window_is_minimised_and_all_of_it_is_current_when_it_is_back(desk: Desk) -> None:
    meter = desk.window.meter
    request = desk.send("hello")
    desk.engine.begin(request, "Hi")
    desk.engine.tell(desk.engine.statistics(request, 100.0, ttft_s=0.5))
    desk.qtbot.waitUntil(lambda: meter.speed.value.text() == "100 tok/s")
    for hide, show in (
        (desk.window.showMinimized, desk.window.showNormal),
        (desk.window.hide, desk.window.show),
        (meter.hide, meter.show),
    ):
        hide()
        desk.settle()
        made, before = meter.num_paints, meter.speed.value.text()
        speed = meter.reading.decode_tps or 0.0
        desk.engine.tell(desk.engine.statistics(request, speed + 11, ttft_s=0.5))
        desk.settle()
        assert not meter._timer.isActive()
        assert (meter.num_paints, meter.speed.value.text()) == (made, before)
        show()
        assert meter.speed.value.text() == f"{speed + 11:.0f} tok/s"


class Watcher(QObject):
    """Which widgets were painted where the strip is, and how often one of its own was laid out."""

    def __init__(self, strip: MeterStrip) -> None:
        super().__init__()
        self.painted: set[QWidget] = set()
        self.num_layouts = 0
        self._strip = strip
        self._place = QRect(strip.mapTo(strip.window(), QPoint()), strip.size())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 (Qt's name)
        if isinstance(event, QPaintEvent) and isinstance(watched, QWidget):
            top = watched.mapTo(watched.window(), event.rect().topLeft())
            if watched.window() is self._strip.window() and QRect(top, event.rect().size()).intersects(self._place):
                self.painted.add(watched)
        elif event.type() == QEvent.Type.LayoutRequest and watched in [self._strip, *self._strip.findChildren(QWidget)]:
            self.num_layouts += 1
        return False


def test_an_update_paints_the_numbers_that_changed_and_nothing_behind_them(desk: Desk, qapp: QApplication) -> None:
    meter = desk.window.meter
    request = desk.send("hello")
    desk.engine.begin(request, "Hi")
    reading = replace(meter.reading, decode_tps=100.0, context_tokens=6000, context_length=8192, state=ANSWERING)
    meter.show_now(reading)
    desk.settle()
    watcher = Watcher(meter)
    qapp.installEventFilter(watcher)
    meter.show_now(replace(reading, decode_tps=120.0))
    desk.settle()
    qapp.removeEventFilter(watcher)
    assert watcher.painted == {meter, meter.speed, meter.speed.value}
    assert watcher.num_layouts == 0


ANSWERING = EngineState(Phase.ANSWERING, has_model=True)


@pytest.fixture
def strip(qtbot: QtBot, theme: Theme) -> MeterStrip:
    strip = MeterStrip(theme)
    qtbot.addWidget(strip)
    strip.resize(1200, 40)
    strip.show()
    return strip


def test_the_spoken_text_does_not_change_with_every_reading(qtbot: QtBot, strip: MeterStrip) -> None:
    strip.show_now(MeterReading(decode_tps=10.0, state=ANSWERING))
    spoken = strip.speed.accessibleName()
    strip.show_now(MeterReading(decode_tps=20.0, state=ANSWERING))
    assert strip.speed.value.text() == "20 tok/s"
    assert strip.speed.accessibleName() == spoken
    qtbot.waitUntil(lambda: "20 tok/s" in strip.speed.accessibleName(), timeout=4000)


def test_what_an_event_changes_is_spoken_at_once(strip: MeterStrip) -> None:
    strip.show_now(MeterReading(decode_tps=10.0, state=ANSWERING))
    strip.show_now(MeterReading(decode_tps=20.0, state=EngineState(Phase.SAVING, has_model=True)))
    assert strip.speed.accessibleName() == "Speed 20 tok/s"
    assert strip.state.accessibleName() == "State: Saving"
    for speed in (30.0, 40.0):
        strip.show_now(MeterReading(decode_tps=speed, state=EngineState(has_model=True)))
        assert strip.speed.accessibleName() == f"Speed {speed:.0f} tok/s"


def test_no_gauge_moves_when_its_numbers_get_wider(strip: MeterStrip) -> None:
    places = []
    for tokens, nbytes, speed, used in ((9, 9_000, 8.1, 1), (6412, 148 * MB, 138.2, 5), (8192, 999 * MB, 700, 7)):
        reading = MeterReading(
            context_tokens=tokens,
            context_length=8192,
            cache=CacheReading(tokens, nbytes, "bf16", "cpu"),
            memory=MemoryReading(GB, (8 - used) * GB, 8 * GB),
            decode_tps=speed,
            state=ANSWERING,
        )
        strip.show_now(reading)
        places.append([cell.geometry() for cell in (strip.context, strip.cache, strip.memory, strip.speed)])
    assert places[0] == places[1] == places[2]


def test_the_dot_stands_still_while_percent_and_time_count(strip: MeterStrip) -> None:
    places = []
    for fraction, left in ((0.5, 12.0), (0.09, 9.0), (1.0, 1.0)):
        strip.show_now(MeterReading(state=EngineState(Phase.PREFILL, fraction=fraction, remaining_s=left)))
        places.append(strip._dot.x())
    assert places[1] == places[0]
    assert places[0] - places[2] < 12  # "100 %" is a digit wider, once


def test_compressing_has_no_percent_before_its_first_part_is_done() -> None:
    words = [EngineState(Phase.COMPRESSING, fraction=fraction).words() for fraction in (None, 0.0, 0.25)]
    assert words == ["Compressing", "Compressing", "Compressing 25 %"]


def test_a_narrow_strip_keeps_a_word_beside_the_share_that_was_kept() -> None:
    reading = MeterReading(cache=CacheReading(10, 100, "kvzip", "cpu", 0.34))
    assert reading.precision_words() == "34 % kept (KVzip)"
    assert reading.precision_mark() == "34 % kept"


def test_the_memory_is_known_as_soon_as_a_model_is_there(desk: Desk) -> None:
    meter = desk.window.meter
    assert meter.memory.value.text() == numbers.DASH
    memory = MemoryReading(1200 * MB, 4800 * MB, 8 * GB)
    desk.engine.tell(CacheReported(None, 512 * MB, 0, 0, 0, 0.0, (), memory=memory))
    desk.settle()
    desk.qtbot.waitUntil(lambda: meter.memory.value.text() == "3.2 / 8.0 GB")
    assert "Ember itself: 1.2 GB" in meter.memory.toolTip()


def test_the_tooltip_says_exactly_what_was_read_and_reused(desk: Desk) -> None:
    desk.engine.finish(desk.send("hello"), "Hi")
    desk.settle()
    words = "Last reply: 6,371 tokens reused, 37 read, 210 written"
    desk.qtbot.waitUntil(lambda: words in desk.window.meter.context.toolTip())


def test_a_click_enter_and_the_space_bar_ask_for_the_memory_panel(qtbot: QtBot, strip: MeterStrip) -> None:
    asked: list[bool] = []
    strip.clicked.connect(lambda: asked.append(True))
    qtbot.mouseClick(strip, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(strip.speed.value, Qt.MouseButton.LeftButton)
    for key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
        qtbot.keyClick(strip, key)
    assert len(asked) == 5
    assert "memory panel" in strip.accessibleName()


def test_the_gauges_are_groups_and_the_strip_a_button_to_a_screen_reader(strip: MeterStrip) -> None:
    roles = [QAccessible.queryAccessibleInterface(one).role() for one in (strip, strip.context, strip.speed)]
    assert roles == [QAccessible.Role.PushButton, QAccessible.Role.Grouping, QAccessible.Role.Grouping]


def test_the_speed_of_the_last_reply_is_back_after_a_restart(open_desk: OpenDesk) -> None:
    ids: list[str] = []

    def fill(desk: Desk) -> None:
        ids.append(desk.add_conversation("old", 0))
        desk.store.add_message(ids[0], Role.USER, "q")
        reply = desk.store.add_message(ids[0], Role.ASSISTANT, "", state=MessageState.STREAMING)
        desk.store.finish_reply(
            reply.id,
            text="a",
            token_ids=None,
            tokenizer_id=None,
            finish_reason=FinishReason.STOP,
            statistics=turn_statistics(),
        )

    desk = open_desk(fill=fill, loaded=False)
    desk.window.controller.open(ids[0])
    assert desk.window.meter.speed.value.text() == "138 tok/s"
    assert desk.window.meter.cache.value.text() == "148 MB"
    assert desk.window.meter.context.value.text() == "6,412 / –"
    desk.load()
    desk.qtbot.waitUntil(lambda: desk.window.meter.context.value.text() == "6,412 / 8,192")


BAD = [None, 0.0, -1.0, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("bad", BAD)
def test_an_unknown_number_is_a_dash_or_left_out(bad: float | None) -> None:
    assert numbers.speed(bad) == numbers.DASH
    reading = MeterReading(decode_tps=bad, ttft_s=bad if bad != 0.0 else None)
    words = [
        reading.context_words(),
        reading.cache_words(),
        reading.memory_words(),
        reading.speed_words(),
        reading.first_token_words(),
    ]
    items = statistics_items(turn_statistics(decode_tps=bad, ttft_s=bad if bad != 0.0 else None), FinishReason.STOP)
    assert items == ["6,371 of 6,408 tokens reused"]
    for text in [*words, *items]:
        assert "nan" not in text.lower()
        assert "inf" not in text.lower()
        assert not text.startswith("0")


WHOLE = MeterReading(
    context_tokens=6412,
    context_length=8192,
    cache=CacheReading(6412, 44 * MB, "kvzip", "cpu", 0.34),
    all_caches_bytes=300 * MB,
    budget_bytes=512 * MB,
    memory=MemoryReading(GB, 4 * GB, 8 * GB, 30 * GB, 80 * GB),
    ttft_s=0.06,
    decode_tps=138.0,
    turn=turn_statistics(),
    pressure=PressureActed("a", "quantize", 61 * MB, 0.2, 300 * MB, 512 * MB, "int8"),
    state=EngineState(Phase.PREFILL, fraction=0.62, remaining_s=3.0, has_model=True),
)
NAMES = [field.name for field in fields(MeterReading) if field.name not in ("state", "pressure_title")]
PROGRESS = [(name, bad) for name in ("fraction", "remaining_s") for bad in (None, -1.0, math.inf, math.nan)]
MISSING = [
    *(replace(WHOLE, **{name: None}) for name in NAMES),
    MeterReading(),
    *(replace(WHOLE, decode_tps=bad, ttft_s=bad) for bad in (-1.0, math.inf, -math.inf, math.nan)),
    *(replace(WHOLE, state=replace(WHOLE.state, **{name: bad})) for name, bad in PROGRESS),
    replace(WHOLE, memory=MemoryReading(GB, 4 * GB, 8 * GB, None, 80 * GB)),
    replace(WHOLE, cache=CacheReading(6412, 44 * MB, "", "cpu", math.nan)),
    replace(WHOLE, cache=CacheReading(0, 0, "bf16", "cpu")),
    replace(WHOLE, budget_bytes=0),
    replace(WHOLE, context_length=0),
]


@pytest.mark.parametrize("reading", MISSING)
def test_whatever_is_missing_nowhere_is_a_number_that_is_none(
    qtbot: QtBot, theme: Theme, reading: MeterReading
) -> None:
    strip = MeterStrip(theme)
    qtbot.addWidget(strip)
    strip.resize(1800, 40)
    strip.show()
    strip.show_now(reading)
    texts = [strip.state.text(), strip.state.accessibleName()]
    for cell in (strip.context, strip.cache, strip.memory, strip.speed):
        texts += [cell.value.text(), cell.note.text(), cell.toolTip(), cell.accessibleName()]
    for text in texts:
        assert not re.search(r"nan|inf\b|∞|none|-\d|−\d", text.lower()), text
    assert strip.speed.value.text() == ("138 tok/s" if reading.decode_tps == 138.0 else numbers.DASH)
    assert ("first token" in strip.speed.note.text()) == (reading.ttft_s == 0.06)
    if reading.context_tokens is None:
        assert strip.context.value.text().startswith(f"{numbers.DASH} /")
    if not reading.context_length:
        assert strip.context.value.text().endswith(f"/ {numbers.DASH}")
    if reading.cache is None:
        assert strip.cache.value.text() == numbers.DASH
    if reading.cache is None or not reading.cache.bytes:
        assert strip.cache.note.text() == ""
    if reading.memory is None:
        assert strip.memory.value.text() == numbers.DASH
    if reading.state.phase is None:
        assert strip.state.text() == "No model"
    elif reading.state.fraction != 0.62:
        assert strip.state.text() == "Reading"
    elif reading.state.remaining_s != 3.0:
        assert strip.state.text() == "Reading 62 %"
    strip.grab()  # no bar, no line of it fails to be drawn


def test_the_device_is_shown_where_there_is_one() -> None:
    memory = MemoryReading(2 * GB, 10 * GB, 64 * GB, device_free_bytes=100 * GB, device_total_bytes=141 * GB)
    assert MeterReading(memory=memory).memory_words() == "41 / 141 GB"
    assert "100 GB" in MeterReading(memory=memory).memory_tooltip()


def test_the_sparkline_takes_speeds_only(strip: MeterStrip) -> None:
    for value in (138.0, 0.0, -1.0, math.inf, math.nan, 138.0):
        strip.sparkline.add(value)
    assert strip.sparkline.points == [138.0, 138.0]
    strip.grab()


def test_the_bar_of_the_cache_is_the_budget() -> None:
    reading = MeterReading(
        cache=CacheReading(10, 100 * MB, "bf16", "cpu"), all_caches_bytes=300 * MB, budget_bytes=400 * MB
    )
    assert reading.cache_fractions() == (0.25, 0.5)


@pytest.mark.parametrize(
    ("kept", "words"), [(0.336, "34 %"), (0.334, "33 %"), (0.999, "99 %"), (1.0, "100 %"), (None, "–"), (math.nan, "–")]
)
def test_what_is_left_of_a_whole_is_rounded_as_the_command_line_does(kept: float | None, words: str) -> None:
    assert numbers.share(kept) == words


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (None, "–"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (23_040, "23 kB"), (148_000_000, "148 MB"),
        (999_999_999, "1.0 GB"), (3_210_000_000, "3.2 GB"), (2**33, "8.6 GB"), (5 * 10**12, "5 TB"),
    ],
)  # fmt: skip
def test_sizes(num_bytes: int | None, words: str) -> None:
    assert numbers.size(num_bytes) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.004, "0.01 s"), (0.061, "0.06 s"), (3.21, "3.2 s"), (14.4, "14 s"), (95, "1 min 35 s"), (None, "–")],
)
def test_times(seconds: float | None, words: str) -> None:
    assert numbers.seconds(seconds) == words


def test_a_narrow_strip_leaves_out_what_has_no_room_and_never_cuts_the_state(open_desk: OpenDesk) -> None:
    desk = open_desk(Settings(language="ko", theme="dark"))
    request = desk.send("hello")
    desk.engine.begin(request, "Hi")
    desk.engine.tell(desk.engine.statistics(request, 138.2, ttft_s=0.06))
    desk.settle()
    meter = desk.window.meter
    for width in (1280, 900, 700, 640):
        desk.window.resize(width, 500)
        desk.settle()
        assert desk.window.width() == width
        assert meter._row.minimumSize().width() <= width
        assert meter.state.geometry().right() < width
        assert meter.context.value.isVisible()
        assert meter.speed.value.isVisible()


@pytest.mark.parametrize("width", [600, 640, 900, 1280])
def test_no_number_is_cut_at_any_width_while_a_long_text_is_read(strip: MeterStrip, width: int) -> None:
    strip.setFixedWidth(width)
    strip.show_now(
        MeterReading(
            context_tokens=6412,
            context_length=8192,
            cache=CacheReading(6412, 44 * MB, "kvzip", "cpu", 0.34),
            memory=MemoryReading(GB, 4 * GB, 8 * GB),
            decode_tps=138.0,
            ttft_s=0.06,
            state=EngineState(Phase.PREFILL, fraction=0.62, remaining_s=3.0, has_model=True),
        )
    )
    strip._row.activate()
    assert strip._row.minimumSize().width() <= width
    assert strip.state.geometry().right() < width
    assert "first token 0.06 s" in strip.speed.toolTip()
