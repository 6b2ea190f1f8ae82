"""Search in the sidebar: from typing, also of half a syllable, to the message that was found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QImage, QInputMethodEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.conversation import Conversation, SearchHit
from app.conversation_store import ConversationStore
from app.errors import DatabaseBusyError
from app.paths import resources_dir
from engine.protocol.commands import Role
from tests.ui.chats import chat, titles
from tests.ui.conftest import Desk, OpenDesk
from ui import announce
from ui.sidebar.conversation_list import ConversationList
from ui.sidebar.search_field import DEBOUNCE_MS
from ui.sidebar.search_room import REFRESH_MS
from ui.sidebar.search_rows import FoundChat, FoundText, cut_before_match, found_rows, shown_text, utf16_spans
from ui.theme import Theme
from ui.tokens import contrast, load_tokens

NFD = "\u1112\u1161\u11ab\u1100\u1173\u11af"  # 한글


@dataclass
class Room:
    qtbot: QtBot
    store: ConversationStore
    sidebar: ConversationList
    asked: list[str] = field(default_factory=list)
    chosen: list[tuple[str, int | None, str]] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)

    def add(self, title: str, *texts: str) -> str:
        conversation = self.store.create_conversation()
        for text in texts:
            self.store.add_message(conversation.id, Role.USER, text)
        self.store.set_title(conversation.id, title)
        return conversation.id

    def refresh(self) -> None:
        self.sidebar.show_conversations([one for one in self.store.conversations() if one.id not in self.hidden])

    def type(self, text: str) -> None:
        self.sidebar.filter.setFocus()
        QTest.keyClicks(self.sidebar.filter, text)

    def compose(self, preedit: str, commit: str = "") -> None:
        event = QInputMethodEvent(preedit, [])
        event.setCommitString(commit)
        QApplication.sendEvent(self.sidebar.filter, event)

    def look_for(self, text: str) -> None:
        self.sidebar.filter.setText(text)
        self.sidebar.filter.tell()

    def press(self, key: Qt.Key) -> None:
        widget = QApplication.focusWidget()
        assert widget is not None
        QTest.keyClick(widget, key)

    @property
    def rows(self) -> list[str]:
        """Titles, and excerpts after a dash."""
        rows = self.sidebar.results.model.rows
        return [one.title if isinstance(one, FoundChat) else f"- {one.text}" for one in rows]

    @property
    def count(self) -> str:
        return self.sidebar.results.count.text()

    @property
    def is_shown(self) -> bool:
        return self.sidebar.results.isVisible() and not self.sidebar.view.isVisible()


@pytest.fixture
def room(qtbot: QtBot, theme: Theme, data_dir: Path) -> Iterator[Room]:
    store = ConversationStore(data_dir / "ember.db")
    asked: list[str] = []

    def search(query: str) -> list[SearchHit]:
        asked.append(query)
        return store.search(query)

    sidebar = ConversationList(theme, search=search)
    qtbot.addWidget(sidebar)
    sidebar.resize(264, 700)
    sidebar.show()
    sidebar.activateWindow()
    qtbot.waitActive(sidebar)
    found = Room(qtbot, store, sidebar, asked)
    sidebar.hit_chosen.connect(lambda *hit: found.chosen.append(hit))
    yield found
    sidebar.hide()
    store.close()


@pytest.fixture
def three(room: Room) -> Room:
    room.add("Bakery names", "Bread and butter?", "Crumb", "More bread, please")
    room.add("Rust lifetimes", "borrow checker")
    room.add("빵집 이름", "작은 빵집의 이름을 지어 줘", "한글로 된 bread")
    room.refresh()
    return room


# typing


def test_what_is_typed_is_looked_for_a_moment_later_in_titles_and_texts(three: Room) -> None:
    three.type("bread")
    assert (three.asked, three.is_shown) == ([], False)
    three.qtbot.waitUntil(lambda: three.is_shown)
    assert three.asked == ["bread"]
    assert three.rows == [
        *["빵집 이름", "- 한글로 된 bread"],
        *["Bakery names", "- More bread, please", "- Bread and butter?"],
    ]
    assert three.count == "2 chats"
    assert 50 <= DEBOUNCE_MS <= 120


def test_half_a_syllable_is_looked_for_before_it_is_committed(three: Room) -> None:
    three.sidebar.filter.setFocus()
    for preedit in ("ㅎ", "하", "한"):
        three.compose(preedit)
    three.qtbot.waitUntil(lambda: three.is_shown)
    assert three.asked == ["한"]
    assert three.rows == ["빵집 이름", "- 한글로 된 bread"]
    assert three.sidebar.filter.text() == ""
    three.compose("ㄱ", commit="한")
    three.compose("그")
    three.compose("", commit="글")
    three.qtbot.waitUntil(lambda: three.asked[-1] == "한글")
    assert three.rows == ["빵집 이름", "- 한글로 된 bread"]
    assert three.sidebar.filter.text() == "한글"


def test_a_syllable_composed_in_the_middle_stands_in_the_middle(three: Room) -> None:
    three.sidebar.filter.setText("작은 이름")
    three.sidebar.filter.setCursorPosition(3)
    three.compose("빵")
    three.sidebar.filter.tell()
    assert three.asked == ["작은 빵이름"]
    three.compose("")  # taken back
    three.sidebar.filter.tell()
    assert three.asked == ["작은 빵이름", "작은 이름"]


def test_nothing_found_says_what_to_do_and_a_failure_is_one_sentence(
    three: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.look_for("zebra crossing")
    assert (three.rows, three.count, three.is_shown) == ([], "Nothing found: try fewer words", True)

    def fail(query: str, limit: int = 200) -> list[SearchHit]:
        raise DatabaseBusyError("busy", path="ember.db")

    monkeypatch.setattr(three.store, "search", fail)
    three.look_for("bread")
    assert three.count == "Another program is using ember.db; close it, or try again in a moment."


def test_the_number_of_hits_is_announced(three: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken: list[str] = []
    monkeypatch.setattr(QAccessible, "isActive", lambda: True)

    def hear(event: QAccessibleAnnouncementEvent) -> None:
        spoken.append(event.message())

    monkeypatch.setattr(announce.QAccessible, "updateAccessibility", hear)
    three.look_for("bread")
    three.look_for("borrow")
    three.look_for("borrow check")
    assert spoken == ["2 chats", "1 chat"]


# keys


def test_down_goes_into_what_was_found_and_enter_opens_the_message(three: Room) -> None:
    three.type("bread")
    three.press(Qt.Key.Key_Down)  # without waiting
    assert three.sidebar.results.view.hasFocus()
    three.press(Qt.Key.Key_Down)
    three.press(Qt.Key.Key_Return)
    (conversation, *_) = [one for one in three.store.conversations() if one.title == "빵집 이름"]
    message = three.store.messages(conversation.id)[1]
    assert three.chosen == [(conversation.id, message.id, "bread")]
    assert three.is_shown  # one may want to look at the next hit
    three.press(Qt.Key.Key_Up)
    three.press(Qt.Key.Key_Return)
    assert three.chosen[1:] == [(conversation.id, None, "bread")]
    three.press(Qt.Key.Key_Up)
    assert three.sidebar.filter.hasFocus()


def test_enter_in_the_field_opens_the_first_and_a_click_any(three: Room) -> None:
    three.type("bread")
    three.press(Qt.Key.Key_Return)
    ((_, message_id, query),) = three.chosen
    assert query == "bread"
    assert "bread" in three.store.message(message_id or 0).text  # the first text, where there is one, not its chat
    view = three.sidebar.results.view
    place = view.visualRect(three.sidebar.results.model.index(3, 0)).center()
    QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert three.store.message(three.chosen[1][1] or 0).text == "More bread, please"


@pytest.mark.parametrize("place", ["field", "results"])
def test_esc_brings_the_list_back_with_its_selection(three: Room, place: str) -> None:
    ids = [one.id for one in three.store.conversations()]
    three.sidebar.select(ids[1])
    before = titles(three.sidebar)
    three.type("bread")
    three.qtbot.waitUntil(lambda: three.is_shown)
    if place == "results":
        three.press(Qt.Key.Key_Down)
    three.press(Qt.Key.Key_Escape)
    assert (three.sidebar.filter.text(), three.is_shown) == ("", False)
    assert three.sidebar.view.selected_ids == [ids[1]]
    assert titles(three.sidebar) == before
    assert three.sidebar.filter.hasFocus() if place == "field" else three.sidebar.view.hasFocus()
    three.look_for("bread")
    assert len(three.rows) == 5


# changes meanwhile


def test_a_window_that_closes_looks_for_nothing_any_more(three: Room) -> None:
    three.look_for("bread")
    three.refresh()
    three.type("!")
    three.sidebar.hide()
    three.store.close()
    assert not three.sidebar.search.timer.isActive()
    assert not three.sidebar.filter.timer.isActive()


def test_changes_are_looked_at_again_at_most_twice_a_second(three: Room) -> None:
    three.look_for("bread")
    assert REFRESH_MS == 500
    three.sidebar.search.timer.setInterval(40)
    three.add("New", "bread of today")
    for _ in range(20):
        three.refresh()
    assert len(three.asked) == 1
    three.qtbot.waitUntil(lambda: three.count == "3 chats")
    assert len(three.asked) == 2
    three.sidebar.search.end()
    three.refresh()
    assert not three.sidebar.search.timer.isActive()


def test_the_cursor_stays_with_its_hit_when_more_are_found(three: Room) -> None:
    three.look_for("butter")
    three.sidebar.results.view.setCurrentIndex(three.sidebar.results.model.index(1, 0))
    three.add("New", "butter")
    three.refresh()
    three.sidebar.search._refresh()
    assert three.rows == ["New", "- butter", "Bakery names", "- Bread and butter?"]
    assert three.sidebar.results.view.currentIndex().row() == 3


def test_a_deleted_chat_is_not_found_while_it_can_be_brought_back(three: Room) -> None:
    three.hidden = {one.id for one in three.store.conversations() if one.title == "Bakery names"}
    three.refresh()
    three.look_for("bread")
    assert three.rows == ["빵집 이름", "- 한글로 된 bread"]


def test_a_search_of_ten_thousand_messages_does_not_stop_typing(room: Room) -> None:
    """The store's own time is measured elsewhere; here the rows are made and painted."""
    hits = [
        SearchHit(f"chat {n // 2:03}", n, f"…some words and then bread number {n}…", ((24, 5),)) for n in range(200)
    ]
    found: dict[str, Conversation] = {f"chat {n:03}": chat(f"chat {n:03}") for n in range(100)}
    room.sidebar.show_conversations(list(found.values()))
    room.sidebar.search._search = lambda query: hits
    took = []
    for query in ("b", "br", "bre", "brea", "bread"):
        began = time.thread_time()
        room.look_for(query)
        room.sidebar.results.view.viewport().repaint()
        took.append(time.thread_time() - began)
    assert min(took) < 0.05, took


