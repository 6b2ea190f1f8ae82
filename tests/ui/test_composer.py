"""The input method's events as platforms send them: preedit, commit, a commit that comes late, or none at all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from PySide6.QtCore import QMimeData, Qt
from PySide6.QtGui import QInputMethodEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.conversation import Attachment, Draft
from tests.ui.conftest import Desk, OpenDesk
from ui.composer.composer import Composer
from ui.composer.composer_edit import ComposerEdit
from ui.tokens import LINE_HEIGHT_PX


@pytest.fixture
def composer(qtbot: QtBot) -> Composer:
    result = Composer()
    qtbot.addWidget(result)
    result.resize(700, 200)
    result.show()
    return result


@pytest.fixture
def sent(composer: Composer) -> list[str]:
    texts: list[str] = []

    def on_send(draft: Draft) -> None:
        texts.append(draft.text)
        composer.show_draft(Draft())

    composer.send_requested.connect(on_send)
    return texts


def compose(edit: ComposerEdit, preedit: str) -> None:
    QApplication.sendEvent(edit, QInputMethodEvent(preedit, []))


def commit(edit: ComposerEdit, text: str) -> None:
    event = QInputMethodEvent("", [])
    event.setCommitString(text)
    QApplication.sendEvent(edit, event)


def test_enter_while_composing_commits_once_and_sends_once(composer: Composer, sent: list[str]) -> None:
    compose(composer.edit, "안녕")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["안녕"]
    assert composer.edit.toPlainText() == ""
    assert not composer.edit.is_composing


def test_a_commit_that_comes_after_the_send_is_dropped(composer: Composer, sent: list[str]) -> None:
    compose(composer.edit, "안녕")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    commit(composer.edit, "안녕")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["안녕"]
    assert composer.edit.toPlainText() == ""


def test_the_same_syllable_may_be_written_again_after_a_send(composer: Composer, sent: list[str]) -> None:
    compose(composer.edit, "요")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    compose(composer.edit, "ㅇ")
    compose(composer.edit, "요")
    commit(composer.edit, "요")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["요", "요"]


def test_an_input_method_that_commits_before_it_passes_enter_on(composer: Composer, sent: list[str]) -> None:
    composer.edit.setPlainText("네, ")
    composer.edit.moveCursor(composer.edit.textCursor().MoveOperation.End)
    compose(composer.edit, "안녕")
    commit(composer.edit, "안녕")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["네, 안녕"]


def test_a_click_on_send_takes_the_syllable_being_composed(composer: Composer, sent: list[str]) -> None:
    composer.edit.setFocus()
    composer.edit.insertPlainText("감사합니")
    compose(composer.edit, "다")
    assert composer.button.isEnabled()
    QTest.mouseClick(composer.button, Qt.MouseButton.LeftButton)
    assert sent == ["감사합니다"]
    commit(composer.edit, "다")
    assert composer.edit.toPlainText() == ""


def test_send_is_possible_when_only_a_preedit_is_there(composer: Composer, sent: list[str]) -> None:
    assert not composer.button.isEnabled()
    compose(composer.edit, "예")
    assert composer.button.isEnabled()
    composer.button.click()
    assert sent == ["예"]


def test_a_preedit_belongs_to_the_chat_it_was_written_in(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("first", "second")))
    desk.window.controller.open(ids[0])
    edit = desk.window.page.composer.edit
    edit.insertPlainText("초안 ")
    compose(edit, "하")
    desk.window.controller.open(ids[1])
    commit(edit, "하")  # the input method tells late
    assert edit.toPlainText() == ""
    assert desk.store.conversation(ids[0]).draft.text == "초안 하"
    desk.window.controller.open(ids[0])
    assert edit.toPlainText() == "초안 하"


def test_the_meter_does_not_disturb_composing(desk: Desk) -> None:
    request = desk.send("first")
    desk.engine.begin(request, "a")
    edit = desk.window.page.composer.edit
    edit.setFocus()
    compose(edit, "한")
    for _ in range(20):
        desk.engine.tell(desk.engine.statistics(request, 100.0))
        desk.engine.text(request, "word ")
    desk.settle()
    desk.engine.finish(request, "a" + "word " * 20)
    desk.settle()
    assert edit.is_composing
    compose(edit, "한글")
    commit(edit, "한글")
    assert edit.toPlainText() == "한글"


@pytest.mark.parametrize(
    ("send_with", "modifiers", "is_sent"),
    [
        ("enter", Qt.KeyboardModifier.NoModifier, True),
        ("enter", Qt.KeyboardModifier.ShiftModifier, False),
        ("enter", Qt.KeyboardModifier.ControlModifier, True),
        ("ctrl+enter", Qt.KeyboardModifier.NoModifier, False),
        ("ctrl+enter", Qt.KeyboardModifier.ControlModifier, True),
        ("ctrl+enter", Qt.KeyboardModifier.ShiftModifier, False),
    ],
)
def test_which_key_sends_is_a_setting_and_shift_enter_always_breaks(
    composer: Composer, sent: list[str], send_with: str, modifiers: Qt.KeyboardModifier, is_sent: bool
) -> None:
    composer.set_send_key(send_with)
    composer.edit.insertPlainText("one")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return, modifiers)
    assert sent == (["one"] if is_sent else [])
    assert composer.edit.toPlainText() == ("" if is_sent else "one\n")
    assert ("Ctrl+Enter" in composer.hint.text()) == (send_with == "ctrl+enter")


def test_the_field_grows_to_eight_lines_and_then_scrolls(composer: Composer) -> None:
    composer.edit.setPlainText("one\ntwo\nthree\nfour")
    four = composer.edit.height()
    composer.edit.setPlainText("\n".join(str(number) for number in range(40)))
    assert four < composer.edit.height() == 8 * LINE_HEIGHT_PX
    assert composer.edit.verticalScrollBarPolicy() == Qt.ScrollBarPolicy.ScrollBarAsNeeded


def test_lines_stand_as_far_apart_as_the_design_says(composer: Composer) -> None:
    def height_of(num_lines: int) -> float:
        composer.edit.setPlainText("\n".join("x" * num_lines))
        return composer.edit.document().size().height()

    assert height_of(6) - height_of(5) == pytest.approx(LINE_HEIGHT_PX, abs=1)  # fonts round
    QTest.keyClick(composer.edit, Qt.Key.Key_End, Qt.KeyboardModifier.ControlModifier)
    before = composer.edit.document().size().height()
    composer.edit.insertPlainText("\ntyped")
    assert composer.edit.document().size().height() - before == pytest.approx(LINE_HEIGHT_PX, abs=1)


def test_up_in_an_empty_field_asks_for_the_last_message(composer: Composer) -> None:
    asked: list[bool] = []
    composer.edit_last_requested.connect(lambda: asked.append(True))
    QTest.keyClick(composer.edit, Qt.Key.Key_Up)
    assert len(asked) == 1
    QTest.keyClick(composer.edit, Qt.Key.Key_Up, Qt.KeyboardModifier.ShiftModifier)
    composer.set_busy(True)
    QTest.keyClick(composer.edit, Qt.Key.Key_Up)
    composer.set_busy(False)
    compose(composer.edit, "하")
    QTest.keyClick(composer.edit, Qt.Key.Key_Up)
    commit(composer.edit, "하")
    QTest.keyClick(composer.edit, Qt.Key.Key_Up)
    composer.show_draft(Draft("", (Attachment("notes.txt", "notes", 5),)))
    QTest.keyClick(composer.edit, Qt.Key.Key_Up)
    assert len(asked) == 1


def test_undo_and_redo(composer: Composer) -> None:
    QTest.keyClicks(composer.edit, "word")
    QTest.keyClick(composer.edit, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert composer.edit.toPlainText() == ""
    QTest.keyClick(composer.edit, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    assert composer.edit.toPlainText() == "word"
    composer.show_draft(Draft("another draft"))
    QTest.keyClick(composer.edit, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert composer.edit.toPlainText() == "another draft"


def test_a_draft_as_long_as_a_book_is_shown_as_a_file(composer: Composer) -> None:
    """The command line keeps what did not fit as the draft."""
    text = "a line\n" * 100_000
    composer.show_draft(Draft(text), owner="chat")
    assert composer.edit.toPlainText() == ""
    assert [(one.name, one.text) for one in composer.take_draft().attachments] == [("Pasted text", text)]


def test_every_part_has_a_name_a_description_and_a_place_in_the_tab_order(composer: Composer) -> None:
    composer.show_draft(Draft("text", (Attachment("notes.txt", "notes", 5),)))
    parts = [composer.files.chips[0].remove_button, composer.edit, composer.attach_button, composer.button]
    assert [part.accessibleName() for part in parts] == [
        "Remove notes.txt",
        "Message",
        "Attach files",
        "Send the message",
    ]
    assert composer.edit.accessibleDescription() == "Enter sends, Shift+Enter starts a new line"
    composer.activateWindow()
    parts[0].setFocus()
    for before, after in pairwise(parts):
        QTest.keyClick(before, Qt.Key.Key_Tab)
        assert after.hasFocus()


def test_pasted_markup_is_text(composer: Composer) -> None:
    data = QMimeData()
    data.setHtml("<b>bold</b>")
    data.setText("<b>bold</b>")
    composer.edit.insertFromMimeData(data)
    assert composer.edit.toPlainText() == "<b>bold</b>"


def test_enter_does_nothing_while_a_reply_runs(composer: Composer, sent: list[str]) -> None:
    stops: list[bool] = []
    composer.stop_requested.connect(lambda: stops.append(True))
    composer.set_busy(True)
    composer.edit.insertPlainText("next")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert (sent, stops) == ([], [])
    assert composer.edit.toPlainText() == "next"


def test_a_draft_is_kept_for_each_chat_and_through_a_restart(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.append(desk.add_conversation("chat")))
    edit = desk.window.page.composer.edit
    edit.setPlainText("for a new chat")
    desk.window.controller.open(ids[0])
    assert edit.toPlainText() == ""
    edit.setPlainText("for this chat")
    desk.qtbot.waitUntil(lambda: desk.store.conversation(ids[0]).draft.text == "for this chat")
    desk.window.controller.open(None)
    assert edit.toPlainText() == "for a new chat"
    desk.window.close()
    drafts = {conversation.draft.text for conversation in desk.store.conversations()}
    assert drafts == {"for this chat", "for a new chat"}
    last = desk.saved[-1].last_conversation
    assert desk.store.conversation(last).draft.text == "for a new chat"


def test_in_a_low_window_it_grows_less(desk: Desk) -> None:
    composer = desk.window.page.composer
    composer.edit.setPlainText("\n".join(str(number) for number in range(40)))
    composer.show_draft(
        Draft(composer.edit.toPlainText(), tuple(Attachment(f"file {n}", str(n), 5) for n in range(20)))
    )
    desk.settle()
    high = composer.edit.height() + composer.files.height()
    desk.window.resize(900, 440)
    desk.settle()
    assert composer.edit.height() + composer.files.height() < high - 100
    assert composer.edit.height() >= 3 * LINE_HEIGHT_PX
    desk.window.resize(900, 800)
    desk.settle()
    assert composer.edit.height() == 8 * LINE_HEIGHT_PX


def test_what_was_told_while_a_reply_ran_goes_with_it(composer: Composer) -> None:
    composer.edit.setPlainText("and then?")
    composer.set_busy(True)
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert composer.hint.text() == "This chat is still answering: wait, or stop it with Esc"
    composer.set_busy(False)
    assert "still answering" not in composer.hint.text()
