"""Any order of what a person and the engine may do: nothing raises, and what is shown is what is stored."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QInputMethodEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.conversation import MessageState
from app.settings import Settings
from engine.protocol.commands import Generate
from engine.protocol.config import Weights
from engine.protocol.events import (
    CacheState,
    Failed,
    FinishReason,
    LoadStage,
    ModelLoading,
    Phase,
    PhaseChanged,
    SnapshotNotSaved,
)
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import model_info

STEPS = 500
PIECES = [
    "word ",
    "한글 ",
    "\n\n",
    "```python\n",
    "x = 1\n",
    "```\n",
    "- item\n",
    "| a | b |\n|--|--|\n",
    "**",
    "<b>",
    "🙂",
]


class Person:
    """Does one random thing at a time, and plays the engine's part in any order that engine can take."""

    def __init__(self, desk: Desk, rng: random.Random) -> None:
        self.desk = desk
        self.rng = rng
        self.texts: dict[str, str] = {}
        self.done: set[str] = set()
        self.actions: list[Callable[[], object]] = [
            self.new, self.switch, self.switch, self.send, self.send, self.stop, self.delete, self.undo, self.commit,
            self.rename, self.filter, self.compose, self.theme, self.language, self.key, self.load, self.load_fails,
            self.scroll, self.resize, self.type_draft, self.progress, self.progress, self.text, self.text, self.text,
            self.finish, self.finish, self.fail, self.report, self.late_event,
            self.compress, self.undo_compression, self.end_compression, self.end_compression,
        ]  # fmt: skip

    def act(self) -> str:
        action = self.rng.choice(self.actions)
        action()
        if self.rng.random() < 0.7:
            self.desk.settle()
        return action.__name__

    # the person

    def new(self) -> None:
        self.desk.window.sidebar.new_button.click()

    def switch(self) -> None:
        model = self.desk.window.sidebar.model
        if model.rowCount():
            self.desk.window.sidebar.view.setCurrentIndex(model.index(self.rng.randrange(model.rowCount()), 0))

    def send(self) -> None:
        self.desk.window.page.composer.edit.setPlainText(
            self.rng.choice(["hello", "안녕", "  ", "line\nline", "x" * 500])
        )
        QTest.keyClick(self.desk.window.page.composer.edit, Qt.Key.Key_Return)

    def stop(self) -> None:
        QTest.keyClick(self.desk.window, Qt.Key.Key_Escape)

    def delete(self) -> None:
        if self.rng.random() < 0.5:
            self.desk.window.header.delete_requested.emit()
        else:
            self.desk.window.sidebar.view.setFocus()
            QTest.keyClick(self.desk.window.sidebar.view, Qt.Key.Key_Delete)

    def undo(self) -> None:
        self.desk.window.sidebar.undo_bar.undo_button.click()

    def commit(self) -> None:
        self.desk.window.deletions.commit()

    def rename(self) -> None:
        conversations = self.desk.store.conversations()
        if conversations:
            model = self.desk.window.sidebar.model
            model.setData(model.index_of(self.rng.choice(conversations).id), "다른 title")

    def filter(self) -> None:
        self.desk.window.sidebar.filter.setText(self.rng.choice(["", "", "he", "안", "zzz"]))

    def compose(self) -> None:
        event = QInputMethodEvent(self.rng.choice(["", "하", "한"]), [])
        if self.rng.random() < 0.5:
            event.setCommitString("글")
        QApplication.sendEvent(self.desk.window.page.composer.edit, event)

    def theme(self) -> None:
        self.desk.window.preferences.choose_theme(self.rng.choice(["light", "dark", "system"]))

    def language(self) -> None:
        self.desk.window.preferences.choose_language(self.rng.choice(["en", "ko", "system"]))

    def key(self) -> None:
        self.desk.window.preferences.choose_send_key(self.rng.choice(["enter", "enter", "ctrl+enter"]))

    def load(self) -> None:
        request_id = self.desk.session.load_model(model_info().path, Weights.BITS_8)
        self.desk.window.preferences.load_requested.emit(request_id)
        if self.rng.random() < 0.8:
            self.desk.engine.load(request_id)
        else:
            self.desk.engine.tell(ModelLoading(request_id, LoadStage.WEIGHTS, 0.3))

    def load_fails(self) -> None:
        request_id = self.desk.session.load_model(model_info().path, Weights.BITS_4)
        self.desk.window.preferences.load_requested.emit(request_id)
        self.desk.engine.tell(Failed(request_id, None, "model_damaged", "Damaged.", {"path": "/m"}))

    def scroll(self) -> None:
        bar = self.desk.window.page.transcript.verticalScrollBar()
        bar.setValue(self.rng.randint(0, max(1, bar.maximum())))

    def resize(self) -> None:
        self.desk.window.resize(self.rng.randint(620, 1400), self.rng.randint(440, 900))

    def type_draft(self) -> None:
        self.desk.window.page.composer.edit.insertPlainText(self.rng.choice(["draft ", "초안 "]))

    def compress(self) -> None:
        compressions = self.desk.window.compressions
        compressions.ask_how_current()
        if (dialog := compressions.dialog) is not None:
            dialog.forget_middle.setChecked(self.rng.random() < 0.3)
            (dialog.compress_button if self.rng.random() < 0.8 else dialog.cancel_button).click()
            self.desk.settle()

    def undo_compression(self) -> None:
        self.desk.window.compressions.undo_current()

    # the engine

    def end_compression(self) -> None:
        open_ones = [one for one in self.desk.engine.compressions if one.request_id not in self.done]
        if not open_ones:
            return
        request = self.rng.choice(open_ones)
        self.done.add(request.request_id)
        ids = (request.conversation_id, request.request_id)
        self.desk.engine.tell(PhaseChanged(*ids, Phase.COMPRESSING, 1, 2, 0.5))
        if self.rng.random() < 0.6:
            self.desk.engine.compressed(request, self.rng.choice(["kvzip", "streaming-int8", "bf16"]))
        else:
            code = self.rng.choice(["cancelled", "bug", "cannot_compress", "new"])
            self.desk.engine.tell(Failed(request.request_id, request.conversation_id, code, "Failed."))

    def request(self) -> Generate | None:
        open_ones = [one for one in self.desk.engine.generates if one.request_id not in self.done]
        return self.rng.choice(open_ones) if open_ones else None

    def progress(self) -> None:
        if request := self.request():
            ids = (request.conversation_id, request.request_id)
            phase = self.rng.choice(list(Phase))
            self.desk.engine.tell(
                PhaseChanged(*ids, phase, 10, self.rng.choice([0, 100]), self.rng.choice([None, 0.1]))
            )
            self.desk.engine.tell(self.desk.engine.statistics(request, self.rng.choice([None, 0.0, 150.0])))

    def text(self) -> None:
        if request := self.request():
            for _ in range(self.rng.randint(1, 5)):
                piece = self.rng.choice(PIECES)
                self.texts[request.request_id] = self.texts.get(request.request_id, "") + piece
                self.desk.engine.text(request, piece)

    def finish(self) -> None:
        if request := self.request():
            self.done.add(request.request_id)
            reason = self.rng.choice(list(FinishReason))
            self.desk.engine.finish(request, self.texts.get(request.request_id, ""), reason)
            if self.rng.random() < 0.5:
                self.desk.engine.saved(request)

    def fail(self) -> None:
        if request := self.request():
            self.done.add(request.request_id)
            code = self.rng.choice(["bug", "context_overflow", "out_of_memory", "no_model_loaded", "new"])
            self.desk.engine.fail(request, code, "Failed.", prompt_tokens="9", context_length="8")

    def report(self) -> None:
        states = {
            one.id: (self.rng.choice(list(CacheState)), self.precision()) for one in self.desk.store.conversations()
        }
        report_id = self.desk.engine.reports[-1].request_id if self.desk.engine.reports else None
        self.desk.engine.report(report_id, states)

    def precision(self) -> str:
        return self.rng.choice(["bf16", "bf16", "int8", "mixed", "kvzip", "a later one"])

    def late_event(self) -> None:
        """Of a request that has ended, or of a conversation that never was."""
        if self.desk.engine.generates:
            request = self.rng.choice(self.desk.engine.generates)
            if request.request_id in self.done:
                self.desk.engine.text(request, "late")
                self.desk.engine.finish(request, "late")
                self.desk.engine.tell(SnapshotNotSaved(request.conversation_id, request.request_id, "late"))
        self.desk.engine.tell(PhaseChanged("nobody", "nothing", Phase.PREFILL, 1, 2, None))


