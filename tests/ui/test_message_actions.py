"""What can be done with one message, by the mouse and by keys alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QContextMenuEvent, QEnterEvent, QGuiApplication, QInputMethodEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.conversation import Attachment, Message, MessageState
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason
from tests.ui.fakes import turn_statistics
from ui.theme import Theme
from ui.transcript.attachment_dialog import AttachmentDialog
from ui.transcript.flow_text import FlowText
from ui.transcript.message_actions import Action, name, possible, words
from ui.transcript.message_widget import MessageWidget
from ui.transcript.messages import UserMessage
from ui.transcript.transcript import Transcript

INCOGNITO = 2**48 + 3
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Asked:
    """Hears what the transcript asks for."""

    def __init__(self, transcript: Transcript) -> None:
        self.heard: list[tuple[object, ...]] = []
        transcript.edit_requested.connect(lambda *args: self.heard.append(("edit", *args)))
        transcript.regenerate_requested.connect(lambda *args: self.heard.append(("regenerate", *args)))
        transcript.continue_requested.connect(lambda *args: self.heard.append(("continue", *args)))
        transcript.version_requested.connect(lambda *args: self.heard.append(("version", *args)))
        transcript.fork_requested.connect(lambda *args: self.heard.append(("fork", *args)))
        transcript.delete_requested.connect(lambda *args: self.heard.append(("delete", *args)))
        transcript.focus_left.connect(lambda: self.heard.append(("focus left",)))

    def take(self) -> list[tuple[object, ...]]:
        result, self.heard = self.heard, []
        return result


def chat() -> list[Message]:
    return [
        Message(1, "c", Role.USER, "What is Jeju?", NOW),
        Message(2, "c", Role.ASSISTANT, "An **island**.", NOW, statistics=turn_statistics(), version=2, num_versions=3),
        Message(3, "c", Role.USER, "More.", NOW, version=1, num_versions=2),
        Message(
            4, "c", Role.ASSISTANT, "It has **caves**", NOW, finish_reason=FinishReason.CANCELLED,
            statistics=turn_statistics(),
        ),
    ]  # fmt: skip


def many(count: int) -> list[Message]:
    roles = (Role.USER, Role.ASSISTANT)
    return [Message(n + 1, "c", roles[n % 2], f"text {n}\n" * 9, NOW) for n in range(count)]


@pytest.fixture
def transcript(qtbot: QtBot, theme: Theme) -> Transcript:
    result = Transcript(theme)
    qtbot.addWidget(result)
    result.resize(800, 600)
    result.show()
    qtbot.waitExposed(result)
    result.activateWindow()
    result.show_messages(chat(), None, None)
    return result


@pytest.fixture
def asked(transcript: Transcript) -> Asked:
    return Asked(transcript)


def widget_of(transcript: Transcript, message_id: int) -> MessageWidget:
    return next(widget for widget in transcript.built() if widget.message.id == message_id)


def point_at(widget: QWidget) -> None:
    at = QPointF(widget.rect().center())
    QApplication.sendEvent(widget, QEnterEvent(at, at, at))


def point_away(widget: QWidget) -> None:
    QApplication.sendEvent(widget, QEvent(QEvent.Type.Leave))


def press(key: Qt.Key, modifiers: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    widget = QApplication.focusWidget()
    assert widget is not None
    QTest.keyClick(widget, key, modifiers)


def shown_names(widget: MessageWidget) -> list[str]:
    buttons = widget.toolbar.findChildren(QPushButton)
    return sorted(button.accessibleName() for button in buttons if button.isVisible())


def clipboard() -> str:
    return QGuiApplication.clipboard().text()


# the toolbar


def test_buttons_come_and_go_with_the_pointer_and_nothing_else_moves(transcript: Transcript) -> None:
    places = [(widget.geometry(), widget.children()[0]) for widget in transcript.built()]
    user, reply = widget_of(transcript, 1), widget_of(transcript, 4)
    assert shown_names(user) == []
    point_at(user)
    assert shown_names(user) == ["Copy your message", "Edit your message", "More actions"]
    point_away(user)
    point_at(reply)
    assert shown_names(user) == []
    assert shown_names(reply) == [
        "Ask again for this reply",
        "Continue reply",
        "Copy reply",
        "Edit reply",
        "More actions",
    ]
    point_away(reply)
    assert shown_names(reply) == []
    assert [widget.geometry() for widget in transcript.built()] == [place for place, _ in places]


def test_the_buttons_lie_in_the_row_of_the_statistics(transcript: Transcript) -> None:
    reply = widget_of(transcript, 4)
    point_at(reply)
    bar, line = reply.toolbar.geometry(), reply.statistics.geometry()
    assert bar.right() == reply.width() - 1
    assert line.right() < bar.left()
    assert (line.top(), line.height()) == (bar.top(), bar.height())


def test_the_arrows_between_versions_are_always_there(transcript: Transcript, asked: Asked) -> None:
    reply, user = widget_of(transcript, 2), widget_of(transcript, 3)
    assert shown_names(reply) == ["Earlier version of this reply", "Later version of this reply"]
    assert reply.toolbar.version.text() == "2 / 3"
    assert reply.toolbar.version.accessibleName() == "Version 2 of 3"
    reply.toolbar.buttons[Action.EARLIER].click()
    reply.toolbar.buttons[Action.LATER].click()
    assert asked.take() == [("version", 2, -1), ("version", 2, 1)]
    assert not user.toolbar.buttons[Action.EARLIER].isEnabled()
    user.toolbar.buttons[Action.LATER].click()
    assert asked.take() == [("version", 3, 1)]


def test_every_button_asks_for_what_it_says(transcript: Transcript, asked: Asked) -> None:
    reply = widget_of(transcript, 4)
    point_at(reply)
    for action in (Action.REGENERATE, Action.CONTINUE):
        reply.toolbar.buttons[action].click()
    assert asked.take() == [("regenerate", 4), ("continue", 4)]
    reply.toolbar.buttons[Action.COPY].click()
    assert clipboard() == "It has **caves**"
    assert reply.toolbar.buttons[Action.COPY].text() == "Copied"


def test_only_the_last_reply_goes_on_and_only_if_it_was_cut(transcript: Transcript) -> None:
    assert Action.CONTINUE in widget_of(transcript, 4).possible()
    earlier = [replace(message, finish_reason=FinishReason.LENGTH) for message in chat()]
    transcript.update_messages(earlier, None, None)
    assert Action.CONTINUE not in widget_of(transcript, 2).possible()
    assert Action.CONTINUE in widget_of(transcript, 4).possible()
    whole = [replace(message, finish_reason=FinishReason.STOP) for message in chat()]
    transcript.update_messages(whole, None, None)
    assert Action.CONTINUE not in widget_of(transcript, 4).possible()


def test_while_the_chat_is_busy_one_can_only_copy_or_begin_another_chat(transcript: Transcript, asked: Asked) -> None:
    transcript.set_quiet(False)
    copies = {Action.COPY, Action.COPY_TEXT, Action.COPY_MARKDOWN}
    for widget in transcript.built():
        assert widget.possible() == copies | {Action.FORK}
    reply = widget_of(transcript, 2)
    reply.toolbar.buttons[Action.LATER].click()
    reply.perform(Action.DELETE)
    assert asked.take() == []
    transcript.set_quiet(True)
    reply.toolbar.buttons[Action.LATER].click()
    assert asked.take() == [("version", 2, 1)]


def test_a_reply_that_streams_is_only_copied(transcript: Transcript) -> None:
    reply = Message(6, "c", Role.ASSISTANT, "", NOW, MessageState.STREAMING)
    transcript.add_turn(Message(5, "c", Role.USER, "And?", NOW), reply)
    transcript.append_text("So ")
    live = transcript.live
    assert live is not None
    assert live.possible() == {Action.COPY, Action.COPY_TEXT, Action.COPY_MARKDOWN}
    live.perform(Action.COPY)
    assert clipboard() == "So "
    stored = replace(reply, text="So be it", state=MessageState.COMPLETE, num_versions=2, version=2)
    transcript.finish_live("So be it", None, FinishReason.STOP, stored)
    assert Action.REGENERATE in live.possible()
    assert live.toolbar.version.text() == "2 / 2"
    assert transcript.messages[-1] == stored


def test_a_message_that_is_not_stored_yet_offers_nothing_that_needs_its_id() -> None:
    unknown = Message(0, "c", Role.USER, "x", NOW, num_versions=2)
    assert possible(unknown, is_live=False, is_last=True, is_quiet=True) == {
        Action.COPY,
        Action.COPY_TEXT,
        Action.COPY_MARKDOWN,
    }


def test_ids_of_incognito_chats_arrive_whole(transcript: Transcript, asked: Asked) -> None:
    transcript.show_messages([replace(message, id=INCOGNITO + message.id) for message in chat()], None, None)
    reply = widget_of(transcript, INCOGNITO + 4)
    for action in (Action.REGENERATE, Action.CONTINUE, Action.FORK, Action.DELETE, Action.DELETE_BELOW):
        reply.perform(action)
    number = INCOGNITO + 4
    assert asked.take() == [
        ("regenerate", number), ("continue", number), ("fork", number),
        ("delete", number, False), ("delete", number, True),
    ]  # fmt: skip


# the menu


@pytest.fixture
def menus(monkeypatch: pytest.MonkeyPatch) -> list[QMenu]:
    """Those that were about to be shown."""
    shown: list[QMenu] = []
    monkeypatch.setattr(QMenu, "popup", lambda menu, _at: shown.append(menu))
    return shown


def entries(menu: QMenu) -> list[str]:
    return [action.text().split("\t")[0] for action in menu.actions() if not action.isSeparator()]


def choose(menu: QMenu, text: str) -> None:
    next(action for action in menu.actions() if action.text().split("\t")[0] == text).trigger()


def test_the_menu_has_everything(transcript: Transcript, asked: Asked, menus: list[QMenu]) -> None:
    reply = widget_of(transcript, 4)
    point_at(reply)
    reply.toolbar.more.click()
    assert entries(menus[0]) == [
        "Copy", "Copy as text", "Copy as Markdown", "Edit", "Again", "Continue", "New chat from here",
        "Delete message", "Delete from here on",
    ]  # fmt: skip
    choose(menus[0], "New chat from here")
    choose(menus[0], "Delete message")
    choose(menus[0], "Delete from here on")
    assert asked.take() == [("fork", 4), ("delete", 4, False), ("delete", 4, True)]
    choose(menus[0], "Copy as text")
    assert clipboard() == "It has caves"
    choose(menus[0], "Copy as Markdown")
    assert clipboard() == "It has **caves**"


def test_a_right_click_into_the_text_opens_the_same_menu_with_the_selection(
    transcript: Transcript, menus: list[QMenu]
) -> None:
    reply = widget_of(transcript, 2)
    point_at(reply)
    text = reply.findChild(FlowText)
    assert text is not None
    text.selectAll()
    at = QPoint(5, 5)
    event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, at, text.viewport().mapToGlobal(at))
    QApplication.sendEvent(text.viewport(), event)
    assert entries(menus[0])[:2] == ["Copy selection", "Copy"]
    assert entries(menus[0])[-5:-3] == ["Earlier version", "Later version"]
    choose(menus[0], "Copy selection")
    assert clipboard() == "An island."


def test_every_action_has_words_and_a_name_in_both_roles() -> None:
    for action in Action:
        assert words(action)
        assert name(action, Role.USER)
        assert name(action, Role.ASSISTANT)
    assert name(Action.COPY, Role.USER) != name(Action.COPY, Role.ASSISTANT)


# keys


def focused_id(transcript: Transcript) -> int | None:
    row = transcript._focus.row()
    return None if row is None else transcript.messages[row].id


def test_the_keyboard_walks_through_the_messages_with_an_outline(transcript: Transcript, asked: Asked) -> None:
    outline = transcript._focus._outline
    transcript.setFocus(Qt.FocusReason.MouseFocusReason)
    assert not outline.isVisible()
    widget_of(transcript, 1).findChildren(FlowText)[0].setFocus(Qt.FocusReason.MouseFocusReason)
    transcript.setFocus(Qt.FocusReason.TabFocusReason)
    assert outline.geometry() == transcript.viewport().rect()
    assert outline.isVisible()
    alt = Qt.KeyboardModifier.AltModifier
    walked = []
    for _ in range(5):
        press(Qt.Key.Key_Up, alt)
        walked.append(focused_id(transcript))
    assert walked == [4, 3, 2, 1, 1]
    assert outline.isVisible()
    assert outline.geometry().contains(widget_of(transcript, 1).geometry().adjusted(0, 0, 0, -2))
    assert "Copy your message" in shown_names(widget_of(transcript, 1))
    assert widget_of(transcript, 1).accessibleName() == "Your message"
    assert widget_of(transcript, 2).accessibleDescription() == "An island."
    for _ in range(3):
        press(Qt.Key.Key_Down, alt)
    assert focused_id(transcript) == 4
    press(Qt.Key.Key_Down, alt)
    assert asked.take() == [("focus left",)]
    widget_of(transcript, 1).findChildren(FlowText)[0].setFocus(Qt.FocusReason.MouseFocusReason)
    assert not outline.isVisible()
    assert shown_names(widget_of(transcript, 4)) == []


def test_the_keyboard_walks_to_messages_that_are_not_built_yet(transcript: Transcript, qtbot: QtBot) -> None:
    roles = (Role.USER, Role.ASSISTANT)
    transcript.show_messages(
        [Message(n + 1, "c", roles[n % 2], f"text {n}\n" * 9, NOW) for n in range(300)], None, None
    )
    transcript.setFocus()
    for number in range(40):
        press(Qt.Key.Key_Up, Qt.KeyboardModifier.AltModifier)
        assert focused_id(transcript) == 300 - number
        widget = widget_of(transcript, 300 - number)
        assert widget.y() >= 0
        assert widget.geometry().bottom() <= transcript.viewport().height()
    qtbot.waitUntil(lambda: not transcript.is_building)
    assert focused_id(transcript) == 261


def test_keys_do_what_the_buttons_do(transcript: Transcript, asked: Asked, menus: list[QMenu]) -> None:
    transcript._focus._focus(1)
    press(Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert clipboard() == "An **island**."
    press(Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier)
    press(Qt.Key.Key_Left, Qt.KeyboardModifier.AltModifier)
    press(Qt.Key.Key_Right, Qt.KeyboardModifier.AltModifier)
    press(Qt.Key.Key_Delete)
    press(Qt.Key.Key_Escape)
    assert asked.take() == [
        ("regenerate", 2), ("version", 2, -1), ("version", 2, 1), ("delete", 2, False), ("focus left",),
    ]  # fmt: skip
    press(Qt.Key.Key_Menu)
    press(Qt.Key.Key_F10, Qt.KeyboardModifier.ShiftModifier)
    assert len(menus) == 2
    press(Qt.Key.Key_F2)
    assert widget_of(transcript, 2).editor is not None


def test_tab_goes_through_the_buttons_of_the_focused_message_and_on(transcript: Transcript, asked: Asked) -> None:
    transcript._focus._focus(3)
    reply = widget_of(transcript, 4)
    names = []
    for _ in range(5):
        press(Qt.Key.Key_Tab)
        focused = QApplication.focusWidget()
        assert focused is not None
        names.append(focused.accessibleName())
    assert names == ["Copy reply", "Ask again for this reply", "Edit reply", "Continue reply", "More actions"]
    assert focused_id(transcript) == 4
    press(Qt.Key.Key_Tab)
    assert asked.take() == [("focus left",)]
    reply.toolbar.buttons[Action.REGENERATE].setFocus()
    press(Qt.Key.Key_Space)
    assert asked.take() == [("regenerate", 4)]
    press(Qt.Key.Key_Backtab, Qt.KeyboardModifier.ShiftModifier)
    press(Qt.Key.Key_Backtab, Qt.KeyboardModifier.ShiftModifier)
    assert reply.hasFocus()


def test_keys_in_a_selected_text_do_nothing_to_the_message(transcript: Transcript, asked: Asked) -> None:
    text = widget_of(transcript, 2).findChild(FlowText)
    assert text is not None
    text.setFocus()
    press(Qt.Key.Key_Delete)
    press(Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier)
    press(Qt.Key.Key_F2)
    assert asked.take() == []
    assert widget_of(transcript, 2).editor is None


def test_the_focus_stays_in_its_place_when_the_message_there_is_replaced(transcript: Transcript, asked: Asked) -> None:
    transcript._focus._focus(1)
    other = [*chat()[:1], Message(9, "c", Role.ASSISTANT, "Another.", NOW, version=3, num_versions=3)]
    transcript.update_messages(other, None, None)
    assert focused_id(transcript) == 9
    assert widget_of(transcript, 9).hasFocus()
    transcript.update_messages(other[:1], None, None)
    assert focused_id(transcript) == 1


# writing anew


def test_an_edit_is_saved_by_its_button_and_its_key_and_dropped_by_escape(transcript: Transcript, asked: Asked) -> None:
    user = widget_of(transcript, 1)
    user.perform(Action.EDIT)
    editor = user.editor
    assert editor is not None
    assert editor.edit.hasFocus()
    assert editor.edit.toPlainText() == "What is Jeju?"
    assert editor.save_button.text() == "Save and ask again"
    editor.edit.setPlainText("What is Udo?")
    editor.save_button.click()
    assert asked.take() == [("edit", 1, "What is Udo?")]
    press(Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert asked.take() == [("edit", 1, "What is Udo?")]
    press(Qt.Key.Key_Escape)
    assert user.editor is None
    assert user.hasFocus()
    assert user.text == "What is Jeju?"
    assert asked.take() == []


def test_a_message_far_away_is_shown_to_be_edited_unless_the_chat_is_busy(transcript: Transcript) -> None:
    transcript.show_messages(many(100), None, None)
    transcript.set_quiet(False)
    transcript.begin_edit(21)
    assert widget_of(transcript, 21).editor is None
    transcript.set_quiet(True)
    transcript.begin_edit(31)
    user = widget_of(transcript, 31)
    assert user.editor is not None
    assert user.editor.edit.hasFocus()
    assert user.y() >= 0
    assert user.geometry().bottom() <= transcript.viewport().height()


def test_what_is_being_composed_is_saved_too(transcript: Transcript, asked: Asked) -> None:
    user = widget_of(transcript, 1)
    user.perform(Action.EDIT)
    assert user.editor is not None
    user.editor.edit.setPlainText("안")
    user.editor.edit.moveCursor(user.editor.edit.textCursor().MoveOperation.End)
    QApplication.sendEvent(user.editor.edit, QInputMethodEvent("녕", []))
    user.editor.save_button.click()
    assert asked.take() == [("edit", 1, "안녕")]


def test_an_edit_that_was_stored_closes_and_one_that_failed_stays(transcript: Transcript) -> None:
    reply = widget_of(transcript, 4)
    reply.perform(Action.EDIT)
    assert reply.editor is not None
    reply.editor.edit.setPlainText("Better.")
    reply.editor.save_button.click()
    assert reply.editor is not None  # nothing has come of it yet
    transcript.update_messages(chat(), None, "The disk is full.")
    assert reply.editor is not None
    transcript.update_messages([*chat()[:3], replace(chat()[3], text="Better.")], None, None)
    assert reply.editor is None
    assert reply.body.plain_text() == "Better."


def test_a_reply_saved_as_it_was_asks_for_nothing(transcript: Transcript, asked: Asked) -> None:
    reply = widget_of(transcript, 2)
    reply.perform(Action.EDIT)
    assert reply.editor is not None
    reply.editor.save_button.click()
    assert asked.take() == []
    assert reply.editor is None


def test_an_unsaved_edit_outlives_scrolling_other_chats_and_a_reply_that_runs(
    transcript: Transcript, asked: Asked, qtbot: QtBot
) -> None:
    long = many(100)
    transcript.show_messages(long, None, None)
    transcript.go_to(51)
    user = widget_of(transcript, 51)
    user.perform(Action.EDIT)
    assert user.editor is not None
    user.editor.edit.setPlainText("half written")
    transcript.jump_to_end()
    qtbot.waitUntil(lambda: not transcript.is_building)
    transcript.set_quiet(False)
    user.editor.save()
    assert asked.take() == []
    assert not user.editor.save_button.isEnabled()
    transcript.show_messages(chat(), None, None)
    transcript.show_messages(long, None, None)
    transcript.go_to(51)
    again = widget_of(transcript, 51)
    assert again.editor is not None
    assert again.editor.edit.toPlainText() == "half written"
    transcript.set_quiet(True)
    again.editor.save()
    assert asked.take() == [("edit", 51, "half written")]
    transcript.update_messages([*long[:50], replace(long[50], id=200, text="half written")], None, None)
    assert all(widget.editor is None for widget in transcript.built())
    transcript.show_messages(long, None, None)
    transcript.go_to(51)
    assert widget_of(transcript, 51).editor is None  # it was saved: nothing is left of it


def test_an_editor_grows_with_its_text_and_pushes_down_what_follows(transcript: Transcript, qtbot: QtBot) -> None:
    user, following = widget_of(transcript, 1), widget_of(transcript, 2)
    user.perform(Action.EDIT)
    assert user.editor is not None
    before = following.y()
    user.editor.edit.setPlainText("line\n" * 6)
    qtbot.waitUntil(lambda: following.y() > before)
    assert following.y() == user.geometry().bottom() + 3
    assert user.editor.height() >= user.editor.sizeHint().height()


# files


def test_files_are_chips_that_show_what_was_read_of_them(transcript: Transcript, qtbot: QtBot) -> None:
    files = (Attachment("costs.csv", "cave,14000", 1200), Attachment("a&b.pdf", "words of it", 2_400_000))
    transcript.show_messages([replace(chat()[0], attachments=files)], None, None)
    user = transcript.built()[0]
    assert isinstance(user, UserMessage)
    assert user.chips is not None
    assert [button.accessibleName() for button in user.chips.buttons] == [
        "File costs.csv, 1.2 kB",
        "File a&b.pdf, 2.4 MB",
    ]
    text = user.findChild(FlowText)
    assert text is not None
    assert user.chips.geometry().bottom() < text.y()
    assert user.height() == user.heightForWidth(user.width())
    user.chips.buttons[1].click()
    dialog = next(widget for widget in QApplication.topLevelWidgets() if isinstance(widget, AttachmentDialog))
    assert dialog.text.toPlainText() == "words of it"
    assert dialog.text.isReadOnly()
    dialog.reject()


def test_a_message_of_files_alone_has_no_empty_line(transcript: Transcript) -> None:
    files = (Attachment("costs.csv", "cave,14000", 1200),)
    transcript.show_messages([replace(chat()[0], text="", attachments=files)], None, None)
    user = transcript.built()[0]
    assert isinstance(user, UserMessage)
    assert user.chips is not None
    assert user.height() < 28 + 60
    text = user.findChild(FlowText)
    assert text is not None
    assert not text.isVisible()
