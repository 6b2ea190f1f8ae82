"""The memory panel explains itself: a paragraph a technique, whose numbers are those of the report beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt

from engine.protocol.events import ConversationBlocks
from tests.ui.blocks import PER_TOKEN, chat, report, run, three_precisions
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import MB
from tests.ui.test_memory_panel import Panel, ids_of, plain
from ui.memory.legend import TopicButton
from ui.memory.memory_page import MemoryPage
from ui.memory.technique_words import Topic, topic_words
from ui.numbers import count, seconds, size

EMPTY = report("r", ())


@pytest.fixture
def panel(desk: Desk) -> Iterator[Panel]:
    panel = Panel(desk)
    desk.load()  # the panel hears of the model
    yield panel
    panel.panel.close()


@pytest.fixture
def page(desk: Desk, panel: Panel) -> MemoryPage:
    filled = three_precisions(ids_of(desk, "Jeju", "Tax letter", "Attention", "Rust"))
    panel.open()
    panel.panel._ask()
    together = sum(row.held_bytes for row in filled) - 448 * PER_TOKEN
    panel.answer(*filled, memory_bytes=together + 2 * MB, spare_bytes=2 * MB)
    return panel.page


def button_of(page: MemoryPage, topic: Topic) -> TopicButton:
    return next(one for one in page.topic_buttons if one.topic is topic)


def numbers_in(page: MemoryPage, topic: Topic) -> str:
    """The paragraph's last part, which speaks of what is here."""
    button_of(page, topic).click()
    assert page.help.topic is topic
    assert page.help.words.isVisible()
    return plain(page.help.words.text())


def test_every_paragraphs_numbers_are_those_of_the_report(page: MemoryPage) -> None:
    cells = {"full": 14 + 187 + 14, "int8": 108, "kvzip": 220}
    held = round((448 + 5964 + 448) * PER_TOKEN + 3456 * PER_TOKEN * 0.5 + 7020 * PER_TOKEN * 0.3)
    tokens = 448 + 5964 + 448 + 3456 + 7020
    assert f"Here: 3 chats with {sum(cells.values())} blocks in memory; {count(tokens)} tokens fill" in (
        words := numbers_in(page, Topic.BLOCK)
    )
    assert "fill 99 % of their places" in words  # 17,336 of 17,376: not all
    assert f"0 B of the {size(held)} they hold" in words
    assert f"Here: 215 blocks in 2 chats, {size((448 * 2 + 5964) * PER_TOKEN)}." in numbers_in(page, Topic.FULL)
    whole = size(3456 * PER_TOKEN)
    assert numbers_in(page, Topic.INT8).endswith(
        f"Here: 108 blocks in 1 chat take {size(3456 * PER_TOKEN // 2)}; in full they would take about {whole}."
    )
    assert numbers_in(page, Topic.KVZIP).endswith(
        f"Here: 220 blocks in 1 chat take {size(round(7020 * PER_TOKEN * 0.3))}; "
        f"in full they would take about {size(7020 * PER_TOKEN)}."
    )
    assert numbers_in(page, Topic.SHARED).endswith(
        f"Here: 42 blocks in 3 chats are outlined. All chats take {size(held - 448 * PER_TOKEN)} of memory; "
        f"if each kept its own, they would take {size(held)}."
    )
    assert numbers_in(page, Topic.ON_DISK).endswith(
        f"Here: 160 blocks in 1 chat, {size(5120 * PER_TOKEN)}. Saved in all: 900 MB of 20 GB. "
        f"The largest is back in about {seconds(0.1)}."
    )
    used = size(held - 448 * PER_TOKEN + 2 * MB)
    assert numbers_in(page, Topic.BUDGET).endswith(
        f"Here: {used} of 2.0 GB; room is made above 1.9 GB, down to 1.6 GB."
    )


def test_slack_is_the_room_that_is_held_beyond_the_blocks(panel: Panel, page: MemoryPage, desk: Desk) -> None:
    row = chat("c", run(100))
    grown = ConversationBlocks("c", row.runs, row.tokens, row.precision, 1.0, row.held_bytes + 3 * MB)
    button_of(page, Topic.BLOCK).click()
    panel.panel._ask()
    panel.answer(grown)
    desk.qtbot.waitUntil(lambda: "1 chat with 4 blocks" in plain(page.help.words.text()))
    words = plain(page.help.words.text())
    assert "100 tokens fill 78 % of their places" in words
    assert f"3 MB of the {size(row.held_bytes + 3 * MB)} they hold" in words