# how it is shown


def test_at_most_three_excerpts_of_a_chat_are_shown_and_the_rest_counted() -> None:
    hits = [SearchHit("a", number, f"bread {number}", ((0, 5),)) for number in range(5)]
    rows = found_rows([SearchHit("a", None, "Bread", ((0, 5),)), *hits], {"a": chat("a")})
    assert rows[0] == FoundChat("a", "Bread", ((0, 5),), 2)
    assert [row.message_id for row in rows if isinstance(row, FoundText)] == [0, 1, 2]


def test_matches_move_along_when_a_text_is_composed_and_are_counted_as_qt_does() -> None:
    assert shown_text(f"a\n{NFD} b", ((2, 6), (9, 1))) == ("a 한글 b", ((2, 2), (5, 1)))
    assert utf16_spans("🥖 bread", ((2, 5),)) == [(3, 5)]


def test_a_match_far_behind_is_brought_into_sight() -> None:
    text = "word " * 30 + "bread"
    shown, matches = cut_before_match(text, ((150, 5),), 60)
    ((start, length),) = matches
    assert shown[start : start + length] == "bread"
    assert start < 30
    assert shown.startswith("…word ")
    assert cut_before_match("bread", ((0, 5),), 60) == ("bread", ((0, 5),))


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_words_looked_for_can_be_read_on_their_ground(name: str) -> None:
    tokens = load_tokens(resources_dir() / "themes", name)
    assert contrast(tokens.text, tokens.accent_behind) >= 4.5
    assert contrast(tokens.muted, tokens.sidebar) >= 4.5
    assert contrast(tokens.text, tokens.selection) >= 4.5


