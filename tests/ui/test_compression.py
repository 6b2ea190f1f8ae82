"""Compressing a chat's memory: offered when it makes sense, shown while it runs, told and undone afterwards."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from engine.protocol.commands import Compress, CompressMethod, Undo
from engine.protocol.events import CacheState, CodecsProbed, EngineStopped, Failed, Phase, PhaseChanged
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import MB
from ui.memory.compress_dialog import CompressDialog
from ui.memory.precision_words import precision_help, precision_mark, precision_words
from ui.sidebar.conversation_model import ListRole

COMPRESS, UNDO = "Compress this chat's memory…", "Undo compression"
PRECISIONS = ["bf16", "fp16", "fp32", "int8", "balanced", "compact", "bnb-8bit", "bnb-nf4", "mixed"]
COMPRESSED = ["kvzip", "kvzip-int8", "streaming", "streaming-int8"]


def answered(desk: Desk) -> str:
    """A chat with a reply, whose cache is in memory."""
    request = desk.send("hello")
    desk.engine.finish(request, "hi")
    desk.engine.saved(request)
    desk.settle()
    return request.conversation_id


def offered(desk: Desk) -> tuple[bool, bool]:
    """Whether the header's menu lets one compress, and undo that."""
    menu = desk.window.header.more_menu
    menu.aboutToShow.emit()
    return action(menu, COMPRESS).isEnabled(), action(menu, UNDO).isEnabled()


def action(menu: QMenu, words: str) -> QAction:
    (found,) = [one for one in menu.actions() if one.text() == words]
    return found


def dialog(desk: Desk) -> CompressDialog:
    desk.window.header.more_menu.aboutToShow.emit()
    action(desk.window.header.more_menu, COMPRESS).trigger()
    found = desk.window.compressions.dialog
    assert found is not None
    return found


def compress(desk: Desk) -> Compress:
    dialog(desk).compress_button.click()
    desk.settle()
    request = desk.engine.compressions[-1]
    assert isinstance(request, Compress)
    return request


def state(desk: Desk) -> str:
    desk.qtbot.waitUntil(lambda: not desk.window.meter._timer.isActive())
    return desk.window.meter.state.text()


def notice(desk: Desk) -> str:
    found = desk.window.page.transcript.notice
    return found.text if found is not None else ""


def test_it_is_offered_for_a_chat_with_a_cache_while_nothing_is_done_in_it(desk: Desk) -> None:
    assert offered(desk) == (False, False)
    request = desk.send("hello")
    desk.engine.begin(request, "h")
    desk.settle()
    assert offered(desk) == (False, False)
    desk.engine.finish(request, "hi")
    desk.settle()
    assert offered(desk) == (True, False)
    desk.engine.report(None, {request.conversation_id: (CacheState.WARM, "int8")})
    desk.settle()
    assert offered(desk) == (True, True)
    desk.engine.report(None, {request.conversation_id: (CacheState.COLD, "")})
    desk.settle()
    assert offered(desk) == (False, False)
    desk.engine.report(None, {request.conversation_id: (CacheState.ON_DISK, "kvzip")})
    desk.settle()
    assert offered(desk) == (True, True)
    desk.window.preferences.choose_weights("8bit")
    desk.engine.tell(EngineStopped())
    desk.settle()
    assert offered(desk) == (False, False)


def test_the_dialog_shows_what_comes_of_each_share_and_asks_for_what_was_chosen(desk: Desk) -> None:
    conversation_id = answered(desk)
    shown = dialog(desk)
    assert shown.shares.button(30).isChecked()
    assert shown.focusWidget() is shown.shares.button(30)
    assert [shown.size_words(percent) for percent in (70, 50, 30)] == [
        "about 106 MB of 148 MB",
        "about 78 MB of 148 MB",
        "about 51 MB of 148 MB",
    ]
    shown.int8.setChecked(True)
    assert shown.size_words(30) == "about 31 MB of 148 MB"
    shown.shares.button(50).setChecked(True)
    shown.compress_button.click()
    desk.settle()
    (request,) = desk.engine.compressions
    assert isinstance(request, Compress)
    assert (request.conversation_id, request.keep, request.method) == (conversation_id, 0.5, CompressMethod.KVZIP)
    assert request.is_int8
    assert [message.text for message in request.messages] == ["hello", "hi"]
    assert desk.window.compressions.dialog is None


