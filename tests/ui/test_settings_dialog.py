"""The settings dialog: every setting is there in both languages, what is done counts at once, nothing bad gets in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QLocale, QPoint, QPointF, Qt
from PySide6.QtGui import QInputMethodEvent, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QFileDialog
from pytestqt.qtbot import QtBot

from app.conversation import ChatOptions
from app.errors import DiskFullError
from app.model_library import ModelLibrary
from app.paths import resources_dir
from app.presets import Preset, Presets
from app.settings import Group, LoadedSettings, SettingProblem, Settings, load_settings, save_settings
from engine.protocol.config import ContextPolicy, Weights
from ui.language import Language
from ui.settings import words
from ui.settings.controls import ChoiceControl, NumberControl, SwitchControl, TextControl
from ui.settings.preferences import Preferences
from ui.settings.settings_dialog import SettingsDialog
from ui.theme import Theme

SHOWN = [setting for setting in fields(Settings) if not setting.metadata["is_hidden"]]
OpenDialog = Callable[..., "Opened"]


class FakeSession:
    def __init__(self) -> None:
        self.loads: list[tuple[Path, str]] = []

    def load_model(self, path: Path, weights: str) -> str:
        self.loads.append((path, weights))
        return "load"


@dataclass
class Opened:
    dialog: SettingsDialog
    preferences: Preferences
    presets: Presets
    session: FakeSession
    language: Language
    saved: list[Settings]

    @property
    def settings(self) -> Settings:
        return self.preferences.settings

    def spin(self, name: str) -> Any:
        control = self.dialog.rows[name].control
        assert isinstance(control, NumberControl)
        return control.spin

    def combo(self, name: str) -> QComboBox:
        control = self.dialog.rows[name].control
        assert isinstance(control, ChoiceControl)
        return control.combo

    def choose(self, name: str, value: str) -> None:
        """As the arrow keys do."""
        combo = self.combo(name)
        combo.setFocus()
        step = Qt.Key.Key_Down if combo.findData(value) > combo.currentIndex() else Qt.Key.Key_Up
        while combo.currentData() != value:
            before = combo.currentIndex()
            QTest.keyClick(combo, step)
            assert combo.currentIndex() != before

    def shown(self) -> list[str]:
        return [name for name, row in self.dialog.rows.items() if row.isVisible()]


@pytest.fixture
def open_dialog(qtbot: QtBot, data_dir: Path) -> Iterator[OpenDialog]:
    opened: list[Opened] = []

    def make(settings: Settings | None = None, loaded: LoadedSettings | None = None, fails: bool = False) -> Opened:
        saved: list[Settings] = []

        def on_settings_changed(changed: Settings) -> None:
            saved.append(changed)
            if fails:
                raise DiskFullError("full", path="settings.json")

        settings = settings or Settings(language="en", theme="light")
        session, theme, language = (
            FakeSession(),
            Theme(resources_dir() / "themes"),
            Language(resources_dir() / "translations"),
        )
        theme.set_mode(settings.theme)
        language.set_mode(settings.language)
        library = ModelLibrary(resources_dir(), data_dir)
        preferences = Preferences(settings, on_settings_changed, session, library, theme, language)  # type: ignore[arg-type]
        presets = Presets(data_dir / "presets.json")
        dialog = SettingsDialog(preferences, library, presets, loaded)
        dialog.open()
        qtbot.waitExposed(dialog)
        opened.append(Opened(dialog, preferences, presets, session, language, saved))
        return opened[-1]

    yield make
    for one in opened:
        one.dialog.close()
        one.dialog.deleteLater()
        one.language.set_mode("en")
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_setting_and_every_choice_has_words(language: str, open_dialog: OpenDialog) -> None:
    opened = open_dialog(Settings(language=language))
    assert list(opened.dialog.rows) == [setting.name for setting in SHOWN]
    for setting in SHOWN:
        texts = words.field_words(setting.name)
        assert texts.label
        assert texts.help.endswith(".")
        if setting.metadata["choices"]:
            choices = words.choice_words(setting.name)
            assert [str(value) for value in choices] == list(setting.metadata["choices"])
            assert all(choices.values())
        if language == "en":
            assert (texts.label, texts.help) == (setting.metadata["label"], setting.metadata["help"])
    if language == "ko":
        own = [words.field_words(setting.name).help for setting in SHOWN]
        assert all(any("가" <= letter <= "힣" for letter in text) for text in own)
    assert all(words.group_words(group) for group in Group)


def test_a_setting_without_words_is_noticed() -> None:
    with pytest.raises(KeyError):
        words.field_words("made_up")
    with pytest.raises(KeyError):
        words.choice_words("made_up")


def test_each_kind_of_setting_has_its_control(open_dialog: OpenDialog) -> None:
    rows = open_dialog().dialog.rows
    kinds = {
        "theme": ChoiceControl,
        "model": ChoiceControl,
        "context_policy": ChoiceControl,
        "temperature": NumberControl,
        "disk_cap_mb": NumberControl,
        "allow_compression": SwitchControl,
        "system_prompt": TextControl,
    }
    assert {name: type(rows[name].control) for name in kinds} == kinds


def test_a_group_is_shown_at_a_time(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    names = {group: [one.name for one in SHOWN if one.metadata["group"] is group] for group in Group}
    for number, group in enumerate(Group):
        opened.dialog.groups.setCurrentRow(number)
        assert opened.shown() == names[group]
        assert names[group]


def test_what_is_looked_for_is_found_in_all_groups(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    QTest.keyClicks(opened.dialog.search, "disk")
    assert opened.shown() == ["memory_budget_mb", "disk_cap_mb", "disk_floor_mb"]
    opened.dialog.search.setText("FORGET oldest")  # of a choice
    assert opened.shown() == ["context_policy"]
    opened.dialog.search.setText("kv_precision".replace("_", " "))
    assert opened.shown() == ["kv_precision"]
    opened.dialog.search.setText("nonsense")
    assert opened.shown() == []
    opened.dialog.search.clear()
    assert opened.shown() == [one.name for one in SHOWN if one.metadata["group"] is Group.GENERAL]


def test_a_choice_counts_at_once(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    opened.dialog.groups.setCurrentRow(0)
    opened.choose("theme", "dark")
    assert opened.saved[-1].theme == "dark"
    assert QApplication.palette().text().color().lightness() > 150  # light text
    opened.choose("language", "ko")
    QApplication.processEvents()
    assert opened.dialog.windowTitle() == "설정"
    assert opened.dialog.rows["theme"].label.text() == "테마"
    assert opened.combo("theme").currentText() == "어둡게"
    opened.dialog.groups.setCurrentRow(2)
    opened.choose("context_policy", "stop")
    assert opened.settings.context_policy is ContextPolicy.STOP


def test_a_number_counts_once_it_is_typed_and_never_beyond_its_bounds(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    opened.dialog.groups.setCurrentRow(1)
    spin = opened.spin("temperature")
    spin.setFocus()
    spin.selectAll()
    QTest.keyClicks(spin, "1.25")
    assert opened.saved == []  # 1, 1.2 are on the way only
    QTest.keyClick(spin, Qt.Key.Key_Return)
    assert opened.settings.temperature == 1.25
    assert opened.dialog.isVisible()
    spin.selectAll()
    QTest.keyClicks(spin, "abc9")
    commit = QInputMethodEvent()
    commit.setCommitString("가")
    QApplication.sendEvent(spin.lineEdit(), commit)
    QTest.keyClick(spin, Qt.Key.Key_Tab)
    assert opened.settings.temperature <= 5.0
    assert spin.text() == QLocale().toString(opened.settings.temperature, "f", 2)
    whole = opened.spin("top_k")
    whole.setFocus()
    whole.selectAll()
    QTest.keyClicks(whole, "99999")
    opened.dialog.done(0)  # what was typed counts when the dialog goes
    assert opened.settings.top_k <= 1000


def test_the_slider_and_the_number_are_one(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    control = opened.dialog.rows["temperature"].control
    assert isinstance(control, NumberControl)
    assert control.slider is not None
    control.slider.setSliderDown(True)
    control.slider.setSliderPosition(20)
    assert opened.spin("temperature").value() == 1.0
    assert opened.saved == []  # not while it is dragged
    control.slider.setSliderDown(False)
    assert opened.settings.temperature == 1.0
    opened.spin("temperature").setValue(4.0)
    assert control.slider.value() == control.slider.maximum()
    assert opened.settings.temperature == 4.0
    assert control.slider.focusPolicy() == Qt.FocusPolicy.NoFocus  # one stop of the Tab key


def test_a_wheel_over_the_list_changes_nothing(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    opened.dialog.groups.setCurrentRow(1)
    for widget in (opened.combo("weights"), opened.spin("temperature"), opened.spin("max_new_tokens")):
        wheel = QWheelEvent(
            QPointF(5, 5),
            QPointF(5, 5),
            QPoint(),
            QPoint(0, -120),
            Qt.MouseButton.NoButton,
            Qt.KeyboardModifier.NoModifier,
            Qt.ScrollPhase.NoScrollPhase,
            False,
        )
        QApplication.sendEvent(widget, wheel)
    assert opened.saved == []


def test_a_text_counts_when_typing_rests_and_hangul_in_the_making_is_not_lost(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    opened.dialog.groups.setCurrentRow(1)
    control = opened.dialog.rows["system_prompt"].control
    assert isinstance(control, TextControl)
    control.edit.setFocus()
    commit = QInputMethodEvent()
    commit.setCommitString("짧게 ")
    QApplication.sendEvent(control.edit, commit)
    QApplication.sendEvent(control.edit, QInputMethodEvent("답", []))
    assert opened.saved == []
    control.finish()
    assert opened.settings.system_prompt == "짧게 "
    cursor = control.edit.textCursor().position()
    commit = QInputMethodEvent()
    commit.setCommitString("답해")
    QApplication.sendEvent(control.edit, commit)
    opened.dialog.close_button.click()
    assert opened.settings.system_prompt == "짧게 답해"
    assert cursor == 3
    assert len(opened.saved) == 2


def test_what_is_being_typed_stays_whatever_else_changes(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    opened.dialog.groups.setCurrentRow(1)
    control = opened.dialog.rows["system_prompt"].control
    assert isinstance(control, TextControl)
    QTest.keyClicks(control.edit, "half a sen")
    spin = opened.spin("top_k")
    spin.setFocus()
    spin.selectAll()
    QTest.keyClicks(spin, "12")
    opened.preferences.change(last_conversation="x")
    assert control.value() == "half a sen"
    assert spin.text().startswith("12")
    QTest.keyClick(spin, Qt.Key.Key_Return)
    opened.dialog.close_button.click()
    assert (opened.settings.system_prompt, opened.settings.top_k) == ("half a sen", 12)


def test_what_is_being_typed_goes_with_its_group(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    opened.dialog.groups.setCurrentRow(1)
    control = opened.dialog.rows["system_prompt"].control
    assert isinstance(control, TextControl)
    QTest.keyClicks(control.edit, "half a sen")
    opened.dialog.reset_button(Group.REPLIES).click()
    assert control.value() == ""
    opened.dialog.close_button.click()
    assert opened.settings.system_prompt == ""


def test_a_field_goes_back_to_its_default(open_dialog: OpenDialog) -> None:
    opened = open_dialog(Settings(language="en", theme="light", temperature=1.5, top_k=40))
    opened.dialog.groups.setCurrentRow(1)
    row = opened.dialog.rows["temperature"]
    assert row.reset_button.isVisible()
    row.reset_button.click()
    assert opened.settings == Settings(language="en", theme="light", top_k=40)
    assert opened.spin("temperature").value() == 0.7
    assert not row.reset_button.isVisible()
    assert opened.dialog.focusWidget() is opened.spin("temperature")


def test_a_group_goes_back_to_its_defaults_and_others_stay(open_dialog: OpenDialog) -> None:
    before = Settings(
        language="en", theme="dark", temperature=1.5, weights=Weights.BITS_4, disk_cap_mb=999, last_conversation="x"
    )
    opened = open_dialog(before)
    opened.dialog.groups.setCurrentRow(1)
    opened.dialog.reset_button(Group.REPLIES).click()
    assert opened.settings == Settings(language="en", theme="dark", disk_cap_mb=999, last_conversation="x")
    assert [weights for _, weights in opened.session.loads] == [Weights.BITS_16]
    opened.dialog.reset_button(Group.GENERAL).click()
    assert opened.settings == Settings(disk_cap_mb=999, last_conversation="x")


def test_weights_and_model_load_the_model_again_and_say_so(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    opened.dialog.groups.setCurrentRow(1)
    opened.choose("weights", "4bit")
    assert opened.session.loads[-1][1] == Weights.BITS_4
    num_loads = len(opened.session.loads)
    opened.spin("top_k").setValue(50)
    assert len(opened.session.loads) == num_loads
    for name in ("model", "weights"):
        assert "loads the model again" in opened.combo(name).accessibleDescription()
    assert "next start" in opened.spin("scale_percent").accessibleDescription()


def test_the_default_model_by_name_is_the_default_one(open_dialog: OpenDialog) -> None:
    opened = open_dialog(Settings(language="en", model="SmolLM2-135M-Instruct"))
    assert opened.combo("model").currentText() == "SmolLM2-135M-Instruct (default)"
    opened = open_dialog(Settings(language="en", model="somewhere/else"))
    assert opened.combo("model").currentText() == "somewhere/else"


def test_a_change_elsewhere_is_seen(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    opened.preferences.choose_theme("dark")
    assert opened.combo("theme").currentData() == "dark"
    assert len(opened.saved) == 1  # what is shown is not told again


def test_what_was_wrong_in_the_file_is_told_once_and_can_be_sent_away(open_dialog: OpenDialog) -> None:
    problems = (SettingProblem("theme", "pink", ""), SettingProblem("top_k", 10**90, ""))
    opened = open_dialog(loaded=LoadedSettings(Settings(), problems))
    notice = opened.dialog.notice
    assert notice.isVisible()
    assert "Theme (“pink”), Top k (“1000" in notice.words.text()
    assert len(notice.words.text()) < 250
    notice.close_button.click()
    assert not notice.isVisible()
    assert not open_dialog().dialog.notice.isVisible()
    opened = open_dialog(loaded=LoadedSettings(Settings(), damaged=Path("settings.json.damaged")))
    assert "settings.json.damaged" in opened.dialog.notice.words.text()


def test_that_settings_are_not_kept_is_told_and_they_count_nevertheless(open_dialog: OpenDialog) -> None:
    opened = open_dialog(fails=True)
    opened.choose("theme", "dark")
    assert opened.settings.theme == "dark"
    assert opened.dialog.notice.isVisible()
    assert "settings.json" in opened.dialog.notice.words.text()


def test_settings_and_presets_go_out_and_come_in(open_dialog: OpenDialog, tmp_path: Path) -> None:
    path = str(tmp_path / "out.json")
    first = open_dialog(Settings(language="en", theme="dark", top_k=40, last_conversation="x"))
    first.presets.save(Preset("Poet", options=ChatOptions(temperature=1.2)))
    first.dialog.files.export_to(path)
    assert path in first.dialog.notice.words.text()
    first.presets.delete("Poet")
    second = open_dialog(Settings(language="en", last_conversation="y"))
    second.dialog.files.import_from(path)
    assert second.settings == Settings(language="en", theme="dark", top_k=40, last_conversation="y")
    assert [preset.name for preset in second.presets.own()] == ["Poet"]
    assert second.combo("theme").currentData() == "dark"
    assert "1 presets were taken over" in second.dialog.notice.words.text()


def test_an_import_names_what_it_left_out(open_dialog: OpenDialog, tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    stored = {"format": "ember-settings", "version": 1, "settings": {"theme": "pink", "top_k": 3, "model": "gone"}}
    path.write_text(json.dumps(stored), encoding="utf-8")
    opened = open_dialog()
    opened.dialog.files.import_from(str(path))
    assert opened.settings == Settings(language="en", theme="light", top_k=3)
    assert "Theme (“pink”), Model (“gone”)" in opened.dialog.notice.words.text()


def test_a_file_of_something_else_changes_nothing_and_says_so(open_dialog: OpenDialog, tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text("[]", encoding="utf-8")
    opened = open_dialog()
    opened.dialog.files.import_from(str(path))
    assert "holds no settings of Ember" in opened.dialog.notice.words.text()
    opened.dialog.files.import_from(str(tmp_path / "none.json"))
    assert "choose another place" in opened.dialog.notice.words.text()
    assert opened.saved == []


def test_presets_that_cannot_be_kept_leave_the_settings_too(
    open_dialog: OpenDialog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.json"
    stored = {"format": "ember-settings", "version": 1, "settings": {"top_k": 3}, "presets": [{"name": "Poet"}]}
    path.write_text(json.dumps(stored), encoding="utf-8")
    opened = open_dialog()
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    opened.dialog.files.import_from(str(path))
    assert opened.saved == []
    assert "No space is left" in opened.dialog.notice.words.text()


def test_files_are_asked_for_without_stopping_the_window(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    for button in (opened.dialog.import_button, opened.dialog.export_button):
        button.click()
        (asking,) = [one for one in opened.dialog.findChildren(QFileDialog) if one.isVisible()]
        asking.reject()
        QApplication.processEvents()
    assert opened.saved == []


def test_escape_closes_it(open_dialog: OpenDialog) -> None:
    opened = open_dialog()
    QTest.keyClick(opened.dialog, Qt.Key.Key_Escape)
    assert not opened.dialog.isVisible()


def test_settings_of_the_dialog_are_those_of_the_file(open_dialog: OpenDialog, data_dir: Path) -> None:
    opened = open_dialog()
    opened.choose("send_with", "ctrl+enter")
    save_settings(data_dir / "settings.json", opened.saved[-1])
    assert load_settings(data_dir / "settings.json") == opened.settings