def painted(qtbot: QtBot, theme: Theme, row: FoundChat | FoundText, width: int = 243) -> QImage:
    sidebar = ConversationList(theme)
    qtbot.addWidget(sidebar)
    view = sidebar.results.view
    sidebar.results.model.show_rows([row])
    view.resize(width, 100)
    return view.grab(QRect(QPoint(0, 0), QSize(width, 60))).toImage()


def has_colour(image: QImage, colour: str, rect: QRect) -> bool:
    places = (QPoint(x, y) for x in range(rect.left(), rect.right()) for y in range(rect.top(), rect.bottom()))
    return any(image.pixelColor(place).name().upper() == colour for place in places)


def test_the_ground_of_the_accent_is_painted_behind_the_words_only(qtbot: QtBot, theme: Theme) -> None:
    ground = theme.tokens.accent_behind
    plain = painted(qtbot, theme, FoundText("a", 1, "some bread", ()))
    marked = painted(qtbot, theme, FoundText("a", 1, "some bread", ((5, 5),)))
    whole = QRect(0, 0, 243, 42)
    assert not has_colour(plain, ground, whole)
    assert has_colour(marked, ground, whole)
    assert not has_colour(marked, ground, QRect(0, 0, 45, 42))  # "some" begins at 20 and is as wide
    title = painted(qtbot, theme, FoundChat("a", "bread", ((0, 5),)))
    assert has_colour(title, ground, QRect(0, 0, 60, 33))


