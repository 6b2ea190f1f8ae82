from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit, QMenu

from app.errors import UnknownConversationError
from engine.protocol.commands import Forget, Pin
from engine.protocol.events import CacheState
from tests.ui.conftest import Desk, OpenDesk
from ui.sidebar.conversation_model import Group, ListRole, Warmth, group_of


def titles(desk: Desk) -> list[str]:
    model = desk.window.sidebar.model
    return [str(model.index(row, 0).data()) for row in range(model.rowCount())]


def index_of(desk: Desk, conversation_id: str) -> QModelIndex:
    return desk.window.sidebar.model.index_of(conversation_id)


@pytest.fixture
def two(open_desk: OpenDesk) -> tuple[Desk, str, str]:
    ids: list[str] = []
    desk = open_desk(
        fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("Tax letter", "제주 여행"))
    )
    return desk, ids[0], ids[1]


@pytest.mark.parametrize(
    ("days", "group"),
    [(0, Group.TODAY), (1, Group.YESTERDAY), (2, Group.PREVIOUS_WEEK), (7, Group.PREVIOUS_WEEK), (8, Group.OLDER)],
)
def test_date_groups(days: int, group: Group) -> None:
    noon = datetime(2026, 5, 20, 12, tzinfo=UTC).astimezone()
    assert group_of(noon - timedelta(days=days), date(2026, 5, 20)) is group


def test_rows_are_grouped_and_choosing_one_opens_it(two: tuple[Desk, str, str]) -> None:
    desk, first, second = two
    assert titles(desk) == ["Today", "제주 여행", "Tax letter"]
    desk.window.sidebar.view.setCurrentIndex(index_of(desk, first))
    assert desk.window.controller.current == first
    assert desk.window.header.title.full_text == "Tax letter"
    desk.window.sidebar.view.setCurrentIndex(index_of(desk, second))
    assert desk.transcript_text() == "question 0\nreply 0"
    assert desk.window.windowTitle() == "제주 여행 – Ember"


def test_the_filter_keeps_titles_that_hold_the_text(two: tuple[Desk, str, str]) -> None:
    desk, *_ = two
    desk.window.sidebar.filter.setText("TAX")
    assert titles(desk) == ["Today", "Tax letter"]
    desk.window.sidebar.filter.setText("제주")
    assert titles(desk) == ["Today", "제주 여행"]
    desk.window.sidebar.filter.setText("nothing")
    assert titles(desk) == []


def test_a_deleted_chat_is_hidden_at_once_and_comes_back_on_undo(two: tuple[Desk, str, str]) -> None:
    desk, first, _ = two
    desk.window.controller.open(first)
    desk.window.sidebar.view.setFocus()
    QTest.keyClick(desk.window.sidebar.view, Qt.Key.Key_Delete)
    assert titles(desk) == ["Today", "제주 여행"]
    assert desk.window.controller.current is None
    assert desk.store.conversation(first).title == "Tax letter"
    assert "Tax letter" in desk.window.sidebar.undo_bar._label.text()
    desk.window.sidebar.undo_bar.undo_button.click()
    assert titles(desk) == ["Today", "제주 여행", "Tax letter"]
    assert desk.window.controller.current == first
    assert not desk.window.sidebar.undo_bar.isVisible()


def test_a_chat_is_gone_when_the_time_for_undo_is_over(two: tuple[Desk, str, str]) -> None:
    desk, first, second = two
    desk.window.sidebar.undo_bar.timer.setInterval(50)
    desk.window.deletions.delete(first)
    desk.window.deletions.delete(second)
    desk.qtbot.waitUntil(lambda: not desk.window.sidebar.undo_bar.isVisible())
    assert desk.store.conversations() == []
    assert [command for command in desk.engine.commands if isinstance(command, Forget)] == [
        Forget(first),
        Forget(second),
    ]


def test_closing_the_window_ends_the_time_for_undo(two: tuple[Desk, str, str]) -> None:
    desk, first, _ = two
    desk.window.deletions.delete(first)
    desk.window.close()
    with pytest.raises(UnknownConversationError):
        desk.store.conversation(first)


def test_deleting_a_chat_that_answers_stops_it(desk: Desk) -> None:
    request = desk.send("hello")
    desk.window.deletions.delete(request.conversation_id)
    assert desk.engine.cancelled == [request.request_id]


def test_no_key_in_a_text_field_deletes(two: tuple[Desk, str, str]) -> None:
    desk, first, _ = two
    desk.window.controller.open(first)
    for field in (desk.window.page.composer.edit, desk.window.sidebar.filter):
        field.setFocus()
        for key in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace):
            QTest.keyClick(field, key)
            QTest.keyClick(field, key, Qt.KeyboardModifier.ControlModifier)
    assert desk.window.deletions.hidden == frozenset()
    assert len(desk.store.conversations()) == 2


