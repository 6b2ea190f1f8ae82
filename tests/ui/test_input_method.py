"""Composed input in the whole window, by the events that input methods send: nothing is doubled, lost or sent twice.

A platform tells a preedit (what is being composed) and then commits it; asked to commit, some do at once, some late,
some never. The offscreen platform is one of the last kind.
"""

from __future__ import annotations

import pytest
from PySide6.QtCore import QElapsedTimer, Qt, QTimer
from PySide6.QtGui import QColor, QInputMethodEvent, QTextCharFormat
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog

from app.settings import Settings
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import model_info
from ui.composer.composer_edit import ComposerEdit

SEND_KEYS = ["Enter", "Send"]


def field(desk: Desk) -> ComposerEdit:
    edit = desk.window.page.composer.edit
    edit.setFocus()
    return edit


def compose(edit: ComposerEdit, *preedits: str, cursor: int | None = None) -> None:
    """Each preedit replaces the one before."""
    for preedit in preedits:
        place = len(preedit) if cursor is None else cursor
        kind = QInputMethodEvent.AttributeType.Cursor
        attributes = [QInputMethodEvent.Attribute(kind, place, 1, None)]
        QApplication.sendEvent(edit, QInputMethodEvent(preedit, attributes))


def commit(edit: ComposerEdit, text: str, replace_from: int = 0, num_replaced: int = 0) -> None:
    event = QInputMethodEvent("", [])
    event.setCommitString(text, replace_from, num_replaced)
    QApplication.sendEvent(edit, event)


def write(edit: ComposerEdit, *syllables: tuple[str, ...]) -> None:
    """As a Hangul input method does: the letters of a syllable come one by one, then it is committed."""
    for steps in syllables:
        compose(edit, *steps)
        commit(edit, steps[-1])


def preedit_of(edit: ComposerEdit) -> str:
    return edit.textCursor().block().layout().preeditAreaText()


def shown(edit: ComposerEdit) -> str:
    """What one sees in the line of the cursor."""
    cursor, text = edit.textCursor(), edit.textCursor().block().text()
    at = cursor.positionInBlock()
    return text[:at] + preedit_of(edit) + text[at:]


def send(desk: Desk, how: str) -> None:
    composer = desk.window.page.composer
    if how == "Enter":
        QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    else:
        QTest.mouseClick(composer.button, Qt.MouseButton.LeftButton)
    desk.settle()


def sent(desk: Desk) -> list[str]:
    return [request.messages[-1].text for request in desk.engine.generates]


# syllables


def test_the_two_syllables_of_annyeong(desk: Desk) -> None:
    edit = field(desk)
    write(edit, ("ㅇ", "아", "안"))
    compose(edit, "ㄴ", "녀", "녕")
    assert shown(edit) == "안녕"
    commit(edit, "녕")
    assert edit.toPlainText() == "안녕"


def test_the_double_consonant_of_jjuk(desk: Desk) -> None:
    edit = field(desk)
    compose(edit, "ㅉ", "쭈")
    assert shown(edit) == "쭈"
    compose(edit, "쭉")
    assert (edit.toPlainText(), shown(edit)) == ("", "쭉")
    commit(edit, "쭉")
    assert edit.toPlainText() == "쭉"


def test_a_final_consonant_that_moves_to_the_next_syllable(desk: Desk) -> None:
    """각 + ㅏ is 가가: one event commits the first and composes the second."""
    edit = field(desk)
    compose(edit, "ㄱ", "가", "각")
    event = QInputMethodEvent("가", [])
    event.setCommitString("가")
    QApplication.sendEvent(edit, event)
    assert (edit.toPlainText(), shown(edit)) == ("가", "가가")
    commit(edit, "가")
    assert edit.toPlainText() == "가가"


def test_a_syllable_in_the_middle_of_a_text(desk: Desk) -> None:
    edit = field(desk)
    edit.insertPlainText("나는 간다")
    edit.moveCursor(edit.textCursor().MoveOperation.StartOfLine)
    QTest.keyClick(edit, Qt.Key.Key_Right)
    compose(edit, "ㄷ", "도")
    assert shown(edit) == "나도는 간다"
    commit(edit, "도")
    assert edit.toPlainText() == "나도는 간다"
    assert edit.textCursor().position() == 2


