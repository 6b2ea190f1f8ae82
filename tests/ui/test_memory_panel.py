"""The memory panel: shows what the engine says, asks seldom, and its handles do what they say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from PySide6.QtCore import QEvent, QObject, QPoint, Qt
from PySide6.QtGui import QAccessible, QColor
from pytestqt.qtbot import QtBot

from engine.protocol.commands import Compress, FreeNow, Pin, ReportBlocks, Undo
from engine.protocol.events import (
    BlocksReported,
    CacheReported,
    CacheState,
    CodecsProbed,
    Compressed,
    ConversationBlocks,
    EngineStopped,
    PressureActed,
    SnapshotSaved,
)
from tests.ui import scale_check
from tests.ui.blocks import BUDGET, PER_TOKEN, chat, report, run, three_precisions
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import MB
from ui.memory.chat_list import FIRST_ROWS
from ui.memory.chat_row import ChatRow
from ui.memory.diary import MOST_ENTRIES, Diary
from ui.memory.history import History
from ui.memory.memory_page import MemoryPage
from ui.memory.memory_panel import MemoryPanel
from ui.memory.time_plot import TimePlot
from ui.theme import Theme


def plain(text: str) -> str:
    """With a space where a line must not break."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


class Panel:
    """The panel of a desk, and an engine that answers it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        window, session = desk.window, desk.session
        self.panel = MemoryPanel(
            desk.engine,
            window.sidebar.model,
            window.changes,
            window.compressions,
            window.preferences,
            window.theme,
            window,
            is_busy=lambda one: session.is_busy(one) or session.is_compressing(one),
        )
        desk.bridge.event_arrived.connect(self.panel.take)

    @property
    def page(self) -> MemoryPage:
        assert self.panel.page is not None
        return self.panel.page

    @property
    def asked(self) -> list[ReportBlocks]:
        return [command for command in self.desk.engine.commands if isinstance(command, ReportBlocks)]

    def open(self, *rows: ConversationBlocks) -> None:
        self.panel.open()
        self.desk.qtbot.waitUntil(lambda: bool(self.asked))
        self.answer(*rows)

    def answer(self, *rows: ConversationBlocks, memory_bytes: int | None = None, spare_bytes: int = 0) -> None:
        self.desk.engine.tell(report(self.asked[-1].request_id, rows, memory_bytes, spare_bytes))
        self.drawn()

    def drawn(self) -> None:
        self.desk.settle()
        self.desk.qtbot.waitUntil(lambda: not self.panel._draw_timer.isActive())

    def row(self, conversation_id: str) -> ChatRow:
        return self.page.rows[conversation_id]


class PaintedMaps(QObject):
    """Which page maps are painted from now on."""

    def __init__(self, page: MemoryPage) -> None:
        super().__init__(page)
        self.maps: set[QObject] = set()
        for row in page.rows.values():
            row.map.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 (Qt's name)
        if event.type() == QEvent.Type.Paint:
            self.maps.add(watched)
        return False


def ids_of(desk: Desk, *titles: str) -> list[str]:
    ids = [desk.add_conversation(title) for title in titles]
    desk.window.changes.changed.emit()
    desk.settle()
    return ids


@pytest.fixture
def panel(desk: Desk) -> Iterator[Panel]:
    panel = Panel(desk)
    yield panel
    panel.panel.close()


def test_three_chats_in_three_precisions_one_on_disk_and_a_shared_beginning(desk: Desk, panel: Panel) -> None:
    ids = ids_of(desk, "Jeju", "Tax letter", "Attention", "Rust")
    panel.open(*three_precisions(ids))
    texts = {panel.row(one).title.text(): plain(panel.row(one).detail.text()) for one in ids}
    assert texts == {
        "Jeju": "6,412 tokens · 148 MB · 16 bit · in memory",
        "Tax letter": "3,904 tokens · 50 MB · 8 bit (int8) · in memory",
        "Attention": "7,020 tokens · 49 MB · 30 % kept (KVzip) · in memory",
        "Rust": "5,120 tokens · 118 MB on disk · 16 bit · resumes in about 0.10 s",
    }
    assert [panel.row(one).map.num_cells for one in ids] == [201, 122, 220, 160]
    assert panel.page.used.text() == "246 MB of 2.0 GB"
    assert panel.page.marks.text() == "makes room above 1.9 GB, down to 1.6 GB"
    assert panel.page.disk_card.figure.text() == "900 MB of 20 GB"
    assert panel.page.disk_card.words.text().startswith("1 chat is on disk.")


def test_each_chat_has_a_bar_by_place_the_largest_the_longest(desk: Desk, panel: Panel) -> None:
    ids = ids_of(desk, "Jeju", "Rust")
    desk.engine.report(None, {ids[0]: (CacheState.WARM, "bf16")})  # 148 MB of it on disk too
    desk.settle()
    panel.open(chat(ids[0], run(6400)), chat(ids[1], run(3200, place="disk")))
    bars = [panel.row(one).bar for one in ids]
    assert [bar.toolTip() for bar in bars] == ["147 MB in memory, 148 MB on disk", "74 MB on disk"]
    lengths = [sum(share for share, _ in bar._segments) for bar in bars]
    assert lengths == [pytest.approx(1.0), pytest.approx(0.25, abs=0.01)]


def test_only_the_row_of_the_chat_that_grew_is_drawn_again(desk: Desk, panel: Panel) -> None:
    ids = ids_of(desk, "Jeju", "Rust", "Tides")
    panel.open(*(chat(one, run(6400)) for one in ids))
    desk.settle()  # painted for the first time
    painted = PaintedMaps(panel.page)
    panel.panel._ask()
    panel.answer(chat(ids[0], run(6401)), chat(ids[1], run(6400)), chat(ids[2], run(6400)))
    desk.settle()
    assert painted.maps == {panel.row(ids[0]).map}


def test_a_block_says_with_which_chat_it_is_shared_where_there_is_only_one(desk: Desk, panel: Panel) -> None:
    ids = ids_of(desk, "Jeju", "Tax letter", "Rust")
    panel.open(*three_precisions([*ids, "d"]))
    assert panel.row(ids[0]).map.words_of(0).endswith("16 bit · in memory · 737 kB · shared with “Tax letter”")
    assert panel.row(ids[1]).map.words_of(0).endswith(" · shared with “Jeju”")
    panel.panel._ask()
    panel.answer(*(chat(one, run(448, shared=True)) for one in ids))
    desk.qtbot.waitUntil(lambda: panel.row(ids[0]).map.words_of(0).endswith(" · shared with another chat"))


def test_the_bar_adds_up_to_what_is_in_memory(desk: Desk, panel: Panel) -> None:
    ids = ids_of(desk, "a", "b", "c")
    rows = (
        chat(ids[0], run(448, shared=True), run(1000)),
        chat(ids[1], run(448, shared=True), run(640, "int8")),
        chat(ids[2], run(640, "kvzip"), kept=0.3),
    )
    panel.open(*rows)
    memory = sum(row.held_bytes for row in rows) - 448 * PER_TOKEN + 5 * MB  # shared ones once, and some slack
    panel.desk.window.meter.setFocus()
    panel.panel._ask()
    panel.answer(*rows, memory_bytes=memory + 7 * MB, spare_bytes=7 * MB)
    kinds = panel.page.budget.bytes_of_kinds()
    assert sum(kinds.values()) == memory
    assert kinds["int8"] == 640 * PER_TOKEN // 2
    assert kinds["kvzip"] == round(640 * PER_TOKEN * 0.3)
    assert kinds["16bit"] == 1448 * PER_TOKEN + 5 * MB


def test_it_asks_at_most_twice_a_second_once_at_a_time_and_never_while_hidden(desk: Desk, panel: Panel) -> None:
    busy = [CacheReported(None, 0, MB, 0, 0, 0.0, ()) for _ in range(200)]
    desk.engine.tell(*busy)
    desk.settle()
    assert panel.asked == []
    panel.open()
    first = panel.panel._asked_at
    desk.engine.tell(*busy)
    desk.settle()
    desk.qtbot.waitUntil(lambda: len(panel.asked) == 2)
    assert panel.panel._asked_at - first > 0.49
    desk.engine.tell(*busy)
    desk.settle()
    panel.panel._ask()
    assert len(panel.asked) == 2  # the answer is awaited
    panel.panel.close()
    panel.answer()
    desk.engine.tell(*busy)
    desk.settle()
    desk.qtbot.waitUntil(lambda: not panel.panel._ask_timer.isActive())
    assert len(panel.asked) == 2


def test_an_answer_to_nobody_and_an_engine_that_ended_change_nothing(desk: Desk, panel: Panel) -> None:
    (one,) = ids_of(desk, "a")
    panel.open()
    desk.engine.tell(BlocksReported("another", (chat(one, run(64)),), 1, 2, 3, 4, 5, 6))
    panel.drawn()
    assert panel.page.rows == {}
    panel.panel._ask()
    desk.engine.tell(EngineStopped())
    desk.settle()
    panel.panel._ask()
    assert len(panel.asked) == 3


def test_at_most_two_redraws_a_second_and_none_while_hidden(desk: Desk, panel: Panel) -> None:
    panel.open()
    plot = panel.page.speed_card.plot
    request = desk.send("hello")
    desk.engine.begin(request, "Hi")
    panel.drawn()
    before = plot.num_paints  # type: ignore[attr-defined]
    started = time.monotonic()
    for speed in range(100, 400):
        desk.engine.tell(desk.engine.statistics(request, float(speed)))
        desk.settle()
    desk.qtbot.waitUntil(lambda: not panel.panel._draw_timer.isActive())
    desk.settle()
    num_beats = (time.monotonic() - started) / 0.49
    assert 0 < plot.num_paints - before <= num_beats + 1  # type: ignore[attr-defined]
    assert panel.page.speed_card.figure.text().startswith("399 tok/s at last")
    panel.panel.close()
    desk.engine.tell(desk.engine.statistics(request, 55.0))
    desk.settle()
    assert not panel.panel._draw_timer.isActive()
    panel.panel.open()
    assert panel.page.speed_card.figure.text().startswith("55 tok/s at last")


def test_the_diary_tells_what_was_done_newest_first_and_remembers_while_closed(desk: Desk, panel: Panel) -> None:
    one, other = ids_of(desk, "Tax letter", "Rust")
    now = datetime(2026, 11, 30, 12, 3, 40).astimezone()
    panel.panel._clock = lambda: now + timedelta(seconds=panel.panel.diary.num_added)
    desk.engine.tell(
        CodecsProbed({"int8": 1e-4}, ()),
        SnapshotSaved(other, "r", 5120, 11 * MB, 118 * MB, 0.2),
        SnapshotSaved(other, "r", 5120, 0, 118 * MB, 0.2),
        PressureActed(one, "quantize", 46 * MB, 0.0, 248 * MB, 320 * MB, "int8"),
        PressureActed(other, "drop", 118 * MB, 0.1, 130 * MB, 320 * MB),
    )
    desk.settle()
    panel.open()
    assert panel.page.diary_card.texts == [
        "12:03:42 Put “Rust” away from memory: freed 118 MB · back in about 0.10 s",
        "12:03:41 Quantized “Tax letter” to 8 bit (int8): freed 46 MB, KL 0.0001",
        "12:03:40 Saved “Rust” to disk: 11 MB were new",
    ]
    desk.window.preferences.choose_language("ko")
    desk.settle()
    assert panel.page.diary_card.texts[-1] == "12:03:40 “Rust” 대화를 디스크에 저장했습니다: 새로 11 MB"


@pytest.mark.parametrize("action", ["save", "quantize", "compress", "to_host", "drop", "evict_disk", "a later way"])
def test_every_action_has_a_sentence(action: str) -> None:
    diary = Diary()
    step = PressureActed("c", action, 92 * MB, None, 1, 2, "")
    assert diary.take(step, lambda _: "Harbour", datetime.now)
    words = diary.entries[0].words()
    assert "“Harbour”" in words
    assert ("92 MB" in words) == (action != "save")


def test_compressing_and_its_undo_are_told(desk: Desk) -> None:
    diary = Diary()
    for precision, kept, after in (("kvzip", 0.3, 44), ("bf16", 1.0, 148)):
        diary.take(Compressed("c", "r", 10, kept, precision, 148 * MB, after * MB, 1.0), lambda _: "", datetime.now)
    assert [entry.words() for entry in diary.entries] == [
        "Brought “New chat” back to full precision",
        "Compressed “New chat”, 30 % kept (KVzip): freed 104 MB",
    ]


def test_the_diary_is_bounded() -> None:
    diary = Diary()
    for number in range(MOST_ENTRIES + 50):
        diary.take(PressureActed(str(number), "drop", 1, None, 1, 2), str, datetime.now)
    assert len(diary.entries) == MOST_ENTRIES
    assert diary.entries[0].title == str(MOST_ENTRIES + 49)


def test_free_asks_the_engine_for_this_chat_or_all(desk: Desk, panel: Panel) -> None:
    one, other = ids_of(desk, "a", "b")
    panel.open(chat(one, run(64)), chat(other, run(64, place="disk")))
    assert not panel.row(other).free_button.isEnabled()
    panel.row(one).free_button.click()
    panel.page.free_all.click()
    freed = [command.conversation_ids for command in desk.engine.commands if isinstance(command, FreeNow)]
    assert freed == [(one,), None]


def test_pin_compress_and_undo(desk: Desk, panel: Panel) -> None:
    one, other = ids_of(desk, "a", "b")
    desk.engine.report(None, {one: (CacheState.WARM, "bf16"), other: (CacheState.WARM, "kvzip")})
    desk.settle()
    panel.open(chat(one, run(640)), chat(other, run(640, "kvzip"), kept=0.3))
    panel.row(one).pin_button.click()
    panel.drawn()
    assert [command.conversation_ids for command in desk.engine.commands if isinstance(command, Pin)][-1] == {one}
    assert panel.row(one).pin_button.text() == "Unpin"
    assert not panel.row(one).undo_button.isVisible()
    assert not panel.row(other).compress_button.isEnabled()
    panel.row(one).compress_button.click()
    dialog = desk.window.compressions.dialog
    assert dialog is not None
    assert dialog.parentWidget() is panel.page
    dialog.compress_button.click()
    panel.row(other).undo_button.click()
    desk.settle()
    assert [(type(command), command.conversation_id) for command in desk.engine.compressions] == [
        (Compress, one),
        (Undo, other),
    ]
    panel.panel._draw()
    assert not panel.row(one).free_button.isEnabled()  # it is being compressed


def test_the_budget_is_changed_by_the_keyboard_once_the_key_is_let_go(desk: Desk, panel: Panel) -> None:
    panel.open()
    budget = panel.page.budget
    budget.setFocus()
    desk.qtbot.keyPress(budget, Qt.Key.Key_Right)
    assert desk.saved == []
    assert panel.page.used.text().endswith("of 2.3 GB")
    desk.qtbot.keyRelease(budget, Qt.Key.Key_Right)
    assert desk.saved[-1].memory_budget_mb == 2304
    desk.qtbot.keyClick(budget, Qt.Key.Key_PageDown)
    assert desk.saved[-1].memory_budget_mb == 1280
    desk.qtbot.keyPress(budget, Qt.Key.Key_Left)
    desk.qtbot.keyPress(budget, Qt.Key.Key_Escape)
    desk.qtbot.keyRelease(budget, Qt.Key.Key_Left)
    assert desk.saved[-1].memory_budget_mb == 1280
    assert panel.page.isVisible()
    assert panel.page.used.text().endswith("of 1.3 GB")


def test_the_budget_is_dragged_with_the_mouse(desk: Desk, panel: Panel) -> None:
    panel.open()
    budget = panel.page.budget
    grip = QPoint(round(budget._x(BUDGET * MB)), budget.height() // 2)
    desk.qtbot.mousePress(budget, Qt.MouseButton.LeftButton, pos=grip - QPoint(200, 0))
    desk.qtbot.mouseMove(budget, grip - QPoint(300, 0))
    desk.qtbot.mouseRelease(budget, Qt.MouseButton.LeftButton, pos=grip - QPoint(300, 0))
    assert desk.saved == []  # it was not on the grip
    desk.qtbot.mousePress(budget, Qt.MouseButton.LeftButton, pos=grip)
    half = QPoint(5 + (grip.x() - 5) // 2, grip.y())
    desk.qtbot.mouseMove(budget, half)
    assert desk.saved == []
    assert budget.value() == pytest.approx(1024, abs=3)
    desk.qtbot.mouseRelease(budget, Qt.MouseButton.LeftButton, pos=half)
    assert desk.saved[-1].memory_budget_mb == pytest.approx(1024, abs=3)


def test_the_disk_cap_is_changed(desk: Desk, panel: Panel) -> None:
    panel.open()
    spin = panel.page.disk_card.cap.spin
    spin.setValue(4096)
    assert desk.saved[-1].disk_cap_mb == 4096
    desk.window.preferences.set_value("disk_cap_mb", 8192)
    assert spin.value() == 8192


def test_many_chats_on_disk_come_when_they_are_asked_for(desk: Desk, panel: Panel) -> None:
    rows = [chat(f"chat-{number}", run(320, place="disk")) for number in range(FIRST_ROWS + 30)]
    warm = [chat(f"warm-{number}", run(320)) for number in range(FIRST_ROWS + 2)]
    panel.open(*warm, *rows)
    assert list(panel.page.rows) == [row.conversation_id for row in warm]
    panel.page.chats.more.click()
    assert len(panel.page.rows) == len(rows) + len(warm)
    assert not panel.page.chats.more.isVisible()
    assert panel.row("chat-0").title.text() == "Chat that is no longer in the list"
    assert not panel.row("chat-0").pin_button.isVisible()


def test_a_chat_that_is_gone_leaves_and_the_order_is_the_reports(desk: Desk, panel: Panel) -> None:
    ids = ids_of(desk, "a", "b", "c")
    panel.open(*(chat(one, run(64)) for one in ids))
    panel.panel._ask()
    panel.answer(chat(ids[2], run(64)), chat(ids[0], run(96)))
    shown = panel.page.chats.shown
    assert shown == [panel.row(ids[2]), panel.row(ids[0])]
    assert panel.row(ids[0]).map.num_cells == 3


def test_escape_closes_it_and_the_window_stays(desk: Desk, panel: Panel) -> None:
    panel.panel.toggle()
    assert panel.page.isVisible()
    desk.qtbot.waitUntil(panel.page.isActiveWindow)
    desk.qtbot.keyClick(panel.page, Qt.Key.Key_Escape)
    assert not panel.page.isVisible()
    panel.panel.toggle()
    desk.qtbot.waitUntil(panel.page.isActiveWindow)
    panel.panel.toggle()
    assert not panel.page.isVisible()
    assert desk.window.isVisible()


def test_everything_in_it_has_a_name_and_speaks_korean(desk: Desk, panel: Panel) -> None:
    (one,) = ids_of(desk, "Harbour")
    panel.open(chat(one, run(64)))
    assert QAccessible.queryAccessibleInterface(panel.page.budget).role() is QAccessible.Role.Slider
    assert panel.page.budget.accessibleDescription().startswith("1.5 MB of 2.0 GB")
    assert panel.row(one).free_button.accessibleName() == "Free: Harbour"
    desk.window.preferences.choose_language("ko")
    desk.settle()
    assert panel.page.title.text() == "메모리"
    assert panel.row(one).free_button.accessibleName() == "비우기: Harbour"
    assert plain(panel.row(one).detail.text()) == "토큰 64개 · 1.5 MB · 16비트 · 메모리"


def test_a_plot_shows_a_gap_where_nothing_was_measured() -> None:
    now = [0.0]
    speed, kv_bytes = (History(is_continuous=one, clock=lambda: now[0]) for one in (False, True))
    for at in (0.0, 0.1, 0.2, 1.0, 2.0, 60.0, 61.0):
        now[0] = at
        speed.add(at)
        kv_bytes.add(at)
    assert [[sample.value for sample in line] for line in speed.lines()] == [[0.0, 0.2, 1.0, 2.0], [60.0, 61.0]]
    assert len(kv_bytes.lines()) == 1
    now[0] = 2000.0
    speed.add(5.0)
    assert [sample.value for sample in speed.samples] == [5.0]


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en", ["last", "1 s ago", "59 s ago", "1 min ago", "2 min ago", "15 min ago"]),
        ("ko", ["마지막", "1초 전", "59초 전", "1분 전", "2분 전", "15분 전"]),
    ],
)
def test_the_plots_say_how_long_ago_as_people_do(desk: Desk, panel: Panel, language: str, words: list[str]) -> None:
    desk.window.preferences.choose_language(language)
    panel.open()
    plot = panel.page.bytes_card.plot
    assert isinstance(plot, TimePlot)
    assert [plot._ago_words(ago_s) for ago_s in (0.0, 0.9, 59.4, 59.6, 119.0, 900.0)] == words


def test_one_sample_alone_is_seen(qtbot: QtBot, theme: Theme) -> None:
    history = History(is_continuous=True)
    plot = TimePlot(theme, history, str, "int8")
    qtbot.addWidget(plot)
    plot.resize(300, 96)

    def num_coloured() -> int:
        image = plot.grab().toImage()
        pixels = (image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height()))
        hue = QColor(theme.tokens.precision["int8"]).hue()
        return sum(abs(one.hue() - hue) < 8 and one.saturation() > 60 for one in pixels)

    assert num_coloured() == 0
    history.add(1e6)
    assert num_coloured() >= 3


def test_an_empty_panel_says_so_and_draws_no_zero(open_desk: OpenDesk) -> None:
    desk = open_desk(loaded=False)
    panel = Panel(desk)
    panel.panel.open()
    assert panel.page.speed_card.figure.text() == "–"
    assert panel.page.bytes_card.figure.text() == "–"
    assert panel.page.disk_card.figure.text() == "–"
    assert panel.page.used.text() == "– of 2.0 GB"
    panel.desk.qtbot.waitUntil(lambda: bool(panel.asked))
    panel.answer()
    assert panel.page.chats.nothing.isVisible()
    panel.page.grab()
    panel.panel.close()


@pytest.fixture
def full_page(desk: Desk, panel: Panel) -> MemoryPage:
    ids = ids_of(desk, "Jeju", "Rust", "Letter")
    desk.engine.report(None, {ids[0]: (CacheState.WARM, "bf16"), ids[2]: (CacheState.WARM, "int8")})
    desk.engine.tell(PressureActed(ids[0], "drop", 118 * MB, 0.1, 130 * MB, 320 * MB))
    others = ids_of(desk, *(f"chat {number}" for number in range(FIRST_ROWS)))
    stored = [chat(one, run(320, place="disk")) for one in others]
    panel.open(
        chat(ids[0], run(448, shared=True), run(5964)),
        chat(ids[2], run(640, "int8")),
        chat(ids[1], run(448, place="disk")),
        *stored,
    )
    panel.page.activateWindow()
    desk.qtbot.waitUntil(panel.page.isActiveWindow)
    return panel.page


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("width", [420, 640, 900, 1280])
def test_nothing_is_cut_off_at_any_width(desk: Desk, full_page: MemoryPage, language: str, width: int) -> None:
    desk.window.preferences.choose_language(language)
    full_page.resize(width, 700)
    desk.settle()
    assert list(scale_check.clipped(full_page)) == []
    assert full_page.pane.widget().width() <= width


def test_a_deleted_chat_leaves_the_panel(desk: Desk) -> None:
    first, second = ids_of(desk, "one", "two")
    panel = desk.window.memory
    panel.open()

    def asked() -> list[ReportBlocks]:
        return [command for command in desk.engine.commands if isinstance(command, ReportBlocks)]

    desk.qtbot.waitUntil(lambda: bool(asked()))
    desk.engine.tell(report(asked()[-1].request_id, [chat(first, run(64)), chat(second, run(64))]))
    assert panel.page is not None
    desk.qtbot.waitUntil(lambda: len(panel.page.rows) == 2)
    before = len(asked())
    desk.window.deletions.deleted.emit(first)
    desk.qtbot.waitUntil(lambda: len(asked()) > before)


def test_many_chats_in_memory_are_shown_as_far_as_they_are_asked_for(desk: Desk, panel: Panel) -> None:
    panel.open(*(chat(f"chat {number}", run(64)) for number in range(100)))
    assert len(panel.page.rows) == 40
    more = panel.page.chats.more
    assert more.text() == "Show more chats (60)"
    for num_shown in (48, 88, 100):
        more.click()
        panel.drawn()
        assert len(panel.page.rows) == num_shown
    assert not more.isVisible()