@pytest.mark.parametrize("text", ["🥖" * 200, "word " * 100, "가나다라 " * 60, "\u05d0\u05d1 " * 80, "x" * 400, ""])
def test_long_excerpts_are_cut_and_odd_ones_painted(qtbot: QtBot, theme: Theme, text: str) -> None:
    for width in (187, 243):
        image = painted(qtbot, theme, FoundText("a", 1, text, ((0, 3),) if text else ()), width)
        assert not has_colour(image, theme.tokens.text, QRect(width - 6, 0, 6, 42))


def test_a_row_of_what_was_found_is_named_for_a_screen_reader(three: Room) -> None:
    three.look_for("bread")
    model, role = three.sidebar.results.model, Qt.ItemDataRole.AccessibleTextRole
    assert [model.index(row, 0).data(role) for row in range(2)] == ["빵집 이름", "한글로 된 bread"]
    assert three.sidebar.results.view.accessibleName() == "Search results"
    assert three.sidebar.filter.accessibleName() == "Search titles and texts"


# in the whole window


def test_in_the_window_a_hit_opens_its_message_and_esc_goes_home_in_two_steps(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(name, 3) for name in ("old", "new")))
    window, sidebar = desk.window, desk.window.sidebar
    window.activateWindow()
    desk.qtbot.waitActive(window)
    window.controller.open(ids[1])
    sidebar.focus_filter()
    QTest.keyClicks(sidebar.filter, "question 1")
    desk.qtbot.waitUntil(sidebar.results.isVisible)
    assert sidebar.results.count.text() == "2 chats"
    view = sidebar.results.view
    view.setFocus()
    view.setCurrentIndex(sidebar.results.model.index(3, 0))
    QTest.keyClick(view, Qt.Key.Key_Return)
    desk.settle()
    assert window.controller.current == ids[0]
    assert sidebar.results.isVisible()
    sidebar.focus_filter()
    QTest.keyClick(sidebar.filter, Qt.Key.Key_Escape)
    assert (sidebar.filter.text(), sidebar.results.isVisible()) == ("", False)
    assert sidebar.view.selected_ids == [ids[0]]
    assert sidebar.filter.hasFocus()
    QTest.keyClick(sidebar.filter, Qt.Key.Key_Escape)
    assert window.page.composer.edit.hasFocus()


def test_in_the_window_esc_still_stops_a_reply_while_the_field_is_empty(desk: Desk) -> None:
    request = desk.send("hello")
    desk.window.sidebar.focus_filter()
    QTest.keyClick(desk.window.sidebar.filter, Qt.Key.Key_Escape)
    assert desk.engine.cancelled == [request.request_id]