def test_forgetting_the_middle_is_a_choice_of_its_own_with_its_own_name(desk: Desk) -> None:
    answered(desk)
    shown = dialog(desk)
    assert shown.compress_button.text() == "Compress"
    assert shown.choice.method is CompressMethod.KVZIP
    shown.forget_middle.setChecked(True)
    assert shown.compress_button.text() == "Forget the middle"
    assert shown.choice.method is CompressMethod.STREAMING
    assert not shown.choice.is_int8


def test_leaving_the_dialog_asks_for_nothing(desk: Desk) -> None:
    answered(desk)
    desk.qtbot.keyClick(dialog(desk), Qt.Key.Key_Escape)
    desk.settle()
    assert desk.engine.compressions == []
    assert desk.window.compressions.dialog is None


def test_the_dialog_speaks_another_language_at_once(desk: Desk) -> None:
    answered(desk)
    shown = dialog(desk)
    desk.window.preferences.choose_language("ko")
    desk.settle()
    assert shown.compress_button.text() == "압축"
    assert shown.size_words(30) == "148 MB 중 약 51 MB"
    shown.reject()


def test_while_it_runs_the_meter_says_so_and_stop_cancels_it(desk: Desk) -> None:
    answered(desk)
    request = compress(desk)
    ids = (request.conversation_id, request.request_id)
    assert state(desk) == "Waiting"
    for event, words in (
        (PhaseChanged(*ids, Phase.RESTORING), "Restoring"),
        (PhaseChanged(*ids, Phase.COMPRESSING), "Compressing"),
        (PhaseChanged(*ids, Phase.COMPRESSING, 2757, 6412, 8.1), "Compressing 42 % · 8 s left"),
    ):
        desk.engine.tell(event)
        desk.settle()
        assert state(desk) == words
    assert offered(desk) == (False, False)
    composer = desk.window.page.composer
    assert (composer.is_busy, composer.button.text()) == (True, "Stop")
    assert composer.hint.text() == "Esc stops it, and this chat's memory stays as it was"
    desk.window.controller.open(None)
    assert composer.hint.text() == "Another chat is being compressed; a message you send now waits its turn"
    assert not composer.is_busy
    desk.window.controller.open(request.conversation_id)
    assert composer.is_busy
    composer.button.click()
    assert desk.engine.cancelled == [request.request_id]
    desk.engine.tell(Failed(request.request_id, request.conversation_id, "cancelled", "Stopped."))
    desk.settle()
    assert notice(desk) == "Stopped; this chat's memory is as it was."
    assert (composer.is_busy, state(desk)) == (False, "Ready")


def test_the_outcome_is_a_notice_and_is_seen_in_meter_and_list_until_it_is_undone(desk: Desk) -> None:
    conversation_id = answered(desk)
    desk.engine.compressed(compress(desk))
    desk.settle()
    assert "took 148 MB and now takes 44 MB: 30 % kept (KVzip)" in notice(desk)
    assert "“Undo compression”" in notice(desk)
    meter, index = desk.window.meter, desk.window.sidebar.model.index_of(conversation_id)
    desk.qtbot.waitUntil(lambda: meter.cache.value.text() == "44 MB")
    assert meter.reading.precision_words() == "30 % kept (KVzip)"
    assert precision_help("kvzip") in meter.cache.toolTip()
    assert precision_help("kvzip") in index.data(Qt.ItemDataRole.ToolTipRole)
    assert index.data(ListRole.WARMTH).kept == 0.3
    desk.window.controller.open(None)
    desk.window.controller.open(conversation_id)
    assert meter.cache.value.text() == "44 MB"
    assert offered(desk) == (True, True)
    action(desk.window.header.more_menu, UNDO).trigger()
    request = desk.engine.compressions[-1]
    assert isinstance(request, Undo)
    assert notice(desk) == ""
    desk.engine.compressed(request, "bf16", 1.0, 148 * MB)
    desk.settle()
    assert "whole again" in notice(desk)
    assert offered(desk) == (True, False)
    desk.qtbot.waitUntil(lambda: meter.cache.value.text() == "148 MB")


