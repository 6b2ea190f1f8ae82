"""What a person may do to the window, in any order: one random action at a time, with the engine that is there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QInputMethodEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.chat_session import ChatSession
from app.conversation import ChatOptions, MessageState
from app.conversation_store import ConversationStore
from app.errors import AppError
from engine.protocol.config import ContextPolicy
from ui.main_window import MainWindow

TEXTS = ["hello", "안녕하세요", "  ", "line\nline", "x" * 500, "$x^2$ and `code`", "<b>no markup</b>", "쭉"]


class Person:
    """Acts through the window's own widgets and signals. `folder` is where it finds files."""

    def __init__(
        self,
        window: MainWindow,
        session: ChatSession,
        store: ConversationStore,
        rng: random.Random,
        folder: Path,
    ) -> None:
        self.window = window
        self.session = session
        self.store = store
        self.rng = rng
        self._folder = folder
        self.actions: list[Callable[[], object]] = [
            self.new, self.new_incognito, self.switch, self.switch, self.switch, self.send, self.send, self.send,
            self.stop, self.delete, self.undo, self.commit, self.rename, self.pin, self.duplicate, self.folder,
            self.move, self.delete_folder, self.search, self.hit, self.end_search, self.compose, self.theme,
            self.language, self.send_key, self.policy, self.scroll, self.resize, self.type_draft, self.attach,
            self.regenerate, self.regenerate, self.edit, self.continue_reply, self.version, self.version,
            self.delete_message, self.fork, self.open_editor, self.edit_last, self.message_keys, self.chat_settings,
            self.settings, self.compress, self.undo_compression, self.step, self.jump, self.close_dialog,
        ]  # fmt: skip

    def new(self) -> None:
        self.window.sidebar.new_button.click()

    def new_incognito(self) -> None:
        self.window.header.new_incognito_requested.emit()

    def switch(self) -> None:
        model = self.window.sidebar.model
        if model.rowCount():
            self.window.sidebar.view.setCurrentIndex(model.index(self.rng.randrange(model.rowCount()), 0))

    def step(self) -> None:
        self.window.sidebar.step(self.rng.choice([-1, 1]))

    def send(self) -> None:
        self.window.page.composer.edit.setPlainText(self.rng.choice(TEXTS))
        if self.rng.random() < 0.5:
            QTest.keyClick(self.window.page.composer.edit, Qt.Key.Key_Return)
        else:
            self.window.page.composer.button.click()

    def stop(self) -> None:
        QTest.keyClick(self.window, Qt.Key.Key_Escape)

    def delete(self) -> None:
        if self.rng.random() < 0.5:
            self.window.header.delete_requested.emit()
        else:
            self.window.sidebar.view.setFocus()
            QTest.keyClick(self.window.sidebar.view, Qt.Key.Key_Delete)

    def undo(self) -> None:
        self.window.sidebar.undo_bar.undo_button.click()

    def commit(self) -> None:
        self.window.deletions.commit()

    def rename(self) -> None:
        if conversation_id := self._some_chat():
            model = self.window.sidebar.model
            model.setData(model.index_of(conversation_id), "다른 title")

    def pin(self) -> None:
        self.window.changes.toggle_current_pinned()

    def duplicate(self) -> None:
        if len(self.store.conversations()) < 25:
            self.window.changes.duplicate_current()

    def folder(self) -> None:
        conversation_id = self._some_chat()
        self.window.sidebar.folder_create_requested.emit([conversation_id] if conversation_id else [])

    def move(self) -> None:
        if conversation_id := self._some_chat():
            folder = self.rng.choice([None, *(one.id for one in self.store.folders())])
            self.window.sidebar.move_requested.emit([conversation_id], folder)

    def delete_folder(self) -> None:
        if folders := self.store.folders():
            self.window.sidebar.folder_delete_requested.emit(self.rng.choice(folders).id)

    def search(self) -> None:
        self.window.sidebar.filter.setText(self.rng.choice(["he", "안", "zzz", "word", '"', "-"]))

    def hit(self) -> None:
        if hits := self.store.search(self.rng.choice(["hello", "한글", "question"])):
            hit = self.rng.choice(hits)
            self.window.sidebar.hit_chosen.emit(hit.conversation_id, hit.message_id, "hello")

    def end_search(self) -> None:
        self.window.sidebar.filter.clear()

    def compose(self) -> None:
        event = QInputMethodEvent(self.rng.choice(["", "하", "한"]), [])
        if self.rng.random() < 0.5:
            event.setCommitString("글")
        QApplication.sendEvent(self.window.page.composer.edit, event)

    def theme(self) -> None:
        self.window.preferences.choose_theme(self.rng.choice(["light", "dark", "system"]))

    def language(self) -> None:
        self.window.preferences.choose_language(self.rng.choice(["en", "ko", "system"]))

    def send_key(self) -> None:
        self.window.preferences.choose_send_key(self.rng.choice(["enter", "enter", "ctrl+enter"]))

    def policy(self) -> None:
        self.window.preferences.change(context_policy=self.rng.choice(list(ContextPolicy)))

    def scroll(self) -> None:
        bar = self.window.page.transcript.verticalScrollBar()
        bar.setValue(self.rng.randint(0, max(1, bar.maximum())))

    def resize(self) -> None:
        self.window.resize(self.rng.randint(620, 1400), self.rng.randint(440, 900))

    def type_draft(self) -> None:
        self.window.page.composer.edit.insertPlainText(self.rng.choice(["draft ", "초안 "]))

    def attach(self) -> None:
        path = self._folder / self.rng.choice(["notes.txt", "missing.txt", "binary.bin"])
        self.window.page.composer.accept_files([path])

    def regenerate(self) -> None:
        if message_id := self._some_message(is_reply=True):
            self.window.page.transcript.regenerate_requested.emit(message_id)

    def edit(self) -> None:
        if message_id := self._some_message():
            self.window.page.transcript.edit_requested.emit(message_id, self.rng.choice(TEXTS))

    def continue_reply(self) -> None:
        if message_id := self._some_message(is_reply=True):
            self.window.page.transcript.continue_requested.emit(message_id)

    def version(self) -> None:
        if message_id := self._some_message():
            self.window.page.transcript.version_requested.emit(message_id, self.rng.choice([-1, 1]))

    def delete_message(self) -> None:
        if message_id := self._some_message():
            self.window.page.transcript.delete_requested.emit(message_id, self.rng.random() < 0.5)

    def fork(self) -> None:
        message_id = self._some_message()
        if message_id and len(self.store.conversations()) < 25:
            self.window.page.transcript.fork_requested.emit(message_id)

    def open_editor(self) -> None:
        if message_id := self._some_message():
            self.window.page.transcript.begin_edit(message_id)

    def edit_last(self) -> None:
        self.window.message_changes.edit_last()

    def message_keys(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            QTest.keyClick(
                self.window,
                self.rng.choice([Qt.Key.Key_Up, Qt.Key.Key_Up, Qt.Key.Key_Down]),
                Qt.KeyboardModifier.AltModifier,
            )

    def chat_settings(self) -> None:
        options = ChatOptions(temperature=self.rng.choice([None, 0.0, 1.0]))
        self.window.dialogs._keep(self.window.controller.current, self.rng.choice(["", "Be brief."]), options, None)

    def settings(self) -> None:
        self.rng.choice([self.window.dialogs.open_settings, self.window.dialogs.open_shortcuts])()

    def close_dialog(self) -> None:
        if (dialog := self.window.dialogs.open_dialog) is not None:
            dialog.close()

    def compress(self) -> None:
        compressions = self.window.compressions
        compressions.ask_how_current()
        if (dialog := compressions.dialog) is not None:
            dialog.forget_middle.setChecked(self.rng.random() < 0.3)
            (dialog.compress_button if self.rng.random() < 0.8 else dialog.cancel_button).click()

    def undo_compression(self) -> None:
        self.window.compressions.undo_current()

    def jump(self) -> None:
        self.window.page.transcript.jump_to_end()

    def _some_chat(self) -> str | None:
        conversations = self.store.conversations()
        return self.rng.choice(conversations).id if conversations else None

    def _some_message(self, *, is_reply: bool = False) -> int | None:
        """Of the chat that is shown, or now and then of any."""
        current = self.window.controller.current if self.rng.random() < 0.95 else self._some_chat()
        messages = self.store.messages(current) if current else []
        ids = [message.id for message in messages if not is_reply or message.role == "assistant"]
        return self.rng.choice(ids) if ids else None


def check(window: MainWindow, session: ChatSession, store: ConversationStore) -> None:
    """What is shown agrees with what is stored."""
    current = window.controller.current
    composer = window.page.composer
    if current is None:
        assert not composer.is_busy
        return
    stored = store.messages(current)
    assert composer.is_busy == (session.is_busy(current) or session.is_compressing(current))
    if window.page.is_empty:
        assert stored == []
        return
    transcript = window.page.transcript
    by_id = {message.id: message for message in stored}
    assert [message.id for message in transcript.messages] == [message.id for message in stored]
    shown = [widget for widget in transcript.built() if widget is not transcript.live]
    assert [widget.text for widget in shown] == [by_id[widget.message.id].text for widget in shown]
    is_streaming = any(message.state is MessageState.STREAMING for message in stored)
    assert (transcript.live is not None) <= is_streaming  # it may be out of sight
    bar = transcript.verticalScrollBar()
    assert 0 <= bar.value() <= bar.maximum()


def tree_is_sound(store: ConversationStore, conversation_id: str) -> bool:
    """Every message that is shown hangs on the one before it."""
    try:
        messages = store.messages(conversation_id)
    except AppError:
        return False
    return all(after.parent_id == before.id for before, after in itertools.pairwise(messages))