def test_f2_renames(two: tuple[Desk, str, str]) -> None:
    desk, first, _ = two
    desk.window.controller.open(first)
    view = desk.window.sidebar.view
    view.setFocus()
    QTest.keyClick(view, Qt.Key.Key_F2)
    editor = view.viewport().findChild(QLineEdit)
    assert editor is not None
    editor.setText("  세금   편지 ")
    QTest.keyClick(editor, Qt.Key.Key_Return)
    desk.settle()
    assert desk.store.conversation(first).title == "세금 편지"
    assert desk.window.header.title.full_text == "세금 편지"


def test_the_mark_tells_where_a_chat_is(two: tuple[Desk, str, str]) -> None:
    desk, first, second = two
    assert index_of(desk, first).data(ListRole.WARMTH) is None
    report = desk.engine.reports[-1]
    desk.engine.report(report.request_id, {first: (CacheState.ON_DISK, "bf16")})
    desk.settle()
    assert index_of(desk, first).data(ListRole.WARMTH).state is CacheState.ON_DISK
    assert "resumes without reading" in index_of(desk, first).data(Qt.ItemDataRole.ToolTipRole)
    assert index_of(desk, second).data(ListRole.WARMTH) == Warmth(CacheState.COLD)
    assert index_of(desk, second).data(Qt.ItemDataRole.AccessibleTextRole).startswith("제주 여행, Cold")


def test_a_reply_makes_its_chat_warm_and_a_snapshot_keeps_it_so(desk: Desk) -> None:
    request = desk.send("hello")
    desk.engine.finish(request, "hi")
    desk.settle()
    assert index_of(desk, request.conversation_id).data(ListRole.WARMTH).state is CacheState.WARM
    desk.engine.saved(request)
    desk.settle()
    warmth = index_of(desk, request.conversation_id).data(ListRole.WARMTH)
    assert warmth.state is CacheState.WARM
    assert "148 MB, 16 bit" in index_of(desk, request.conversation_id).data(Qt.ItemDataRole.ToolTipRole)


def test_the_chat_answered_last_moves_to_the_top(two: tuple[Desk, str, str]) -> None:
    desk, first, _ = two
    desk.window.controller.open(first)
    request = desk.send("again")
    desk.engine.finish(request, "sure")
    desk.settle()
    assert titles(desk) == ["Today", "Tax letter", "제주 여행"]
    assert desk.window.sidebar.view.currentIndex().data(ListRole.CONVERSATION_ID) == first


def pins(desk: Desk) -> list[frozenset[str]]:
    return [command.conversation_ids for command in desk.engine.commands if isinstance(command, Pin)]


def test_a_chat_is_pinned_from_the_list_and_from_the_header(
    two: tuple[Desk, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QMenu, "popup", lambda menu, position: None)  # a platform without a screen has no pop-ups
    desk, first, second = two
    sidebar, header = desk.window.sidebar, desk.window.header
    sidebar.view.setCurrentIndex(index_of(desk, first))
    position = sidebar.view.visualRect(index_of(desk, first)).center()
    sidebar.view.customContextMenuRequested.emit(position)
    assert not sidebar.pin_action.isChecked()
    sidebar.pin_action.trigger()
    sidebar.view.customContextMenuRequested.emit(position)
    assert sidebar.pin_action.isChecked()
    assert pins(desk) == [frozenset({first})]
    assert (desk.store.conversation(first).is_pinned, desk.store.conversation(second).is_pinned) == (True, False)
    index = index_of(desk, first)
    assert index.data(ListRole.IS_PINNED) is True
    for role in (Qt.ItemDataRole.ToolTipRole, Qt.ItemDataRole.AccessibleTextRole):
        assert "Kept in memory" in index.data(role)
        assert "Kept in memory" not in index_of(desk, second).data(role)
    header.more_menu.aboutToShow.emit()
    (pin,) = [action for action in header.more_menu.actions() if action.isCheckable()]
    assert (pin.text(), pin.isChecked(), pin.isEnabled()) == ("Keep chat in memory", True, True)
    pin.trigger()
    assert (pins(desk)[-1], desk.store.conversation(first).is_pinned) == (frozenset(), False)
    desk.window.controller.open(None)
    header.more_menu.aboutToShow.emit()
    (pin,) = [action for action in header.more_menu.actions() if action.isCheckable()]
    assert (pin.isChecked(), pin.isEnabled()) == (False, False)


def test_the_pin_takes_its_room_from_the_title_and_leaves_the_other_rows_as_they_are(
    two: tuple[Desk, str, str],
) -> None:
    desk, first, second = two
    view = desk.window.sidebar.view

    def picture(conversation_id: str) -> QImage:
        return view.viewport().grab(view.visualRect(index_of(desk, conversation_id))).toImage()

    before = picture(first), picture(second)
    desk.session.set_pinned(first, True)
    desk.window._refresh_conversations()
    after = picture(first), picture(second)
    assert after[0] != before[0]
    assert after[1] == before[1]