def test_the_list_has_it_in_its_menu_for_any_chat(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[tuple[str, bool]]] = []
    monkeypatch.setattr(
        QMenu,
        "popup",
        lambda menu, position: shown.append([(one.text(), one.isEnabled()) for one in menu.actions()]),
    )
    conversation_id = answered(desk)
    desk.window.controller.open(None)
    sidebar = desk.window.sidebar
    index = sidebar.model.index_of(conversation_id)
    sidebar.view.customContextMenuRequested.emit(sidebar.view.visualRect(index).center())
    assert {(COMPRESS, True), (UNDO, False)} <= set(shown[-1])
    sidebar.view.setCurrentIndex(index)
    sidebar.compress_action.trigger()
    assert desk.window.compressions.dialog is not None
    desk.window.compressions.dialog.compress_button.click()
    desk.engine.compressed(desk.engine.compressions[-1], "streaming")
    desk.settle()
    sidebar.view.customContextMenuRequested.emit(sidebar.view.visualRect(index).center())
    assert {(COMPRESS, True), (UNDO, True)} <= set(shown[-1])
    sidebar.undo_compression_action.trigger()
    assert isinstance(desk.engine.compressions[-1], Undo)
    desk.settle()


@pytest.mark.parametrize(
    ("code", "params", "words"),
    [
        ("cannot_compress", {}, "cannot be compressed in this way"),
        ("too_short_to_compress", {"tokens": "80", "least": "512"}, "80 tokens; compressing is worth it from 512"),
        ("too_short_to_compress", {}, "The engine's own words."),
        ("out_of_memory", {}, "Memory ran out while compressing"),
        ("nothing_kept", {}, "Nothing is kept of this chat yet"),
        ("bug", {}, "Your chat is as it was"),
        ("a later code", {}, "The engine's own words."),
    ],
)
def test_a_failure_is_a_sentence_and_leaves_chat_and_draft_alone(
    desk: Desk, code: str, params: dict[str, str], words: str
) -> None:
    conversation_id = answered(desk)
    request = compress(desk)
    desk.window.page.composer.edit.setPlainText("half a thought")
    desk.engine.tell(Failed(request.request_id, conversation_id, code, "The engine's own words.", params))
    desk.settle()
    assert words in notice(desk)
    assert desk.window.page.composer.edit.toPlainText() == "half a thought"
    assert not desk.window.page.composer.is_busy
    assert "hi" in desk.transcript_text()


def test_a_chat_that_is_deleted_meanwhile_ends_it(desk: Desk) -> None:
    conversation_id = answered(desk)
    request = compress(desk)
    desk.window.deletions.delete(conversation_id)
    assert desk.engine.cancelled == [request.request_id]
    desk.window.deletions.commit()
    desk.engine.compressed(request)
    desk.settle()
    assert conversation_id not in desk.window.sidebar.model.warmth


def test_codecs_the_model_does_not_bear_are_told_beside_it(open_desk: OpenDesk) -> None:
    desk = open_desk()
    header = desk.window.header
    for refused, words in (
        (("compact",), "4-bit caches are not used with this model: they changed its answers too much"),
        (("balanced", "compact"), "K 8 bit, V 4 bit (balanced); 4 bit (compact)"),
    ):
        desk.engine.tell(CodecsProbed(dict.fromkeys(refused, 0.4), refused))
        desk.settle()
        assert words in header.model_button.toolTip()
        header.model_menu.aboutToShow.emit()
        assert any(words in one.text() and not one.isEnabled() for one in header.model_menu.actions())
    desk.engine.tell(CodecsProbed({"compact": 0.01}, ()))
    desk.settle()
    assert "changed its answers" not in header.model_button.toolTip()


@pytest.mark.parametrize("precision", [*PRECISIONS, *COMPRESSED])
@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_precision_has_words_a_mark_and_its_price(open_desk: OpenDesk, precision: str, language: str) -> None:
    desk = open_desk(loaded=False)
    desk.window.language.set_mode(language)
    assert precision_words(precision) not in ("", precision)
    assert precision_mark(precision)
    assert precision_help(precision).endswith(".")
    if precision in COMPRESSED:
        assert "30 %" in precision_words(precision, 0.3)
        assert precision_mark(precision, 0.3) == "30 %"


def test_an_unknown_precision_keeps_its_name() -> None:
    assert (precision_words("int2"), precision_mark("int2"), precision_help("int2")) == ("int2", "int2", "")