def test_a_preedit_taken_back_leaves_nothing(desk: Desk) -> None:
    edit = field(desk)
    compose(edit, "ㅎ", "하", "ㅎ", "")
    assert (edit.toPlainText(), preedit_of(edit)) == ("", "")
    assert not edit.is_composing
    assert not desk.window.page.composer.button.isEnabled()


# sending


@pytest.mark.parametrize("how", SEND_KEYS)
def test_what_is_being_composed_is_sent_once(desk: Desk, how: str) -> None:
    edit = field(desk)
    write(edit, ("ㄱ", "그"), ("ㄹ", "러"))
    compose(edit, "ㅇ", "요")
    send(desk, how)
    assert sent(desk) == ["그러요"]
    assert (edit.toPlainText(), preedit_of(edit)) == ("", "")


@pytest.mark.parametrize("how", SEND_KEYS)
def test_a_platform_that_commits_late(desk: Desk, how: str) -> None:
    edit = field(desk)
    compose(edit, "ㅇ", "요")
    send(desk, how)
    commit(edit, "요")
    assert (sent(desk), edit.toPlainText()) == (["요"], "")


@pytest.mark.parametrize("how", SEND_KEYS)
def test_a_platform_that_commits_when_asked(desk: Desk, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit = field(desk)
    compose(edit, "ㅇ", "요")

    class Prompt:
        def commit(self) -> None:
            commit(edit, "요")

        def reset(self) -> None:
            raise AssertionError("nothing is left to be reset")

    monkeypatch.setattr("ui.composer.composer_edit.QGuiApplication.inputMethod", Prompt)
    send(desk, how)
    assert (sent(desk), edit.toPlainText()) == (["요"], "")


def test_a_platform_that_commits_before_it_passes_the_key_on(desk: Desk) -> None:
    edit = field(desk)
    compose(edit, "ㅇ", "요")
    commit(edit, "요")
    send(desk, "Enter")
    assert (sent(desk), edit.toPlainText()) == (["요"], "")


@pytest.mark.parametrize("how", SEND_KEYS)
def test_a_double_press_sends_once(desk: Desk, how: str) -> None:
    edit = field(desk)
    compose(edit, "ㅇ", "요")
    send(desk, how)
    if how == "Enter":
        send(desk, how)
    QTest.keyPress(edit, Qt.Key.Key_Return)
    assert sent(desk) == ["요"]
    assert desk.window.page.composer.is_busy
    assert desk.engine.cancelled == []


def test_the_same_syllable_again_after_a_send_is_another_one(desk: Desk) -> None:
    edit = field(desk)
    compose(edit, "ㄴ", "네")
    send(desk, "Enter")
    desk.engine.finish(desk.engine.generates[-1], "응")
    desk.settle()
    write(edit, ("ㄴ", "네"))
    send(desk, "Enter")
    assert sent(desk) == ["네", "네"]


def test_a_late_commit_is_not_awaited_for_ever(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input method that writes the same syllable without composing it, some seconds later."""
    now = [100.0]
    monkeypatch.setattr("ui.composer.composer_edit.time.monotonic", lambda: now[0])
    edit = field(desk)
    compose(edit, "ㄴ", "네")
    send(desk, "Enter")
    now[0] += 3
    commit(edit, "네")
    assert edit.toPlainText() == "네"


@pytest.mark.parametrize("send_with", ["enter", "ctrl+enter"])
def test_shift_enter_breaks_the_line_after_the_syllable(open_desk: OpenDesk, send_with: str) -> None:
    desk = open_desk(Settings(language="ko", theme="light", send_with=send_with))
    edit = field(desk)
    compose(edit, "ㄴ", "네")
    QTest.keyClick(edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    compose(edit, "ㅇ", "요")
    assert (edit.toPlainText(), shown(edit)) == ("네\n", "요")
    QTest.keyClick(edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    desk.settle()
    assert sent(desk) == ["네\n요"]


# what goes on around it


@pytest.mark.parametrize("tells", ["late", "never"])
def test_a_preedit_stays_in_the_chat_it_was_written_in(open_desk: OpenDesk, tells: str) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("one", "two")))
    desk.window.controller.open(ids[0])
    edit = field(desk)
    edit.insertPlainText("초안 ")
    compose(edit, "ㅎ", "하")
    desk.window.controller.open(ids[1])
    if tells == "late":
        commit(edit, "하")
    assert (edit.toPlainText(), preedit_of(edit)) == ("", "")
    assert desk.store.conversation(ids[0]).draft.text == "초안 하"
    assert desk.store.conversation(ids[1]).draft.text == ""
    compose(edit, "ㅎ", "하")
    commit(edit, "하")
    assert edit.toPlainText() == "하"
    desk.window.controller.open(ids[0])
    assert edit.toPlainText() == "초안 하"


def test_a_new_chat_by_key_keeps_what_was_being_composed(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.append(desk.add_conversation("one")))
    desk.window.controller.open(ids[0])
    edit = field(desk)
    compose(edit, "ㅎ", "하")
    QTest.keyClick(edit, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert desk.window.controller.current is None
    assert (edit.toPlainText(), preedit_of(edit)) == ("", "")
    assert desk.store.conversation(ids[0]).draft.text == "하"


def test_two_seconds_of_the_meter_at_full_rate(desk: Desk) -> None:
    """A reply runs, the meter and the text are told all the while, and a person goes on writing."""
    request = desk.send("first")
    desk.engine.begin(request, "a")
    edit = field(desk)
    edit.insertPlainText("앞 뒤")
    QTest.keyClick(edit, Qt.Key.Key_Left)
    compose(edit, "ㅎ", "하", "한")
    told = [0]

    def tell() -> None:
        told[0] += 1
        desk.engine.tell(desk.engine.statistics(request, 100.0 + told[0]))
        desk.engine.text(request, "word ")

    bell, clock = QTimer(interval=5), QElapsedTimer()
    bell.timeout.connect(tell)
    bell.start()
    clock.start()
    seen: set[tuple[str, str, int]] = set()

    def is_over() -> bool:
        seen.add((shown(edit), preedit_of(edit), edit.textCursor().position()))
        return clock.elapsed() > 2000

    desk.qtbot.waitUntil(is_over, timeout=10_000)
    bell.stop()
    assert told[0] > 50
    assert seen == {("앞 한뒤", "한", 2)}
    assert edit.hasFocus()
    desk.engine.finish(request, "a" + "word " * told[0])
    desk.settle()
    compose(edit, "한글")
    commit(edit, "한글")
    assert edit.toPlainText() == "앞 한글뒤"


def test_a_model_that_loads_or_fails(desk: Desk) -> None:
    edit = field(desk)
    compose(edit, "ㅎ", "하")
    request_id = desk.session.load_model(model_info().path, model_info().weights)
    desk.window.preferences.load_requested.emit(request_id)
    desk.engine.load(request_id, model_info("Another"))
    desk.settle()
    assert (shown(edit), edit.toPlainText()) == ("하", "")
    compose(edit, "한")
    commit(edit, "한")
    assert edit.toPlainText() == "한"


def test_another_theme_and_another_language(desk: Desk) -> None:
    edit = field(desk)
    edit.insertPlainText("앞 ")
    compose(edit, "ㅎ", "하")
    desk.window.preferences.choose_theme("dark")
    desk.window.preferences.choose_language("ko")
    desk.settle()
    assert edit.placeholderText() == "메시지를 입력하세요"
    assert (shown(edit), edit.toPlainText()) == ("앞 하", "앞 ")
    desk.window.preferences.choose_theme("light")
    desk.window.preferences.choose_language("en")
    desk.settle()
    commit(edit, "한")
    assert edit.toPlainText() == "앞 한"


def test_escape_ends_composing_and_not_the_reply(desk: Desk) -> None:
    request = desk.send("first")
    desk.engine.begin(request, "a")
    desk.settle()
    edit = field(desk)
    compose(edit, "ㅎ", "하")
    QTest.keyClick(edit, Qt.Key.Key_Escape)
    assert desk.engine.cancelled == []
    assert (edit.toPlainText(), preedit_of(edit)) == ("하", "")
    QTest.keyClick(edit, Qt.Key.Key_Escape)
    assert desk.engine.cancelled == [request.request_id]


def test_attaching_a_file(desk: Desk) -> None:
    edit = field(desk)
    compose(edit, "ㅎ", "하")
    desk.window.page.composer.attach_button.click()
    dialog = desk.window.page.composer.findChild(QFileDialog)
    assert dialog is not None
    dialog.close()
    desk.settle()
    commit(edit, "하")
    assert edit.toPlainText() == "하"


def test_closing_the_window_keeps_the_syllable(desk: Desk) -> None:
    edit = field(desk)
    edit.insertPlainText("안")
    compose(edit, "ㄴ", "녕")
    desk.window.close()
    assert [one.draft.text for one in desk.store.conversations()] == ["안녕"]


def test_a_reply_that_ends_and_one_that_fails(desk: Desk) -> None:
    for end in ("finish", "fail"):
        request = desk.send("ask")
        desk.engine.begin(request)
        desk.settle()
        edit = field(desk)
        compose(edit, "ㅎ", "하")
        if end == "finish":
            desk.engine.finish(request, "ok")
            desk.settle()
            assert (shown(edit), edit.toPlainText()) == ("하", "")
            commit(edit, "하")
            assert edit.toPlainText() == "하"
            edit.clear()
        else:  # the message comes back into the field, before what was being written
            desk.engine.fail(request, "out_of_memory", "Memory ran out.")
            desk.settle()
            commit(edit, "하")
            assert edit.toPlainText().endswith("하")
            assert edit.toPlainText().count("하") == 1


def test_undo_reaches_no_text_of_another_chat(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("one", "two")))
    desk.window.controller.open(ids[0])
    edit = field(desk)
    write(edit, ("ㄴ", "네"))
    edit.insertPlainText(" more")
    QTest.keyClick(edit, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert edit.toPlainText() != "네 more"
    desk.window.controller.open(ids[1])
    for _ in range(5):
        QTest.keyClick(edit, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert edit.toPlainText() == ""


# other input methods


def test_japanese_clauses_are_converted_and_committed_once(desk: Desk) -> None:
    edit = field(desk)
    compose(edit, "k", "きょ", "きょう", "きょうは", "きょうはいい", "きょうはいいてんき")
    marked = QTextCharFormat()
    marked.setBackground(QColor("#FCEBDD"))
    clauses = [
        QInputMethodEvent.Attribute(QInputMethodEvent.AttributeType.TextFormat, 0, 3, marked),
        QInputMethodEvent.Attribute(QInputMethodEvent.AttributeType.TextFormat, 3, 4, QTextCharFormat()),
        QInputMethodEvent.Attribute(QInputMethodEvent.AttributeType.Cursor, 3, 0, None),
    ]
    QApplication.sendEvent(edit, QInputMethodEvent("今日はいい天気", clauses))
    desk.settle()
    assert (shown(edit), edit.toPlainText()) == ("今日はいい天気", "")
    event = QInputMethodEvent("です", [])  # the first clauses are committed while the next is composed
    event.setCommitString("今日はいい天気")
    QApplication.sendEvent(edit, event)
    assert shown(edit) == "今日はいい天気です"
    send(desk, "Enter")
    assert sent(desk) == ["今日はいい天気です"]


def test_a_commit_that_replaces_what_is_there(desk: Desk) -> None:
    """Reconversion, and the accents that a held key offers."""
    edit = field(desk)
    edit.insertPlainText("cafe")
    commit(edit, "é", -1, 1)
    assert edit.toPlainText() == "café"


@pytest.mark.parametrize("emoji", ["🙂", "👩‍👩‍👧", "🇰🇷"])
def test_emoji_come_whole_and_without_a_preedit(desk: Desk, emoji: str) -> None:
    edit = field(desk)
    write(edit, ("ㄴ", "네"))
    commit(edit, emoji)
    commit(edit, emoji)  # twice means twice
    send(desk, "Enter")
    assert sent(desk) == [f"네{emoji}{emoji}"]


def test_dead_keys(desk: Desk) -> None:
    edit = field(desk)
    edit.insertPlainText("caf")
    compose(edit, "´")
    assert shown(edit) == "caf´"
    commit(edit, "é")
    QTest.keyClicks(edit, "s")
    assert edit.toPlainText() == "cafés"


def test_losing_the_focus_does_not_double_what_the_platform_commits(desk: Desk) -> None:
    edit = field(desk)
    compose(edit, "ㅎ", "하")
    desk.window.sidebar.filter.setFocus()
    commit(edit, "하")
    field(desk)
    assert (edit.toPlainText(), preedit_of(edit)) == ("하", "")