def check(desk: Desk) -> None:
    """What is shown agrees with what is stored."""
    desk.settle()
    window = desk.window
    current = window.controller.current
    composer = window.page.composer
    if current is None:
        assert not composer.is_busy
        return
    stored = desk.store.messages(current)
    assert composer.is_busy == (desk.session.is_busy(current) or desk.session.is_compressing(current))
    if window.page.is_empty:
        assert stored == []
        return
    transcript = window.page.transcript
    shown = [widget.text for widget in transcript.built() if widget is not transcript.live]
    settled = [message.text for message in stored if message.state is not MessageState.STREAMING]
    assert shown == settled[len(settled) - len(shown) :]  # perhaps without older ones, which are not built yet
    assert shown or not settled
    assert (transcript.live is not None) == any(m.state is MessageState.STREAMING for m in stored)


@pytest.mark.parametrize("run", range(3))
def test_any_order_of_actions(open_desk: OpenDesk, run: int) -> None:
    seed = int(os.environ.get("EMBER_FUZZ_SEED", random.randrange(2**32)))
    print(f"EMBER_FUZZ_SEED={seed}")
    desk = open_desk(
        Settings(language="en"), fill=lambda desk: [desk.add_conversation(f"chat {n}", n) for n in range(4)]
    )
    person = Person(desk, random.Random(seed))
    names: list[str] = []
    for step in range(STEPS):
        names.append(person.act())
        if step % 10 == 0:
            try:
                check(desk)
            except AssertionError:
                print("the last actions:", names[-25:])
                raise
    check(desk)
    assert desk.engine.generates
