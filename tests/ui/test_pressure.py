"""What was done against a lack of memory is a sentence in the meter's tooltip, never a dialog."""

from __future__ import annotations

import pytest

from engine.protocol.events import PressureActed
from tests.ui.conftest import Desk, OpenDesk
from ui.meter.pressure_words import pressure_words


def step(
    conversation_id: str, action: str = "drop", comes_back_s: float | None = None, precision: str = ""
) -> PressureActed:
    return PressureActed(conversation_id, action, 92_000_000, comes_back_s, 300, 200, precision)


def tooltip(desk: Desk) -> list[str]:
    return desk.window.meter.cache.toolTip().splitlines()


def test_the_newest_step_is_told_in_the_tooltip_of_the_cache_in_both_languages(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("Harbour", "Tides")))
    assert len(tooltip(desk)) == 1
    desk.engine.tell(step(ids[1], "quantize"), step(ids[0]))
    desk.settle()
    desk.qtbot.waitUntil(lambda: tooltip(desk)[1:] == ["Chat “Harbour” was put away to free 92 MB."])
    desk.window.controller.open(ids[1])
    assert tooltip(desk)[1:] == ["Chat “Harbour” was put away to free 92 MB."]
    desk.window.preferences.choose_language("ko")
    desk.settle()
    desk.qtbot.waitUntil(lambda: tooltip(desk)[1:] == ["“Harbour” 대화를 메모리에서 내려 92 MB를 비웠습니다."])
    desk.load()
    desk.qtbot.waitUntil(lambda: len(tooltip(desk)) == 1)


def test_a_step_lets_the_marks_of_the_list_be_asked_for_again(desk: Desk) -> None:
    before = len(desk.engine.reports)
    desk.engine.tell(step("c"))
    desk.settle()
    assert len(desk.engine.reports) == before + 1


@pytest.mark.parametrize("action", ["save", "quantize", "compress", "to_host", "drop", "evict_disk", "a later way"])
def test_every_action_has_words_with_the_chat_and_the_time_until_it_is_back(action: str) -> None:
    words = pressure_words(step("c", action, 0.44), "Harbour " * 9)
    assert "“Harbour Harbour Harbour Harbour Harbour…”" in words
    assert words.endswith("It comes back in about 0.44 s.")
    assert ("92 MB" in words) == (action != "save")
    assert "“New chat”" in pressure_words(step("c", action), "")


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("int8", "kept in 8 bits now"),
        ("bnb-8bit", "kept in 8 bits now"),
        ("balanced", "kept in 8 bits (keys) and 4 bits (values) now"),
        ("compact", "kept in 4 bits now"),
        ("bnb-nf4", "kept in 4 bits now"),
        ("", "kept in less precision now"),
    ],
)
def test_quantizing_names_the_precision(precision: str, words: str) -> None:
    assert f"Chat “Harbour” is {words}, which freed 92 MB." in pressure_words(
        step("c", "quantize", precision=precision), "Harbour"
    )
