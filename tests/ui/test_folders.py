"""Folders and several chats at once: the list, the actions behind it and the deletions, over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from PySide6.QtCore import QByteArray, QMimeData, QPoint, QPointF, Qt
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QAction, QDragMoveEvent, QDropEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu
from pytestqt.qtbot import QtBot

from app.chat_session import ChatSession
from app.conversation_store import ConversationStore
from app.engine_bridge import EngineBridge
from app.errors import AppError, UnknownConversationError, UnknownFolderError
from app.settings import Settings
from engine.protocol.commands import Role
from tests.ui.chats import row, titles
from tests.ui.conftest import OpenDesk
from tests.ui.fakes import FakeEngine
from ui import announce
from ui.chat_controller import ChatController
from ui.conversation_changes import ConversationChanges
from ui.live_replies import LiveReplies
from ui.sidebar.conversation_list import ConversationList
from ui.sidebar.conversation_model import CHATS_MIME
from ui.sidebar.deletions import Deletions
from ui.theme import Theme
from ui.undo_bar import UndoBar


@dataclass
class Shown:
    """What the deletions tell the controller."""

    current: str | None = None
    errors: list[AppError] = field(default_factory=list)

    def open(self, conversation_id: str | None) -> None:
        self.current = conversation_id

    def show_error(self, error: AppError) -> None:
        self.errors.append(error)

    def forget(self, conversation_id: str) -> None:
        pass


@dataclass
class Room:
    qtbot: QtBot
    store: ConversationStore
    sidebar: ConversationList
    changes: ConversationChanges
    deletions: Deletions
    shown: Shown

    def add(self, title: str, folder_id: int | None = None) -> str:
        conversation = self.store.create_conversation(folder_id=folder_id)
        self.store.add_message(conversation.id, Role.USER, f"about {title}")
        self.store.set_title(conversation.id, title)
        self.refresh()
        return conversation.id

    def add_folder(self, name: str) -> int:
        folder = self.store.create_folder(name)
        self.refresh()
        return folder.id

    def refresh(self) -> None:
        hidden, gone = self.deletions.hidden, self.deletions.hidden_folders
        self.sidebar.show_conversations(
            [one for one in self.store.conversations() if one.id not in hidden],
            [one for one in self.store.folders() if one.id not in gone],
        )

    @property
    def titles(self) -> list[str]:
        return titles(self.sidebar)

    def menu(self, title: str) -> QMenu:
        return self.sidebar.menu.menu(row(self.sidebar, title))

    def rename_to(self, words: str) -> None:
        """Into the editor that is open."""
        editor = self.sidebar.view.viewport().findChild(QLineEdit)
        assert editor is not None
        editor.setText(words)
        QTest.keyClick(editor, Qt.Key.Key_Return)
        QApplication.processEvents()


@pytest.fixture
def room(qtbot: QtBot, theme: Theme, data_dir: Path) -> Iterator[Room]:
    store = ConversationStore(data_dir / "ember.db")
    bridge = EngineBridge()
    session = ChatSession(store, FakeEngine(bridge), Settings())
    sidebar = ConversationList(theme)
    qtbot.addWidget(sidebar)
    sidebar.resize(264, 700)
    sidebar.show()
    sidebar.activateWindow()
    qtbot.waitActive(sidebar)
    shown = Shown()
    controller = cast(ChatController, shown)
    deletions = Deletions(session, store, bridge, controller, LiveReplies(), sidebar.undo_bar, sidebar)
    found = Room(
        qtbot, store, sidebar, ConversationChanges(session, store, controller, sidebar, sidebar), deletions, shown
    )
    found.changes.changed.connect(found.refresh)
    deletions.changed.connect(found.refresh)
    sidebar.delete_requested.connect(deletions.delete)
    sidebar.folder_delete_requested.connect(deletions.delete_folder)
    yield found
    session.close()
    store.close()


def entry(menu: QMenu, words: str) -> QAction:
    (found,) = [one for one in menu.actions() if one.text().split("\t")[0] == words]
    return found


def folder_menu(room: Room, title: str) -> QMenu:
    found = entry(room.menu(title), "Move to folder").menu()
    assert isinstance(found, QMenu)
    return found


# moving


def test_a_chat_moves_by_its_menu(room: Room) -> None:
    work = room.add_folder("R&D")
    letter = room.add("Tax letter")
    menu = folder_menu(room, "Tax letter")
    assert [(one.text(), one.isChecked()) for one in menu.actions() if not one.isSeparator()] == [
        ("R&&D", False),
        ("New folder…", False),
        ("None", True),
    ]
    entry(menu, "R&&D").trigger()
    assert room.titles == ["Folders", "R&D", "Tax letter"]
    assert room.store.conversation(letter).folder_id == work
    entry(folder_menu(room, "Tax letter"), "None").trigger()
    assert room.titles == ["Folders", "R&D", "Today", "Tax letter"]


def test_several_chats_move_to_a_new_folder_whose_name_is_asked_for_at_once(room: Room) -> None:
    ids = [room.add(title) for title in "abc"]
    room.sidebar.view.setFocus()
    room.sidebar.view.setCurrentIndex(row(room.sidebar, "c"))
    QTest.keyClick(room.sidebar.view, Qt.Key.Key_Down, Qt.KeyboardModifier.ShiftModifier)
    entry(folder_menu(room, "b"), "New folder…").trigger()
    room.rename_to("  업무 ")
    assert room.titles == ["Folders", "업무", "c", "b", "Today", "a"]
    assert [room.store.conversation(one).folder_id is None for one in ids] == [True, False, False]
    assert [folder.name for folder in room.store.folders()] == ["업무"]


def test_a_folder_is_made_without_chats(room: Room) -> None:
    room.sidebar.new_row.menu.actions()[1].trigger()
    room.rename_to("Later")
    assert room.titles == ["Folders", "Later"]


def test_f2_renames_a_folder(room: Room) -> None:
    room.add_folder("Work")
    room.sidebar.view.setFocus()
    room.sidebar.view.setCurrentIndex(row(room.sidebar, "Work"))
    QTest.keyClick(room.sidebar.view, Qt.Key.Key_F2)
    room.rename_to("Play")
    assert [folder.name for folder in room.store.folders()] == ["Play"]


def drag(room: Room, ids: list[str], over: QPoint) -> tuple[bool, bool]:
    """Whether the place takes them, and whether the drop was."""
    view, data = room.sidebar.view, QMimeData()
    data.setData(CHATS_MIME, QByteArray("\n".join(ids).encode()))
    rest = (Qt.DropAction.MoveAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    move = QDragMoveEvent(over, *rest)
    view.dragMoveEvent(move)
    drop = QDropEvent(QPointF(over), *rest)
    view.dropEvent(drop)
    return move.isAccepted(), drop.isAccepted()


def test_chats_are_dragged_onto_a_folder_and_back_into_the_dates(room: Room) -> None:
    room.add_folder("Work")
    ids = [room.add(title) for title in ("a", "b", "c")]
    view = room.sidebar.view

    def place(title: str) -> QPoint:
        return view.visualRect(row(room.sidebar, title)).center()

    assert drag(room, ids[:2], place("Work")) == (True, True)
    assert room.titles == ["Folders", "Work", "b", "a", "Today", "c"]
    assert drag(room, ids[2:], place("a")) == (True, True)  # onto a chat of the folder
    assert room.titles == ["Folders", "Work", "c", "b", "a"]
    room.add("d")
    assert drag(room, ids[:1], place("Today")) == (True, True)
    assert room.titles == ["Folders", "Work", "c", "b", "Today", "d", "a"]
    assert drag(room, ids[:1], place("Folders")) == (False, False)
    assert drag(room, ids[:1], QPoint(50, 600)) == (False, False)
    assert len(room.store.conversations()) == 4


def test_what_is_dragged_are_the_chats_selected(room: Room) -> None:
    ids = [room.add(title) for title in ("a", "b")]
    model = room.sidebar.model
    data = model.mimeData([model.index_of(one) for one in ids])
    assert bytes(data.data(CHATS_MIME).data()).decode().split("\n") == ids


def test_a_chat_moved_to_a_folder_that_is_gone_stays_where_it_is(room: Room) -> None:
    letter = room.add("Tax letter")
    room.changes.move([letter], 99)
    assert [type(error) for error in room.shown.errors] == [UnknownFolderError]
    assert room.titles == ["Today", "Tax letter"]


def test_an_incognito_chat_stays_in_its_own_place(room: Room) -> None:
    room.add_folder("Work")
    secret = room.store.create_conversation(is_incognito=True)
    room.store.set_title(secret.id, "secret")
    room.add("open")
    assert "Move to folder" not in [one.text() for one in room.menu("secret").actions()]
    assert "Move to folder" in [one.text() for one in room.menu("open").actions()]
    drags = Qt.ItemFlag.ItemIsDragEnabled
    assert not row(room.sidebar, "secret").flags() & drags
    assert row(room.sidebar, "open").flags() & drags


def test_a_closed_folder_hides_its_chats_and_counts_them(room: Room) -> None:
    work = room.add_folder("Work")
    for title in "ab":
        room.add(title, work)
    room.sidebar.set_collapsed([work])
    assert room.titles == ["Folders", "Work"]
    role = Qt.ItemDataRole.AccessibleTextRole
    assert row(room.sidebar, "Work").data(role) == "Folder Work, 2 chats, collapsed"
    told: list[frozenset[int]] = []
    room.sidebar.collapsed_changed.connect(told.append)
    place = room.sidebar.view.visualRect(row(room.sidebar, "Work")).center()
    QTest.mouseClick(room.sidebar.view.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert (room.titles, told) == (["Folders", "Work", "b", "a"], [frozenset()])
    QTest.mouseClick(room.sidebar.view.viewport(), Qt.MouseButton.LeftButton, pos=place)
    QTest.mouseDClick(room.sidebar.view.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert len(told) == 2  # a double click turns it once


# copies


def test_a_duplicate_is_named_so_and_has_the_messages(room: Room) -> None:
    letter = room.add("Tax letter")
    entry(room.menu("Tax letter"), "Duplicate").trigger()
    assert room.titles == ["Today", "Tax letter (copy)", "Tax letter"]
    copy = room.shown.current
    assert copy not in (letter, None)
    assert [message.text for message in room.store.messages(copy or "")] == ["about Tax letter"]


# deleting


def test_several_chats_are_deleted_as_one_and_come_back_as_one(room: Room) -> None:
    ids = [room.add(title) for title in "abc"]
    room.shown.current = ids[2]
    view = room.sidebar.view
    view.setFocus()
    view.setCurrentIndex(row(room.sidebar, "c"))
    QTest.keyClick(view, Qt.Key.Key_Down, Qt.KeyboardModifier.ShiftModifier)
    QTest.keyClick(view, Qt.Key.Key_Delete)
    assert room.titles == ["Today", "a"]
    assert room.sidebar.undo_bar.words == "Deleted 2 chats"
    assert room.shown.current is None
    assert len(room.store.conversations()) == 3
    assert view.hasFocus()
    QTest.keyClick(view, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert room.titles == ["Today", "c", "b", "a"]
    assert room.shown.current == ids[2]


def test_after_a_deletion_the_cursor_stands_on_the_next_chat_and_nothing_is_selected(room: Room) -> None:
    for title in "abc":
        room.add(title)
    chosen: list[str] = []
    view = room.sidebar.view
    view.setFocus()
    view.setCurrentIndex(row(room.sidebar, "b"))
    room.sidebar.chosen.connect(chosen.append)
    QTest.keyClick(view, Qt.Key.Key_Delete)
    assert (view.currentIndex().data(), view.selected_ids, chosen) == ("a", [], [])
    QTest.keyClick(view, Qt.Key.Key_Delete)  # once more: the next chat is not taken along
    assert room.titles == ["Today", "c", "a"]


def test_a_deleted_folder_leaves_its_chats_and_can_come_back_with_them(room: Room) -> None:
    work = room.add_folder("Work")
    letter = room.add("Tax letter", work)
    view = room.sidebar.view
    view.setFocus()
    view.setCurrentIndex(row(room.sidebar, "Work"))
    QTest.keyClick(view, Qt.Key.Key_Delete)
    assert room.titles == ["Today", "Tax letter"]
    assert room.sidebar.undo_bar.words == "Deleted the folder “Work”; its chats stay"
    assert room.store.folders() != []
    room.sidebar.undo_bar.undo_button.click()
    assert room.titles == ["Folders", "Work", "Tax letter"]
    entry(room.menu("Work"), "Delete").trigger()
    room.deletions.commit()
    assert room.store.folders() == []
    assert room.store.conversation(letter).folder_id is None
    assert room.titles == ["Today", "Tax letter"]


def test_deletions_of_both_kinds_share_their_time_and_all_come_true(room: Room) -> None:
    room.add_folder("Work")
    first, second = room.add("a"), room.add("b")
    room.sidebar.undo_bar.timer.setInterval(30)
    room.deletions.delete([first])
    room.deletions.delete_folder(room.store.folders()[0].id)
    room.deletions.delete([second])
    assert room.sidebar.undo_bar.words == "Deleted “b” and 2 more"
    room.qtbot.waitUntil(lambda: not room.sidebar.undo_bar.isVisible())
    assert (room.store.conversations(), room.store.folders()) == ([], [])


def test_a_chat_that_is_gone_already_is_told_and_deletes_nothing(room: Room) -> None:
    letter = room.add("Tax letter")
    room.deletions.delete([letter, "nobody"])
    assert [type(error) for error in room.shown.errors] == [UnknownConversationError]
    assert room.titles == ["Today", "Tax letter"]


def test_the_bar_takes_any_key_and_gives_the_keyboard_back(qtbot: QtBot) -> None:
    """It may as well offer to undo the deletion of a message."""
    bar, field_after = UndoBar(), QLineEdit()
    for widget in (field_after, bar):
        qtbot.addWidget(widget)
        widget.show()
    bar.focus_after = field_after
    undone: list[list[object]] = []
    bar.undone.connect(undone.append)
    bar.add(("message", 7), "Deleted a message")
    assert (bar.words, bar.isVisible()) == ("Deleted a message", True)
    bar.undo_button.click()
    assert (undone, bar.isVisible(), bar.pending) == ([[("message", 7)]], False, frozenset())
    bar.undo()
    assert len(undone) == 1


def test_a_deletion_is_announced_to_a_screen_reader(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken: list[str] = []
    monkeypatch.setattr(QAccessible, "isActive", lambda: True)

    def hear(event: QAccessibleAnnouncementEvent) -> None:
        spoken.append(event.message())

    monkeypatch.setattr(announce.QAccessible, "updateAccessibility", hear)
    room.deletions.delete(room.add("Tax letter"))
    assert spoken == ["Deleted “Tax letter”. Undo is possible for some seconds."]


@pytest.mark.parametrize("stored", ["²", "9" * 5000, "-1", "1,,x", "१"])
def test_folders_that_are_closed_by_an_odd_setting_do_not_keep_the_window_from_opening(
    open_desk: OpenDesk, stored: str
) -> None:
    desk = open_desk(Settings(language="en", collapsed_folders=stored))
    assert desk.window.isVisible()
