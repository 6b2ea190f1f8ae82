"""Messages and chats in the whole window: what is shown, what is stored and what the engine is asked agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from PySide6.QtTest import QTest

from app.conversation import Attachment, ChatOptions, Draft
from app.settings import Settings
from engine.protocol.commands import LoadModel, Role
from engine.protocol.config import ContextPolicy
from engine.protocol.events import CacheReading, CacheState, FinishReason, ViewMoved
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import model_info, turn_statistics
from ui.shortcuts import SHORTCUTS, Place


def shown(desk: Desk) -> list[str]:
    return [message.text for message in desk.window.page.transcript.built()]


def stored(desk: Desk) -> list[str]:
    assert desk.window.controller.current is not None
    return [message.text for message in desk.store.messages(desk.window.controller.current)]


def message_id(desk: Desk, index: int) -> int:
    assert desk.window.controller.current is not None
    return desk.store.messages(desk.window.controller.current)[index].id


def chat(desk: Desk, *turns: tuple[str, str]) -> str:
    for question, answer in turns:
        desk.engine.finish(desk.send(question), answer)
        desk.settle()
    assert desk.window.controller.current is not None
    return desk.window.controller.current


def answer(desk: Desk, text: str, reason: FinishReason = FinishReason.STOP) -> None:
    desk.engine.finish(desk.engine.generates[-1], text, reason)
    desk.settle()


def test_another_version_streams_in_the_place_of_the_reply_and_arrows_lead_back(desk: Desk) -> None:
    chat(desk, ("one", "ONE"), ("two", "TWO"))
    transcript = desk.window.page.transcript
    transcript.regenerate_requested.emit(message_id(desk, 3))
    desk.settle()
    assert desk.window.page.composer.button.text() == "Stop"
    desk.engine.begin(desk.engine.generates[-1], "TWO, ag")
    desk.settle()
    desk.flush()
    assert shown(desk) == ["one", "ONE", "two", "TWO, ag"]
    answer(desk, "TWO, again")
    assert shown(desk) == stored(desk) == ["one", "ONE", "two", "TWO, again"]
    assert desk.window.page.composer.button.text() == "Send"
    last = transcript.built()[-1].message
    assert (last.version, last.num_versions) == (2, 2)
    transcript.version_requested.emit(last.id, -1)
    desk.settle()
    assert shown(desk) == stored(desk) == ["one", "ONE", "two", "TWO"]
    transcript.version_requested.emit(message_id(desk, 3), -1)  # there is none before it
    desk.settle()
    assert shown(desk)[-1] == "TWO"


def test_an_edited_question_is_answered_anew(desk: Desk) -> None:
    chat(desk, ("one", "ONE"), ("two", "TWO"))
    desk.window.page.transcript.edit_requested.emit(message_id(desk, 2), "zwei")
    desk.settle()
    assert [message.text for message in desk.engine.generates[-1].messages] == ["one", "ONE", "zwei"]
    answer(desk, "ZWEI")
    assert shown(desk) == stored(desk) == ["one", "ONE", "zwei", "ZWEI"]


def test_an_edited_reply_is_kept_at_once(desk: Desk) -> None:
    chat(desk, ("one", "ONE"))
    asked = len(desk.engine.generates)
    desk.window.page.transcript.edit_requested.emit(message_id(desk, 1), "Uno")
    desk.settle()
    assert shown(desk) == stored(desk) == ["one", "Uno"]
    assert len(desk.engine.generates) == asked
    assert not desk.window.page.composer.is_busy


def test_a_stopped_reply_goes_on_after_what_it_said(desk: Desk) -> None:
    request = desk.send("tell")
    desk.engine.begin(request, "Once upon")
    desk.engine.finish(request, "Once upon", FinishReason.CANCELLED)
    desk.settle()
    desk.window.page.transcript.continue_requested.emit(message_id(desk, 1))
    desk.settle()
    assert desk.engine.generates[-1].continues
    assert shown(desk) == ["tell", "Once upon"]
    desk.engine.begin(desk.engine.generates[-1], " a ti")
    desk.settle()
    desk.flush()
    assert shown(desk) == ["tell", "Once upon a ti"]
    answer(desk, " a time.")
    assert shown(desk) == stored(desk) == ["tell", "Once upon a time."]


def test_a_reply_that_goes_on_is_whole_when_its_chat_is_opened_meanwhile(desk: Desk) -> None:
    request = desk.send("tell")
    desk.engine.finish(request, "Once upon", FinishReason.CANCELLED)
    desk.settle()
    current = desk.window.controller.current
    desk.window.page.transcript.continue_requested.emit(message_id(desk, 1))
    desk.settle()
    desk.window.controller.open(None)
    desk.engine.begin(desk.engine.generates[-1], " a time")
    desk.settle()
    desk.window.controller.open(current)
    desk.flush()
    assert shown(desk) == ["tell", "Once upon a time"]


def test_a_deleted_message_comes_back_with_undo(desk: Desk) -> None:
    chat(desk, ("one", "ONE"), ("two", "TWO"))
    desk.window.page.transcript.delete_requested.emit(message_id(desk, 2), True)
    desk.settle()
    assert shown(desk) == stored(desk) == ["one", "ONE"]
    assert "Deleted" in desk.window.sidebar.undo_bar.words
    desk.window.sidebar.undo_bar.undo_button.click()
    desk.settle()
    assert shown(desk) == stored(desk) == ["one", "ONE", "two", "TWO"]


def test_several_deletions_are_undone_in_the_order_that_puts_them_together_again(desk: Desk) -> None:
    conversation_id = chat(desk, ("one", "ONE"), ("two", "TWO"), ("three", "THREE"))
    before = desk.store.tree(conversation_id)
    for index in (3, 2, 0):
        desk.window.page.transcript.delete_requested.emit(message_id(desk, index), False)
        desk.settle()
    assert stored(desk) == ["ONE", "three", "THREE"]
    desk.window.sidebar.undo_bar.undo_button.click()
    desk.settle()
    assert desk.store.tree(conversation_id) == before
    assert shown(desk) == stored(desk)


def test_deleting_everything_shows_an_empty_chat_and_undo_brings_it_back(desk: Desk) -> None:
    chat(desk, ("one", "ONE"))
    desk.window.page.transcript.delete_requested.emit(message_id(desk, 0), True)
    desk.settle()
    assert desk.window.page.is_empty
    desk.window.sidebar.undo_bar.undo_button.click()
    desk.settle()
    assert not desk.window.page.is_empty
    assert shown(desk) == ["one", "ONE"]


def test_a_chat_and_a_message_deleted_one_after_the_other_both_come_back(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("a", "b")))
    desk.window.deletions.delete(ids[0])
    desk.window.controller.open(ids[1])
    desk.window.page.transcript.delete_requested.emit(message_id(desk, 0), True)
    desk.settle()
    desk.window.sidebar.undo_bar.undo_button.click()
    desk.settle()
    assert {conversation.id for conversation in desk.store.conversations()} == set(ids)
    assert len(desk.store.messages(ids[1])) == 2


def test_a_message_deleted_by_key_comes_back_by_key_even_after_the_bar_has_gone(desk: Desk) -> None:
    chat(desk, ("one", "ONE"), ("two", "TWO"))
    transcript = desk.window.page.transcript
    for _ in range(2):
        transcript.delete_requested.emit(message_id(desk, -1), False)
    desk.settle()
    desk.window.deletions.commit()
    transcript.setFocus()
    for left in (["one", "ONE", "two"], ["one", "ONE", "two", "TWO"], ["one", "ONE", "two", "TWO"]):
        QTest.keyClick(transcript, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
        desk.settle()
        assert shown(desk) == stored(desk) == left


def test_ctrl_r_asks_again_for_the_last_reply_from_anywhere(desk: Desk) -> None:
    chat(desk, ("one", "ONE"), ("two", "TWO"))
    QTest.keyClick(desk.window.sidebar.filter, Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier)
    answer(desk, "TWO, again")
    assert shown(desk) == stored(desk) == ["one", "ONE", "two", "TWO, again"]


def test_after_an_edit_one_goes_on_writing(desk: Desk) -> None:
    chat(desk, ("one", "ONE"))
    desk.window.message_changes.edit_last()
    desk.settle()
    (editor,) = [widget.editor for widget in desk.window.page.transcript.built() if widget.editor is not None]
    editor.edit.setPlainText("eins")
    QTest.keyClick(editor.edit, Qt.Key.Key_Return)
    desk.settle()
    assert desk.engine.generates[-1].messages[-1].text == "eins"
    assert desk.window.page.composer.edit.hasFocus()


def test_the_meter_follows_the_version_that_is_shown(desk: Desk) -> None:
    request = desk.send("one")
    first, second = (replace(turn_statistics(), cache=CacheReading(n, n * 1000, "bf16", "cpu")) for n in (100, 200))
    desk.engine.finish(request, "ONE", statistics=first)
    desk.settle()
    desk.window.page.transcript.regenerate_requested.emit(message_id(desk, 1))
    desk.settle()
    desk.engine.finish(desk.engine.generates[-1], "UNO", statistics=second)
    desk.settle()
    desk.engine.report(None, {request.conversation_id: (CacheState.WARM, "bf16")})
    desk.settle()
    context = desk.window.meter.context.value
    desk.qtbot.waitUntil(lambda: context.text() == "200 / 8,192")
    desk.window.page.transcript.version_requested.emit(message_id(desk, 1), -1)
    desk.qtbot.waitUntil(lambda: context.text() == "100 / 8,192")


def test_enter_while_a_reply_runs_says_why_nothing_is_sent(desk: Desk) -> None:
    desk.send("one")
    desk.window.page.composer.edit.setPlainText("two")
    QTest.keyClick(desk.window.page.composer.edit, Qt.Key.Key_Return)
    assert "still answering" in desk.window.page.composer.hint.text()
    assert len(desk.engine.generates) == 1


def test_a_new_chat_from_here_is_opened_with_what_led_to_it(desk: Desk) -> None:
    origin = chat(desk, ("one", "ONE"), ("two", "TWO"))
    desk.window.page.transcript.fork_requested.emit(message_id(desk, 1))
    desk.settle()
    assert desk.window.controller.current != origin
    assert shown(desk) == stored(desk) == ["one", "ONE"]
    assert desk.window.header.title.full_text == "one (from here)"
    assert [message.text for message in desk.store.messages(origin)] == ["one", "ONE", "two", "TWO"]


def test_up_in_an_empty_field_opens_the_last_question_for_editing(desk: Desk) -> None:
    chat(desk, ("one", "ONE"), ("two", "TWO"))
    QTest.keyClick(desk.window.page.composer.edit, Qt.Key.Key_Up)
    desk.settle()
    editors = [widget.editor for widget in desk.window.page.transcript.built() if widget.editor is not None]
    assert len(editors) == 1
    assert editors[0].text == "two"


def test_what_the_model_no_longer_reads_is_marked_and_stays_marked_when_opened_again(desk: Desk) -> None:
    conversation_id = chat(desk, ("one", "ONE"), ("two", "TWO"))
    request = desk.send("three")
    desk.engine.tell(ViewMoved(conversation_id, request.request_id, 2, 50))
    desk.engine.finish(request, "THREE")
    desk.settle()
    transcript = desk.window.page.transcript
    assert transcript.mark is not None
    desk.window.controller.open(None)
    desk.settle()
    assert transcript.mark is None
    desk.window.controller.open(conversation_id)
    desk.settle()
    assert transcript.mark is not None
    desk.send("four")
    assert [message.text for message in desk.engine.generates[-1].messages] == ["two", "TWO", "three", "THREE", "four"]


def test_the_policy_chosen_in_the_settings_goes_to_the_engine(desk: Desk) -> None:
    desk.window.preferences.change(context_policy=ContextPolicy.STOP)
    assert desk.send("hello").on_overflow is ContextPolicy.STOP


def test_an_incognito_chat_is_asked_for_by_key_and_leaves_nothing_on_disk(desk: Desk, data_dir: Path) -> None:
    QTest.keyClick(desk.window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    assert desk.window.controller.is_new_incognito
    assert desk.window.header.title.full_text == "New incognito chat"
    assert desk.window.page.empty.incognito.isVisible()
    request = desk.send("the marmot sleeps")
    assert request.is_incognito
    desk.engine.finish(request, "softly")
    desk.settle()
    assert shown(desk) == stored(desk) == ["the marmot sleeps", "softly"]
    assert not [path for path in data_dir.rglob("*") if path.is_file() and b"marmot" in path.read_bytes()]
    transcript = desk.window.page.transcript
    transcript.regenerate_requested.emit(message_id(desk, 1))
    answer(desk, "deeply")
    assert shown(desk) == stored(desk) == ["the marmot sleeps", "deeply"]
    QTest.keyClick(desk.window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert not desk.send("in the open").is_incognito


def test_a_search_hit_opens_its_chat_at_the_message_even_on_another_branch(desk: Desk) -> None:
    conversation_id = chat(desk, ("one", "the first answer"))
    desk.window.page.transcript.regenerate_requested.emit(message_id(desk, 1))
    answer(desk, "the second answer")
    desk.window.controller.open(None)
    desk.settle()
    hit = next(hit for hit in desk.store.search("first answer") if hit.message_id is not None)
    desk.window.sidebar.hit_chosen.emit(hit.conversation_id, hit.message_id, "first")
    desk.settle()
    assert desk.window.controller.current == conversation_id
    assert shown(desk) == ["one", "the first answer"]


def test_files_dropped_on_the_messages_go_to_the_field(desk: Desk, tmp_path: Path) -> None:
    chat(desk, ("one", "ONE"))
    (tmp_path / "notes.txt").write_text("the notes", encoding="utf-8")
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(tmp_path / "notes.txt"))])
    drop = QDropEvent(
        QPointF(50, 50),
        Qt.DropAction.CopyAction,
        data,
        Qt.MouseButton.LeftButton,
        Qt.KeyboardModifier.NoModifier,
    )
    desk.window.page.dropEvent(drop)
    composer = desk.window.page.composer
    desk.qtbot.waitUntil(lambda: len(composer.draft.attachments) == 1)
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    desk.settle()
    assert "the notes" in desk.engine.generates[-1].messages[-1].text
    assert desk.store.messages(desk.engine.generates[-1].conversation_id)[2].attachments[0].name == "notes.txt"


def test_a_message_with_files_that_does_not_fit_goes_back_with_them(desk: Desk) -> None:
    note = Attachment("notes.txt", "the notes", 9)
    desk.window.page.composer.show_draft(Draft("read", (note,)))
    desk.window.page.composer.button.click()
    desk.settle()
    request = desk.engine.generates[-1]
    desk.engine.fail(request, "context_overflow", "Too long.", prompt_tokens="9", context_length="8")
    desk.settle()
    assert desk.window.page.composer.draft == Draft("read", (note,))
    assert desk.store.conversation(request.conversation_id).draft == Draft("read", (note,))


def test_a_chats_own_ways_are_kept_and_a_new_chat_is_stored_for_them(desk: Desk) -> None:
    desk.window.page.composer.edit.setPlainText("half a thought")
    desk.window.dialogs.open_chat_settings()
    dialog = desk.window.dialogs.open_dialog
    assert dialog is not None
    dialog.accepted_with.emit("Be brief.", ChatOptions(temperature=0.0), None)
    dialog.close()
    desk.settle()
    conversation = desk.store.conversation(desk.window.controller.current or "")
    assert (conversation.system_prompt, conversation.options.temperature) == ("Be brief.", 0.0)
    assert desk.window.page.composer.draft.text == "half a thought"
    request = desk.send("Hello")
    assert request.messages[0].role is Role.SYSTEM
    assert request.sampling.temperature == 0.0


def test_a_chat_with_a_model_of_its_own_shows_the_load_and_then_answers(open_desk: OpenDesk, data_dir: Path) -> None:
    for name in ("usual", "special"):
        (data_dir / name).mkdir()
    desk = open_desk(Settings(language="en", model=str(data_dir / "usual")), loaded=False)
    desk.session._models._find_model = Path
    first = desk.session.load_model(data_dir / "usual", desk.window.preferences.settings.weights)
    desk.engine.load(first)
    desk.settle()
    desk.window.dialogs._keep(None, "", ChatOptions(), str(data_dir / "special"))
    desk.window.page.composer.edit.setPlainText("hello")
    desk.window.page.composer.button.click()
    desk.settle()
    load = desk.engine.commands[-1]
    assert isinstance(load, LoadModel)
    assert load.path.name == "special"
    assert desk.window.header.model_button.text() == "Loading model"
    desk.engine.load(load.request_id, model_info("special"))
    desk.settle()
    assert desk.engine.generates[-1].messages[-1].text == "hello"


def test_folders_and_copies(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("a", "b")))
    desk.window.sidebar.folder_create_requested.emit([ids[0]])
    desk.settle()
    (folder,) = desk.store.folders()
    desk.window.sidebar.folder_renamed.emit(folder.id, "Work")
    desk.window.sidebar.move_requested.emit(ids, folder.id)
    desk.window.sidebar.collapsed_changed.emit(frozenset({folder.id}))
    desk.settle()
    assert [conversation.folder_id for conversation in desk.store.conversations()] == [folder.id] * 2
    assert desk.store.folders()[0].name == "Work"
    assert desk.saved[-1].collapsed_folders == str(folder.id)
    desk.window.sidebar.duplicate_requested.emit(ids[0])
    desk.settle()
    assert desk.window.header.title.full_text == "a (copy)"
    assert len(desk.store.conversations()) == 3


def test_next_and_previous_chat_by_key(open_desk: OpenDesk) -> None:
    ids: list[str] = []
    desk = open_desk(fill=lambda desk: ids.extend(desk.add_conversation(title) for title in ("a", "b", "c")))
    keys = (Qt.Key.Key_PageDown, Qt.Key.Key_PageDown, Qt.Key.Key_PageDown, Qt.Key.Key_PageDown, Qt.Key.Key_PageUp)
    visited = []
    for key in keys:
        QTest.keyClick(desk.window, key, Qt.KeyboardModifier.ControlModifier)
        visited.append(desk.window.controller.current)
    assert visited == [ids[2], ids[1], ids[0], ids[0], ids[1]]


def test_every_key_that_counts_everywhere_is_bound_once(desk: Desk) -> None:
    from PySide6.QtGui import QShortcut

    bound = [shortcut.key().toString() for shortcut in desk.window.findChildren(QShortcut)]
    wanted = [key for shortcut in SHORTCUTS if shortcut.place is Place.WINDOW for key in shortcut.keys]
    assert {key: bound.count(key) for key in wanted if bound.count(key) != 1} == {}
