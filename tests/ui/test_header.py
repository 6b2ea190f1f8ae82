"""The header's menus and the table of keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QWidget
from pytestqt.qtbot import QtBot

from app.model_library import ModelLibrary
from app.paths import resources_dir
from app.settings import Settings
from ui.header import Header
from ui.language import Language
from ui.settings.shortcuts_dialog import ShortcutsDialog
from ui.shortcuts import SHORTCUTS, Place, bind_shortcuts, key_texts, shortcut_words
from ui.theme import Theme


@pytest.fixture
def header(qtbot: QtBot, theme: Theme, data_dir: Path) -> Iterator[Header]:
    header = Header(theme, ModelLibrary(data_dir / "none", data_dir), Settings())
    qtbot.addWidget(header)
    header.resize(800, 52)
    header.show()
    yield header
    header.more_menu.close()


@pytest.fixture
def korean() -> Iterator[None]:
    language = Language(resources_dir() / "translations")
    language.set_mode("ko")
    yield
    language.set_mode("en")


def words(menu: QMenu) -> list[str]:
    return [action.text() for action in menu.actions() if not action.isSeparator()]


def test_the_menu_holds_everything_of_a_chat_and_of_the_window(header: Header) -> None:
    assert words(header.more_menu) == [
        "New incognito chat",
        "Import chats…",
        "Export",
        "Chat settings…",
        "Pin chat",
        "Rename chat",
        "Duplicate chat",
        "Compress this chat's memory…",
        "Undo compression",
        "Delete chat",
        "Theme",
        "Language",
        "Send with",
        "Settings…",
        "Memory panel",
        "Cache lab",
        "Keyboard shortcuts",
        "Quit Ember",
    ]
    assert words(header.more_menu.export_menu) == [
        "This chat as Markdown…",
        "This chat as HTML…",
        "This chat as JSON…",
        "All chats as JSON…",
    ]


@pytest.mark.parametrize(
    ("action", "signal", "told"),
    [
        ("new_incognito", "new_incognito_requested", []),
        ("import_chats", "import_requested", []),
        ("export_all", "export_all_requested", []),
        ("chat_settings", "chat_settings_requested", []),
        ("pin", "pin_requested", [True]),
        ("rename", "rename_requested", []),
        ("duplicate", "duplicate_requested", []),
        ("compress", "compress_requested", []),
        ("undo_compression", "undo_compression_requested", []),
        ("delete_chat", "delete_requested", []),
        ("settings_action", "settings_requested", []),
        ("shortcuts", "shortcuts_requested", []),
        ("quit", "quit_requested", []),
    ],
)
def test_each_entry_asks_for_what_it_says(
    qtbot: QtBot, header: Header, action: str, signal: str, told: list[object]
) -> None:
    header.show_conversation("Rain")
    header.show_compression(True, True)
    with qtbot.waitSignal(getattr(header, signal)) as heard:
        getattr(header.more_menu, action).trigger()
    assert list(heard.args or []) == told


@pytest.mark.parametrize("name", ["markdown", "html", "json"])
def test_a_chat_is_exported_in_the_form_chosen(qtbot: QtBot, header: Header, name: str) -> None:
    header.show_conversation("Rain")
    with qtbot.waitSignal(header.export_requested) as heard:
        header.more_menu.exports[name].trigger()
    assert heard.args == [name]


def test_a_new_chat_has_nothing_yet_to_rename_or_export(header: Header) -> None:
    menu = header.more_menu
    header.show_conversation(None)
    header.show_compression(True, True)
    of_a_chat = (menu.pin, menu.rename, menu.duplicate, menu.delete_chat, menu.compress, *menu.exports.values())
    assert [action.text() for action in of_a_chat if action.isEnabled()] == []
    assert menu.chat_settings.isEnabled()  # those it will begin with
    assert menu.export_all.isEnabled()
    header.show_conversation("Rain")
    header.show_compression(True, True)
    assert [action.text() for action in of_a_chat if not action.isEnabled()] == []


@pytest.mark.qt_log_ignore("This plugin does not support", extend=True)  # said by the offscreen platform
def test_an_open_menu_follows_what_happens(header: Header) -> None:
    header.show_conversation("Rain")
    header.show_compression(False, False)
    header.open_more_menu()
    assert header.more_menu.activeAction() is header.more_menu.new_incognito  # the arrow keys go on from there
    compress = header.more_menu.compress
    assert not compress.isEnabled()
    header.show_compression(True, False)  # the reply has ended meanwhile
    header.show_pinned(True)
    assert header.more_menu.isVisible()
    assert compress in header.more_menu.actions()
    assert compress.isEnabled()
    assert header.more_menu.pin.isChecked()


def test_the_choices_mark_what_is_chosen_and_opening_again_keeps_no_more(qtbot: QtBot, header: Header) -> None:
    menu = header.more_menu
    for theme in ("light", "dark") * 3:
        header.show_settings(Settings(theme=theme))
        menu.aboutToShow.emit()
        assert [one.data() for one in menu.theme_menu.actions() if one.isChecked()] == [theme]
    before = len(menu.findChildren(QWidget)) + len(menu.theme_menu.children())
    menu.aboutToShow.emit()
    assert len(menu.findChildren(QWidget)) + len(menu.theme_menu.children()) == before
    with qtbot.waitSignal(header.language_chosen) as heard:
        next(one for one in menu.language_menu.actions() if one.data() == "ko").trigger()
    assert heard.args == ["ko"]


@pytest.mark.usefixtures("korean")
def test_the_menu_speaks_korean(header: Header) -> None:
    assert words(header.more_menu)[:4] == ["새 시크릿 대화", "대화 가져오기…", "내보내기", "대화 설정…"]


def test_no_key_is_used_twice() -> None:
    everywhere = [key for one in SHORTCUTS if one.place is Place.WINDOW for key in one.keys]
    for place in Place:
        own = [key for one in SHORTCUTS if one.place is place for key in one.keys]
        held = own if place is Place.WINDOW else [*own, *everywhere]
        assert [key for key, count in Counter(QKeySequence(key).toString() for key in held).items() if count > 1] == []
    assert all(not QKeySequence(key).isEmpty() for one in SHORTCUTS for key in one.keys)
    names = Counter(one.name for one in SHORTCUTS)
    assert max(names.values()) == 1


def test_no_key_that_counts_everywhere_takes_something_away_or_is_one_of_writing() -> None:
    everywhere = {key for one in SHORTCUTS if one.place is Place.WINDOW for key in one.keys}
    assert not everywhere & {"Del", "Backspace", "Ctrl+C", "Ctrl+V", "Ctrl+X", "Ctrl+Z", "Ctrl+A", "Return", "Tab"}
    assert not {one.name for one in SHORTCUTS if one.place is Place.WINDOW} & {"delete", "delete_message"}


def test_every_key_has_words_in_both_languages(korean: None) -> None:
    assert all(re.search("[가-힣]", shortcut_words(one.name)) for one in SHORTCUTS)
    with pytest.raises(KeyError):
        shortcut_words("made_up")


def test_a_bound_key_calls_its_slot_and_menu_entries_do_not_get_in_its_way(qtbot: QtBot, header: Header) -> None:
    heard: list[str] = []
    bind_shortcuts(header, {name: lambda name=name: heard.append(name) for name in ("settings", "shortcuts", "quit")})
    with pytest.raises(KeyError):
        bind_shortcuts(header, {"made_up": lambda: None})
    header.activateWindow()
    qtbot.waitActive(header)
    header.more_button.setFocus()
    control = Qt.KeyboardModifier.ControlModifier
    for key, modifier in (
        (Qt.Key.Key_Comma, control),
        (Qt.Key.Key_F1, Qt.KeyboardModifier.NoModifier),
        (Qt.Key.Key_Slash, control),
        (Qt.Key.Key_Q, control),
    ):
        QTest.keyClick(header.more_button, key, modifier)
    assert heard == ["settings", "shortcuts", "shortcuts", "quit"]
    header.more_menu.aboutToShow.emit()
    keys = {one.text(): one.shortcut().toString() for one in header.more_menu.findChildren(QAction)}
    assert keys["Settings…"] == "Ctrl+,"
    header.more_menu.aboutToHide.emit()
    assert header.more_menu.settings_action.shortcut().isEmpty()


def test_the_keys_are_listed_where_they_count(qtbot: QtBot) -> None:
    dialog = ShortcutsDialog()
    qtbot.addWidget(dialog)
    dialog.show()
    labels = [label for label in dialog.findChildren(QWidget) if label.accessibleName()]
    said = " | ".join(label.accessibleName() for label in labels)
    for one in SHORTCUTS:
        assert f"{shortcut_words(one.name)}: {', '.join(key_texts(one.name))}" in said
    assert key_texts("send") == ["Enter", "Ctrl+Enter"]
    QTest.keyClick(dialog, Qt.Key.Key_Escape)
    assert not dialog.isVisible()
    QApplication.processEvents()
