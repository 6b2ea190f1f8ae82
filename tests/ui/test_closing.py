"""The window may be closed at any moment: nothing that was written is lost, and nothing is left running."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtGui import QInputMethodEvent
from PySide6.QtWidgets import QApplication

from app.conversation import MessageState
from engine.protocol.events import FinishReason, LoadStage, ModelLoading, Phase, PhaseChanged
from tests.ui.conftest import Desk, OpenDesk

State = Callable[[Desk, Path], object]


def answering(desk: Desk, folder: Path) -> None:
    request = desk.send("question")
    desk.engine.begin(request, "half an answ")
    desk.settle()


def reading(desk: Desk, folder: Path) -> None:
    request = desk.send("question")
    desk.engine.tell(PhaseChanged(request.conversation_id, request.request_id, Phase.PREFILL, 10, 100, 3.0))
    desk.settle()


def loading(desk: Desk, folder: Path) -> None:
    request_id = desk.session.load_model(folder, desk.window.preferences.settings.weights)
    desk.window.preferences.load_requested.emit(request_id)
    desk.engine.tell(ModelLoading(request_id, LoadStage.WEIGHTS, 0.5))
    desk.window.page.composer.edit.setPlainText("question")
    desk.window.page.composer.button.click()
    desk.settle()


def going_on(desk: Desk, folder: Path) -> None:
    request = desk.send("question")
    desk.engine.finish(request, "half", FinishReason.CANCELLED)
    desk.settle()
    message = desk.store.messages(request.conversation_id)[1]
    desk.window.page.transcript.continue_requested.emit(message.id)
    desk.settle()


def composing(desk: Desk, folder: Path) -> None:
    desk.window.page.composer.edit.setFocus()
    QApplication.sendEvent(desk.window.page.composer.edit, QInputMethodEvent("쭉", []))


def editing_a_message(desk: Desk, folder: Path) -> None:
    desk.engine.finish(desk.send("question"), "answer")
    desk.settle()
    desk.window.message_changes.edit_last()
    desk.settle()


def deleted_a_message(desk: Desk, folder: Path) -> None:
    request = desk.send("question")
    desk.engine.finish(request, "answer")
    desk.settle()
    desk.window.page.transcript.delete_requested.emit(desk.store.messages(request.conversation_id)[1].id, False)


def deleted_the_chat(desk: Desk, folder: Path) -> None:
    answering(desk, folder)
    desk.window.deletions.delete_current()


def reading_a_file(desk: Desk, folder: Path) -> None:
    (folder / "large.txt").write_text("a line of words\n" * 100_000, encoding="utf-8")
    desk.window.page.composer.accept_files([folder / "large.txt"])


def importing(desk: Desk, folder: Path) -> None:
    turns = '{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}'
    (folder / "chats.json").write_text(f"[{', '.join([f'[{turns}]'] * 400)}]", encoding="utf-8")
    desk.window.exchange.import_from([str(folder / "chats.json")])


def in_the_settings(desk: Desk, folder: Path) -> None:
    desk.window.dialogs.open_settings()


def in_the_chat_settings(desk: Desk, folder: Path) -> None:
    desk.window.dialogs.open_chat_settings()


def searching(desk: Desk, folder: Path) -> None:
    desk.window.sidebar.filter.setText("word")


def renaming(desk: Desk, folder: Path) -> None:
    answering(desk, folder)
    desk.window.changes.rename_current()


def incognito(desk: Desk, folder: Path) -> None:
    desk.window.new_incognito_chat()
    answering(desk, folder)


def busy_timers(desk: Desk) -> list[QTimer]:
    return [timer for timer in desk.window.findChildren(QTimer) if timer.isActive() and timer.interval() < 1000]


STATES: list[State] = [
    answering, reading, loading, going_on, composing, editing_a_message, deleted_a_message, deleted_the_chat,
    reading_a_file, importing, in_the_settings, in_the_chat_settings, searching, renaming, incognito,
]  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_the_window_can_be_closed_while(open_desk: OpenDesk, tmp_path: Path, state: State) -> None:
    desk = open_desk()
    state(desk, tmp_path)
    desk.window.close()
    desk.settle()
    desk.session.close()
    assert not desk.window.isVisible()
    desk.qtbot.waitUntil(lambda: not busy_timers(desk))
    for conversation in desk.store.conversations():
        assert all(message.state is MessageState.COMPLETE for message in desk.store.messages(conversation.id))
    texts = [message.text for one in desk.store.conversations() for message in desk.store.messages(one.id)]
    drafts = [conversation.draft.text for conversation in desk.store.conversations()]
    if state in (answering, reading, loading, renaming):
        assert texts[0] == "question"
    if state is composing:
        assert drafts == ["쭉"]
    if state is deleted_the_chat:
        assert texts == []
    if state is importing:
        assert len(texts) in (0, 800)  # all of the file, or nothing of it


def test_what_is_written_to_a_new_chat_is_kept_whichever_chat_is_shown_at_the_end(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.append(desk.add_conversation("old")))
    desk.window.new_chat()
    desk.window.page.composer.edit.setPlainText("a long thought")
    desk.window.controller.open(ids[0])
    desk.window.close()
    desk.settle()
    assert sorted(conversation.draft.text for conversation in desk.store.conversations()) == ["", "a long thought"]
    assert desk.saved[-1].new_draft == ""


def test_what_is_written_to_a_new_chat_outlives_a_program_that_is_killed(open_desk: OpenDesk) -> None:
    desk = open_desk()
    desk.window.page.composer.edit.setPlainText("half a thought")
    desk.qtbot.waitUntil(lambda: bool(desk.saved) and desk.saved[-1].new_draft == "half a thought")
    desk.window.close()  # only so that the next window may open: what was saved by then is what counts
    killed = next(one for one in desk.saved if one.new_draft)
    desk.open(killed)
    desk.window.new_chat()
    assert desk.window.page.composer.draft.text == "half a thought"
    desk.window.page.composer.button.click()
    desk.settle()
    assert desk.saved[-1].new_draft == ""


def test_what_is_written_to_a_new_incognito_chat_never_leaves_it(open_desk: OpenDesk, data_dir: Path) -> None:
    desk = open_desk()
    desk.window.new_incognito_chat()
    desk.window.page.composer.edit.setPlainText("the marmot sleeps")
    desk.qtbot.wait(700)  # longer than a draft waits to be kept
    desk.window.new_chat()
    assert desk.window.page.composer.draft.is_blank
    desk.window.page.composer.edit.setPlainText("in the open")
    desk.window.new_incognito_chat()
    assert desk.window.page.composer.draft.text == "the marmot sleeps"
    desk.window.close()
    desk.settle()
    assert [conversation.draft.text for conversation in desk.store.conversations()] == ["in the open"]
    assert not any("marmot" in one.new_draft for one in desk.saved)
    assert not [path for path in data_dir.rglob("*") if path.is_file() and b"marmot" in path.read_bytes()]
