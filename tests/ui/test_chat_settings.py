"""The settings of one chat: its own values or the settings', presets, and what a change costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtGui import QInputMethodEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.conversation import ChatOptions, Conversation
from app.model_library import ModelLibrary
from app.paths import resources_dir
from app.presets import BUILT_IN, Preset, Presets
from app.settings import Settings
from ui.language import Language
from ui.settings.chat_settings_dialog import ChatSettingsDialog

NOW = datetime(2026, 11, 30, tzinfo=UTC)
MODEL = "SmolLM2-135M-Instruct"
POET = Preset("시인", "시로 답해 주세요.", ChatOptions(temperature=1.2), MODEL)
OpenChat = Callable[..., "Opened"]


@dataclass
class Opened:
    dialog: ChatSettingsDialog
    presets: Presets
    kept: list[tuple[str, ChatOptions, str | None]]

    def save(self) -> tuple[str, ChatOptions, str | None]:
        self.dialog.save_button.click()
        (kept,) = self.kept
        return kept

    def choose_preset(self, name: str) -> None:
        combo = self.dialog.preset_bar.combo
        combo.setCurrentIndex(combo.findData(name))
        combo.activated.emit(combo.currentIndex())

    @property
    def preset(self) -> str:
        return self.dialog.preset_bar.combo.currentText()


def chat(**values: object) -> Conversation:
    return Conversation("a", "Rain", NOW, NOW, **values)  # type: ignore[arg-type]


@pytest.fixture
def open_chat(qtbot: QtBot, data_dir: Path) -> Iterator[OpenChat]:
    opened: list[ChatSettingsDialog] = []
    language = Language(resources_dir() / "translations")

    def make(conversation: Conversation | None = None, settings: Settings | None = None, speaks: str = "en") -> Opened:
        language.set_mode(speaks)
        presets = Presets(data_dir / "presets.json")
        library = ModelLibrary(resources_dir(), data_dir)
        dialog = ChatSettingsDialog(conversation, presets, library, settings or Settings())
        kept: list[tuple[str, ChatOptions, str | None]] = []
        dialog.accepted_with.connect(lambda *values: kept.append(values))
        dialog.open()
        qtbot.waitExposed(dialog)
        opened.append(dialog)
        return Opened(dialog, presets, kept)

    yield make
    language.set_mode("en")
    for dialog in opened:
        dialog.close()
        dialog.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


def test_what_is_shown_is_what_is_kept(open_chat: OpenChat) -> None:
    options = ChatOptions(temperature=0.3, max_new_tokens=50)
    before = chat(system_prompt="짧게", options=options, model=MODEL, num_messages=4)
    assert open_chat(before).save() == ("짧게", options, MODEL)


def test_every_option_is_there_and_follows_the_settings_until_it_has_its_own_value(open_chat: OpenChat) -> None:
    opened = open_chat(chat(), Settings(temperature=0.9, top_k=40))
    assert list(opened.dialog.options) == [option.name for option in fields(ChatOptions)]
    row = opened.dialog.options["temperature"]
    assert (row.follows.isChecked(), row.control.value(), row.control.isEnabled()) == (True, 0.9, False)
    row.follows.click()
    row.control.spin.setValue(1.5)
    opened.dialog.options["top_k"].follows.click()  # its own value may be that of the settings
    assert opened.save() == ("", ChatOptions(temperature=1.5, top_k=40), None)


def test_following_again_takes_the_own_value_back(open_chat: OpenChat) -> None:
    opened = open_chat(chat(options=ChatOptions(top_p=0.5)))
    row = opened.dialog.options["top_p"]
    assert row.control.isEnabled()
    row.follows.click()
    assert row.control.value() == Settings().top_p
    assert opened.save()[1] == ChatOptions()


def test_a_new_chat_starts_with_the_prompt_of_the_settings(open_chat: OpenChat) -> None:
    opened = open_chat(None, Settings(system_prompt="Be brief."))
    assert opened.save() == ("Be brief.", ChatOptions(), None)


def test_leaving_keeps_nothing(open_chat: OpenChat) -> None:
    opened = open_chat(chat())
    opened.dialog.prompt.setPlainText("other")
    QTest.keyClick(opened.dialog, Qt.Key.Key_Escape)
    assert not opened.dialog.isVisible()
    assert opened.kept == []


def test_a_number_that_is_being_typed_counts(open_chat: OpenChat) -> None:
    opened = open_chat(chat(options=ChatOptions(top_k=1)))
    spin = opened.dialog.options["top_k"].control.spin
    spin.setFocus()
    spin.selectAll()
    QTest.keyClicks(spin, "55")
    assert opened.save()[1].top_k == 55


def test_hangul_is_taken_as_it_stands(open_chat: OpenChat) -> None:
    opened = open_chat(chat())
    opened.dialog.prompt.setFocus()
    for preedit, commit in (("ㅉ", ""), ("쭈", ""), ("쭉", ""), ("", "쭉")):
        event = QInputMethodEvent(preedit, [])
        event.setCommitString(commit)
        QApplication.sendEvent(opened.dialog.prompt, event)
    assert opened.save()[0] == "쭉"


def test_enter_in_the_prompt_breaks_the_line(open_chat: OpenChat) -> None:
    opened = open_chat(chat())
    QTest.keyClicks(opened.dialog.prompt, "one")
    QTest.keyClick(opened.dialog.prompt, Qt.Key.Key_Return)
    QTest.keyClicks(opened.dialog.prompt, "two")
    assert opened.dialog.isVisible()
    assert opened.save()[0] == "one\ntwo"


@pytest.mark.parametrize(("num_messages", "costs"), [(0, False), (2, True)])
def test_what_a_new_prompt_or_model_costs_is_told(open_chat: OpenChat, num_messages: int, costs: bool) -> None:
    opened = open_chat(chat(num_messages=num_messages, system_prompt="before"))
    assert "again" not in opened.dialog.cost_words
    opened.dialog.prompt.setPlainText("after")
    assert ("the whole chat is read again" in opened.dialog.cost_words) is costs
    opened.dialog.prompt.setPlainText("before")
    assert "again" not in opened.dialog.cost_words
    opened.dialog.options["temperature"].follows.click()
    assert "again" not in opened.dialog.cost_words  # how replies are drawn costs nothing
    opened.dialog.model.show_value(MODEL)
    opened.dialog.model.changed.emit(MODEL)
    assert ("The model changes" in opened.dialog.cost_words) is costs


def test_a_preset_that_comes_with_ember_sets_the_replies_only(open_chat: OpenChat) -> None:
    opened = open_chat(chat(system_prompt="mine", model=MODEL))
    assert opened.preset == "Own values"
    opened.choose_preset("Precise")
    assert opened.preset == "Precise"
    assert opened.save() == ("mine", BUILT_IN[0].options, MODEL)


def test_a_preset_is_recognised_and_left_by_a_change(open_chat: OpenChat) -> None:
    opened = open_chat(chat(options=BUILT_IN[2].options), speaks="ko")
    assert opened.preset == "창의적으로"
    opened.dialog.options["min_p"].follows.click()
    assert opened.preset == "직접 정함"


def test_the_users_preset_sets_everything(open_chat: OpenChat, data_dir: Path) -> None:
    Presets(data_dir / "presets.json").save(POET)
    opened = open_chat(chat(system_prompt="mine", options=ChatOptions(top_k=3)))
    opened.choose_preset("시인")
    assert opened.save() == (POET.system_prompt, POET.options, MODEL)


def test_a_preset_is_made_of_what_is_chosen(open_chat: OpenChat, data_dir: Path) -> None:
    opened = open_chat(chat(system_prompt="시로 답해 주세요.", options=ChatOptions(temperature=1.2), model=MODEL))
    bar = opened.dialog.preset_bar
    assert not bar.name_edit.isVisible()
    bar.save_button.click()
    assert opened.dialog.focusWidget() is bar.name_edit
    bar.name_edit.setText("precise")
    QTest.keyClick(bar.name_edit, Qt.Key.Key_Return)
    assert "comes with Ember" in opened.dialog.notice.words.text()
    bar.name_edit.setText("시인")
    QTest.keyClick(bar.name_edit, Qt.Key.Key_Return)
    assert not opened.dialog.notice.isVisible()
    assert not bar.name_edit.isVisible()
    assert opened.preset == "시인"
    assert opened.dialog.isVisible()
    assert opened.kept == []
    assert Presets(data_dir / "presets.json").own() == [POET]


def test_escape_leaves_the_name_and_not_the_dialog(open_chat: OpenChat) -> None:
    opened = open_chat(chat())
    bar = opened.dialog.preset_bar
    opened.dialog.activateWindow()
    QApplication.processEvents()
    assert opened.dialog.isActiveWindow()
    bar.save_button.click()
    QTest.keyClick(bar.name_edit, Qt.Key.Key_Escape)
    assert not bar.name_edit.isVisible()
    assert opened.dialog.isVisible()
    assert opened.presets.own() == []


def test_a_preset_is_renamed_deleted_and_brought_back(open_chat: OpenChat, data_dir: Path) -> None:
    Presets(data_dir / "presets.json").save(POET)
    opened = open_chat(chat())
    bar = opened.dialog.preset_bar
    assert not bar.manage_button.isEnabled()
    opened.choose_preset("Creative")
    assert not bar.manage_button.isEnabled()
    opened.choose_preset("시인")
    assert bar.manage_button.isEnabled()
    bar.rename_action.trigger()
    assert bar.name_edit.text() == "시인"
    bar.name_edit.setText("Poet")
    bar.name_save_button.click()
    assert opened.preset == "Poet"
    bar.delete_action.trigger()
    assert opened.presets.own() == []
    assert opened.preset == "Own values"
    assert "Poet" in opened.dialog.notice.words.text()
    opened.dialog.notice.undo_button.click()
    assert [preset.name for preset in opened.presets.own()] == ["Poet"]
    assert opened.preset == "Poet"


def test_a_model_that_is_gone_is_still_named(open_chat: OpenChat) -> None:
    opened = open_chat(chat(model="gone"))
    assert opened.dialog.model.combo.currentText() == "gone"
    assert opened.save()[2] == "gone"


def test_it_speaks_another_language_at_once(open_chat: OpenChat) -> None:
    opened = open_chat(chat(options=ChatOptions(temperature=1.0)))
    language = Language(resources_dir() / "translations")
    language.set_mode("ko")
    QApplication.processEvents()
    assert opened.dialog.windowTitle() == "대화 설정"
    assert opened.dialog.options["temperature"].label.text() == "온도"
    assert opened.save()[1] == ChatOptions(temperature=1.0)
    language.set_mode("en")