@pytest.mark.parametrize("topic", [Topic.BALANCED, Topic.COMPACT])
def test_where_there_is_nothing_of_a_kind_it_says_so_without_a_number(page: MemoryPage, topic: Topic) -> None:
    assert numbers_in(page, topic).endswith("Nothing in memory is kept in this way now.")


@pytest.mark.parametrize("topic", [one for one in Topic if one not in (Topic.BUDGET, Topic.ON_DISK)])
def test_an_empty_report_gives_no_number(topic: Topic) -> None:
    before, here = topic_words(topic, None, PER_TOKEN), topic_words(topic, EMPTY, PER_TOKEN)
    said = here.removeprefix(before)
    assert said
    assert not re.search(r"\d", said)


def test_without_a_model_nothing_is_compared_with_16_bit(panel: Panel) -> None:
    panel.open(chat("c", run(64, "int8")))
    report = panel.panel._report
    assert plain(topic_words(Topic.INT8, report, None)).endswith("Here: 2 blocks in 1 chat take 737 kB.")


def test_a_click_opens_another_one_and_closes_it_again(page: MemoryPage) -> None:
    assert not page.help.isVisible()
    int8, shared = button_of(page, Topic.INT8), button_of(page, Topic.SHARED)
    int8.click()
    shared.click()
    assert page.help.heading.text() == "Shared beginnings"
    assert [one.topic for one in page.topic_buttons if one.isChecked()] == [Topic.SHARED]
    shared.click()
    assert not page.help.isVisible()
    assert not any(one.isChecked() for one in page.topic_buttons)


def test_the_keyboard_opens_it_and_escape_or_the_cross_close_it(desk: Desk, page: MemoryPage) -> None:
    page.activateWindow()
    desk.qtbot.waitUntil(page.isActiveWindow)
    kvzip = button_of(page, Topic.KVZIP)
    kvzip.setFocus()
    desk.qtbot.keyClick(kvzip, Qt.Key.Key_Space)
    assert page.help.isVisible()
    assert kvzip.accessibleDescription() == page.help.words.text()
    page.help.close_button.setFocus()
    desk.qtbot.keyClick(page.help.close_button, Qt.Key.Key_Space)
    assert not page.help.isVisible()
    assert kvzip.hasFocus()
    assert kvzip.accessibleDescription() == ""
    desk.qtbot.keyClick(kvzip, Qt.Key.Key_Space)
    desk.qtbot.keyClick(kvzip, Qt.Key.Key_Escape)
    assert not page.help.isVisible()
    assert page.isVisible()
    desk.qtbot.keyClick(kvzip, Qt.Key.Key_Escape)
    assert not page.isVisible()


def test_what_is_open_follows_the_reports_and_the_language(desk: Desk, panel: Panel, page: MemoryPage) -> None:
    button_of(page, Topic.INT8).click()
    panel.panel._ask()
    panel.answer(chat("c", run(320, "int8")))
    desk.qtbot.waitUntil(lambda: "Here: 10 blocks in 1 chat take 3.7 MB" in plain(page.help.words.text()))
    desk.window.preferences.choose_language("ko")
    desk.settle()
    assert page.help.heading.text() == "8비트(int8)"
    assert plain(page.help.words.text()).endswith(
        "지금: 대화 1개의 블록 10개가 3.7 MB를 씁니다. 줄이지 않으면 약 7.4 MB가 됩니다."
    )
    assert button_of(page, Topic.INT8).accessibleDescription() == page.help.words.text()


def test_before_the_first_answer_it_explains_without_numbers(open_desk: OpenDesk) -> None:
    desk = open_desk(loaded=False)
    panel = Panel(desk)
    panel.panel.open()
    panel.page.what_button.click()
    assert panel.page.help.words.text() == topic_words(Topic.BLOCK, None, None)
    panel.panel.close()
