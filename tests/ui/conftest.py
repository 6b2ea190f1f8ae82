"""A whole window over the real store, session and bridge, with an engine that does only what a test tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QLocale, QTimer
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.chat_session import ChatSession
from app.conversation_store import ConversationStore
from app.engine_bridge import EngineBridge
from app.model_library import ModelLibrary
from app.paths import resources_dir
from app.presets import Presets
from app.settings import Settings
from engine.protocol.commands import Generate, Role
from tests.ui.fakes import FakeEngine
from ui.main_window import MainWindow
from ui.theme import Theme

OpenDesk = Callable[..., "Desk"]


@dataclass
class Desk:
    qtbot: QtBot
    store: ConversationStore
    bridge: EngineBridge
    engine: FakeEngine
    session: ChatSession
    library: ModelLibrary
    presets: Presets
    saved: list[Settings] = field(default_factory=list)
    window: MainWindow = field(init=False)

    def open(self, settings: Settings) -> None:
        self.window = MainWindow(
            self.session,
            self.store,
            self.bridge,
            self.engine,
            self.library,
            settings,
            self._on_settings_changed,
            self.presets,
        )
        self.window.resize(1200, 800)
        self.window.show()
        self.qtbot.waitExposed(self.window)

    def _on_settings_changed(self, settings: Settings) -> None:
        self.session.settings_changed(settings)
        self.saved.append(settings)

    def settle(self) -> None:
        """Let everything that was told or put off arrive."""
        for _ in range(3):
            QCoreApplication.sendPostedEvents()
            QCoreApplication.processEvents()

    def load(self) -> None:
        self.engine.load()
        self.settle()

    def send(self, text: str) -> Generate:
        """Type and press the button. The request the engine got."""
        self.window.page.composer.edit.setPlainText(text)
        self.window.page.composer.button.click()
        self.settle()
        return self.engine.generates[-1]

    def flush(self) -> None:
        """Draw what has arrived of the reply that is shown."""
        live = self.window.page.transcript.live
        assert live is not None
        self.qtbot.waitUntil(lambda: live.is_drawn)

    def add_conversation(self, title: str, num_turns: int = 1, reply: str = "reply") -> str:
        conversation = self.store.create_conversation()
        with self.store.transaction():
            for number in range(num_turns):
                self.store.add_message(conversation.id, Role.USER, f"question {number}")
                self.store.add_message(conversation.id, Role.ASSISTANT, f"{reply} {number}")
        self.store.set_title(conversation.id, title)
        return conversation.id

    def transcript_text(self) -> str:
        return "\n".join(widget.text for widget in self.window.page.transcript.built())


@pytest.fixture(autouse=True)
def english_numbers() -> Iterator[None]:
    before = QLocale()
    QLocale.setDefault(QLocale(QLocale.Language.English, QLocale.Country.UnitedStates))
    yield
    QLocale.setDefault(before)


@pytest.fixture
def open_desk(qtbot: QtBot, data_dir: Path) -> Iterator[OpenDesk]:
    """Call it, perhaps with a function that fills the store first, to get a window."""
    store = ConversationStore(data_dir / "ember.db")
    bridge = EngineBridge()
    engine = FakeEngine(bridge)
    session = ChatSession(store, engine, Settings())
    bridge.event_arrived.connect(session.handle)
    desk = Desk(
        qtbot,
        store,
        bridge,
        engine,
        session,
        ModelLibrary(data_dir / "none", data_dir),
        Presets(data_dir / "presets.json"),
    )

    def opened(
        settings: Settings | None = None,
        *,
        loaded: bool = True,
        fill: Callable[[Desk], object] | None = None,
        reopens: bool = False,
    ) -> Desk:
        """`reopens`: as at a start of the program, the newest chat is shown before the window is laid out."""
        if fill is not None:
            fill(desk)
        settings = settings or Settings(language="en", theme="light")
        desk.open(replace(settings, last_conversation=store.conversations()[0].id) if reopens else settings)
        if loaded:
            desk.load()
        return desk

    yield opened
    if hasattr(desk, "window"):
        desk.window.close()
        desk.settle()
        desk.window.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        left = [widget for widget in QApplication.topLevelWidgets() if widget.isVisible()]
        assert not left, f"windows left behind: {left}"
    timers = [timer for timer in bridge.findChildren(QTimer) if timer.isActive()]
    assert not timers
    session.close()
    store.close()


@pytest.fixture
def desk(open_desk: OpenDesk) -> Desk:
    """The plain case: an English, light window with a model loaded and no conversation."""
    return open_desk()


@pytest.fixture
def theme(qtbot: QtBot) -> Theme:
    result = Theme(resources_dir() / "themes")
    result.set_mode("light")
    return result
