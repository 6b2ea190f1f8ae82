"""Chats to files and back, as a person does it: what is asked, what is written, what is said."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QFileDialog, QWidget
from pytestqt.qtbot import QtBot

import app.exchange
from app.conversation import Draft
from app.conversation_store import ConversationStore
from app.errors import AppError, DiskFullError, ExportFailedError
from app.exchange.import_file import ImportResult, import_file
from engine.protocol.commands import Role
from ui.sidebar import import_job
from ui.sidebar.exchange_actions import ExchangeActions
from ui.sidebar.file_names import file_stem
from ui.sidebar.skipped_words import kind_words, skipped_words
from ui.sidebar.told_bar import ToldBar


@dataclass
class Room:
    qtbot: QtBot
    store: ConversationStore
    window: QWidget
    exchange: ExchangeActions
    hidden: set[str]
    told: list[str] = field(default_factory=list)
    failures: list[AppError] = field(default_factory=list)
    results: list[ImportResult] = field(default_factory=list)

    def add(self, title: str, *, is_incognito: bool = False) -> str:
        conversation = self.store.create_conversation(is_incognito=is_incognito)
        self.store.add_message(conversation.id, Role.USER, f"about {title}")
        self.store.add_message(conversation.id, Role.ASSISTANT, "**well**")
        self.store.set_title(conversation.id, title)
        return conversation.id

    @property
    def dialog(self) -> QFileDialog:
        (found,) = [one for one in self.window.findChildren(QFileDialog) if one.isVisible()]
        return found

    def save_to(self, path: Path) -> None:
        dialog = self.dialog
        dialog.fileSelected.emit(str(path))
        dialog.close()

    @property
    def suggested(self) -> str:
        return Path(self.dialog.selectedFiles()[0]).name

    def import_all(self, *paths: Path) -> None:
        self.exchange.import_from([str(path) for path in paths])
        self.qtbot.waitUntil(lambda: not self.exchange.is_importing)

    @property
    def titles(self) -> list[str]:
        return sorted(one.title for one in self.store.conversations())


@pytest.fixture
def room(qtbot: QtBot, data_dir: Path) -> Iterator[Room]:
    store = ConversationStore(data_dir / "ember.db")
    window = QWidget()
    qtbot.addWidget(window)
    window.show()
    hidden: set[str] = set()
    found = Room(qtbot, store, window, ExchangeActions(store, window, hidden=lambda: hidden), hidden)
    found.exchange.told.connect(found.told.append)
    found.exchange.failed.connect(found.failures.append)
    found.exchange.imported.connect(found.results.append)
    yield found
    found.exchange.stop()
    store.close()


def plain(path: Path, number: int) -> Path:
    """A file of so many chats of two messages."""
    messages = [{"role": "user", "content": "bread?"}, {"role": "assistant", "content": "butter"}]
    path.write_text(json.dumps([{"title": f"chat {one}", "messages": messages} for one in range(number)]))
    return path


# out


@pytest.mark.parametrize(
    ("file_format", "name", "holds"),
    [
        ("markdown", "세금 편지 1 2.md", "# 세금 편지: 1/2"),
        ("html", "세금 편지 1 2.html", "<strong>well</strong>"),
        ("json", "세금 편지 1 2.json", '"format": "ember-export"'),
    ],
)
def test_a_chat_goes_into_a_file_named_after_it(
    room: Room, tmp_path: Path, file_format: str, name: str, holds: str
) -> None:
    letter = room.add("세금 편지: 1/2")
    room.exchange.export_chats([letter], file_format)
    assert room.suggested == name
    assert room.dialog.acceptMode() is QFileDialog.AcceptMode.AcceptSave
    room.save_to(tmp_path / name)
    assert holds in (tmp_path / name).read_text(encoding="utf-8")
    assert "about 세금 편지" in (tmp_path / name).read_text(encoding="utf-8")
    assert room.told == [f"Saved 1 chat as {name}"]


def test_several_chats_go_into_one_file(room: Room, tmp_path: Path) -> None:
    ids = [room.add("a"), room.add("b")]
    for file_format, suffix in (("markdown", "md"), ("html", "html"), ("json", "json")):
        room.exchange.export_chats(ids, file_format)
        assert room.suggested.startswith("Ember chats 20")
        room.save_to(tmp_path / f"all.{suffix}")
        text = (tmp_path / f"all.{suffix}").read_text(encoding="utf-8")
        assert text.index("about a") < text.index("about b")


def test_everything_is_exported_but_what_is_secret_or_being_deleted(room: Room, tmp_path: Path) -> None:
    room.add("a")
    room.add("secret", is_incognito=True)
    room.hidden.add(room.add("going"))
    room.exchange.export_all()
    room.save_to(tmp_path / "all.json")
    content = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    assert [one["title"] for one in content["conversations"]] == ["a"]


def test_a_file_that_cannot_be_written_is_told_and_the_old_one_stays(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter, path = room.add("a"), tmp_path / "a.md"
    path.write_text("old")

    def fail(_path: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    room.exchange.export_chats([letter], "markdown")
    room.save_to(path)
    assert [type(error) for error in room.failures] == [ExportFailedError]
    assert (path.read_text(), list(tmp_path.glob(".*.part")), room.told) == ("old", [], [])


def test_a_chat_that_is_gone_is_told(room: Room) -> None:
    room.exchange.export_chats(["nobody"], "html")
    assert [error.code for error in room.failures] == ["unknown_conversation"]


@pytest.mark.parametrize(
    ("title", "stem"),
    [
        ("한글 제목", "한글 제목"),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af", "한글"),
        ('a<b>c:d"e/f\\g|h?i*j', "a b c d e f g h i j"),
        ("ends with dots. . .", "ends with dots"),
        ("con", "_con"),
        ("COM1.txt", "_COM1.txt"),
        ("console", "console"),
        ("line\nbreak\ttab\x00", "line break tab"),
        ("...", "Chat"),
        ("", "Chat"),
        ("\u202ename", "name"),
        ("🥖 bread", "🥖 bread"),
    ],
)
def test_titles_become_file_names_that_windows_takes(title: str, stem: str) -> None:
    assert file_stem(title, "Chat") == stem


def test_a_long_title_becomes_a_name_that_every_disk_takes(tmp_path: Path) -> None:
    stem = file_stem("가" * 500, "Chat")
    assert len(stem.encode()) <= 180
    (tmp_path / f"{stem} (2).json").write_text("")


# in


def test_an_export_comes_back_as_it_was(room: Room, tmp_path: Path) -> None:
    letter = room.add("a")
    room.exchange.export_chats([letter], "json")
    room.save_to(tmp_path / "a.json")
    texts = [message.text for message in room.store.messages(letter)]
    room.store.delete_conversation(letter)
    room.exchange.import_files()
    assert room.dialog.fileMode() is QFileDialog.FileMode.ExistingFiles
    room.dialog.filesSelected.emit([str(tmp_path / "a.json")])
    room.dialog.close()
    room.qtbot.waitUntil(lambda: bool(room.results))
    (back,) = room.store.conversations()
    assert (back.title, [message.text for message in room.store.messages(back.id)]) == ("a", texts)
    assert room.told[-2:] == ["Reading a.json…", "Imported 1 chat"]


def test_several_files_come_in_one_after_the_other_and_a_bad_one_stops_none(room: Room, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("no json")
    room.import_all(plain(tmp_path / "first.json", 2), tmp_path / "bad.json", plain(tmp_path / "last.json", 1))
    assert room.titles == ["chat 0", "chat 0", "chat 1"]
    assert [error.code for error in room.failures] == ["import_not_json"]
    assert [result.num_conversations for result in room.results] == [2, 1]


def test_what_was_left_out_is_said(room: Room, tmp_path: Path) -> None:
    content = [{"messages": [{"role": "user", "content": "hi"}, {"role": "tool", "content": "x"}]}, {"messages": []}]
    (tmp_path / "odd.json").write_text(json.dumps(content))
    room.import_all(tmp_path / "odd.json")
    assert room.told[-1] == (
        "Imported 1 chat, left out: messages without text, or of another role than user and assistant: 1; "
        "chats without a message: 1"
    )


def test_the_window_goes_on_while_a_file_comes_in(room: Room, tmp_path: Path) -> None:
    beats: list[int] = []
    timer = QTimer(interval=0)
    timer.timeout.connect(lambda: beats.append(room.store.conversations().__len__()))
    timer.start()
    room.import_all(plain(tmp_path / "many.json", 150))
    timer.stop()
    assert len(room.titles) == 150
    assert any(0 < seen < 150 for seen in beats)
    assert [words for words in room.told if words.startswith("Importing ")]


def failing_after(store: ConversationStore, number: int, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    add, stored = store.add_imported, []

    def add_or_fail(chats: Any, **options: Any) -> Any:
        if len(stored) == number:
            raise failure
        stored.append(chats)
        return add(chats, **options)

    monkeypatch.setattr(store, "add_imported", add_or_fail)


@pytest.mark.parametrize(
    ("failure", "code"),
    [(DiskFullError("full", path="ember.db"), "disk_full"), (OverflowError("too large"), "import_unreadable")],
    ids=["disk full", "a bug"],
)
def test_a_failure_meanwhile_leaves_nothing_of_the_file_and_the_next_one_comes_in(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, code: str
) -> None:
    room.add("mine")
    with monkeypatch.context() as patched:
        failing_after(room.store, 3, patched, failure)
        room.import_all(filed(tmp_path / "five.json", 5))
    assert (room.titles, room.store.folders()) == (["mine"], [])
    assert ([error.code for error in room.failures], room.results) == ([code], [])
    room.import_all(plain(tmp_path / "one.json", 1))
    assert len(room.titles) == 2


@pytest.mark.parametrize("bug", [OverflowError("too large"), RuntimeError(), KeyError("x")], ids=repr)
def test_whatever_goes_wrong_while_reading_is_told_once_and_the_next_file_comes_in(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Exception
) -> None:
    def read(store: object, path: Path) -> ImportResult:
        if path.name == "bad.json":
            raise bug
        return import_file(store, path)  # type: ignore[arg-type]  # the job's stand-in for the store

    monkeypatch.setattr(import_job, "import_file", read)
    room.import_all(plain(tmp_path / "bad.json", 1), plain(tmp_path / "good.json", 2))
    assert [error.code for error in room.failures] == ["import_unreadable"]
    assert len(room.titles) == 2


def filed(path: Path, number: int) -> Path:
    """An export of chats that lie in a folder, alike in title, length and times."""
    times = {"created_at": "2026-01-01T00:00:00+00:00", "updated_at": "2026-01-01T00:00:00+00:00"}
    message = {"id": 1, "role": "user", "text": "hi", "created_at": times["created_at"]}
    chat = {"title": "mine", "system_prompt": "", "folder_id": 1, "messages": [message]} | times
    folders = [{"id": 1, "name": "Sea"}]
    content = {"format": "ember-export", "version": 1, "folders": folders, "conversations": [chat] * number}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def amid_an_import(room: Room, path: Path, act: Callable[[], object]) -> None:
    """Do something once, when some of the chats are in and others are not; then the window closes."""

    def on_told(words: str) -> None:
        if words.startswith("Importing") and room.exchange.is_importing:
            act()
            room.exchange.stop()

    room.exchange.told.connect(on_told)
    room.exchange.import_from([str(path)])
    room.qtbot.waitUntil(lambda: not room.exchange.is_importing)
    assert room.results == []


def test_a_window_that_closes_meanwhile_keeps_nothing_of_the_file(room: Room, tmp_path: Path) -> None:
    amid_an_import(room, filed(tmp_path / "many.json", 300), lambda: None)
    assert (room.titles, room.store.folders()) == ([], [])


def test_the_users_own_chat_that_looks_like_an_imported_one_stays(room: Room, tmp_path: Path) -> None:
    own: list[str] = []

    def add() -> None:
        one = room.store.create_conversation()
        room.store.add_message(one.id, Role.USER, "precious")
        room.store.set_title(one.id, "mine")
        own.append(one.id)

    amid_an_import(room, filed(tmp_path / "many.json", 300), add)
    assert [one.id for one in room.store.conversations()] == own


@pytest.mark.parametrize("way", ["sends", "drafts"])
def test_an_imported_chat_that_was_gone_on_in_stays_with_its_folder(room: Room, tmp_path: Path, way: str) -> None:
    used: list[str] = []

    def go_on() -> None:
        used.append(room.store.conversations()[0].id)
        if way == "sends":
            room.store.add_message(used[0], Role.USER, "and now?")
        else:
            room.store.set_draft(used[0], Draft("and n"))

    amid_an_import(room, filed(tmp_path / "many.json", 300), go_on)
    assert [one.id for one in room.store.conversations()] == used
    assert [folder.name for folder in room.store.folders()] == ["Sea"]


def test_a_folder_that_was_there_before_or_that_was_used_stays(room: Room, tmp_path: Path) -> None:
    before = room.store.create_folder("Sea")
    amid_an_import(room, filed(tmp_path / "many.json", 300), lambda: None)
    assert room.store.folders() == [before]


def test_of_an_import_that_was_killed_nothing_is_left_at_the_next_start(room: Room, tmp_path: Path) -> None:
    copies: list[Path] = []

    def copy() -> None:
        names = ("ember.db", "ember.db-wal")
        copies.extend(Path(shutil.copy(room.store._path.with_name(name), tmp_path / name)) for name in names)

    room.add("own")
    amid_an_import(room, filed(tmp_path / "many.json", 300), copy)
    killed = ConversationStore(copies[0])
    try:
        assert len(killed.conversations()) > 1
        killed.close_interrupted_replies()
        assert [one.title for one in killed.conversations()] == ["own"]
        assert killed.folders() == []
    finally:
        killed.close()


def test_an_import_that_came_in_whole_is_there_at_the_next_start(room: Room, tmp_path: Path) -> None:
    room.import_all(filed(tmp_path / "three.json", 3))
    room.store.close_interrupted_replies()
    assert (room.titles, len(room.store.folders())) == (["mine"] * 3, 1)


def test_every_kind_that_is_left_out_has_words() -> None:
    kinds = set()
    for path in Path(app.exchange.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "skipped.add":
                kinds.add(str(ast.literal_eval(node.args[0])))
    assert kinds == set(kind_words())
    assert skipped_words("conversations without a message: 1,234") == "chats without a message: 1,234"
    assert skipped_words("another kind: 2") == "another kind: 2"
    assert skipped_words("something else") == "something else"


def test_the_bar_says_something_for_a_while(qtbot: QtBot) -> None:
    bar = ToldBar()
    qtbot.addWidget(bar)
    bar.timer.setInterval(30)
    bar.tell("Imported 1 chat")
    assert (bar.words, bar.isVisible()) == ("Imported 1 chat", True)
    qtbot.waitUntil(lambda: not bar.isVisible())
