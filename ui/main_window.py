"""The window: makes its parts, hands events on, and does what menus and keys ask of all of it. See `window_wiring`."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from PySide6.QtCore import QByteArray, QEvent, QSize, Qt, Slot
from PySide6.QtGui import QCloseEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QMainWindow, QVBoxLayout, QWidget

from app.chat_session import ChatSession
from app.conversation import Conversation
from app.conversation_store import ConversationStore
from app.engine_bridge import EngineBridge
from app.engine_port import EnginePort
from app.errors import AppError
from app.model_library import ModelLibrary
from app.paths import resources_dir
from app.presets import Presets
from app.settings import LoadedSettings, Settings
from engine.protocol.commands import ReportCache
from engine.protocol.events import CodecsProbed, Estimated, Failed, ModelLoaded, PressureActed
from ui.chat_controller import ChatController
from ui.chat_page import ChatPage
from ui.composer.cost_feed import CostFeed
from ui.conversation_changes import ConversationChanges
from ui.dialogs import Dialogs
from ui.drafts import Drafts
from ui.header import Header
from ui.icons import app_icon
from ui.lab.lab_runs import RunState
from ui.lab.lab_window import CacheLab
from ui.language import Language
from ui.live_replies import LiveReplies
from ui.memory.compressions import Compressions
from ui.memory.memory_panel import MemoryPanel
from ui.message_changes import MessageChanges
from ui.meter.meter_feed import MeterFeed
from ui.meter.strip import MeterStrip
from ui.notices import Notices
from ui.sending import Sending
from ui.settings.preferences import Preferences
from ui.sidebar.conversation_list import ConversationList
from ui.sidebar.deletions import Deletions
from ui.sidebar.exchange_actions import ExchangeActions
from ui.sidebar.row_costs import RowCosts
from ui.sidebar.warmth_feed import WarmthFeed
from ui.state_words import StateWords
from ui.theme import Theme
from ui.turn_watch import TurnWatch
from ui.window_wiring import connect

_NARROW_PX = 860
_MOST_DIGITS = 18


class MainWindow(QMainWindow):
    def __init__(
        self,
        session: ChatSession,
        store: ConversationStore,
        bridge: EngineBridge,
        engine: EnginePort,
        library: ModelLibrary,
        settings: Settings,
        on_settings_changed: Callable[[Settings], None],
        presets: Presets,
        loaded: LoadedSettings | None = None,
    ) -> None:
        """`loaded`: the settings as they were read, with what was wrong in their file."""
        super().__init__()
        self._session = session
        self._store = store
        self._engine = engine
        self._live = LiveReplies()
        self.language = Language(resources_dir() / "translations", self)
        self.theme = Theme(resources_dir() / "themes", self)
        self.language.set_mode(settings.language)
        self.theme.set_mode(settings.theme)
        self.sidebar = ConversationList(self.theme, search=store.search)
        self.header = Header(self.theme, library, settings)
        self.page = ChatPage(self.theme, self.header)
        self.meter = MeterStrip(self.theme)
        self._meter_feed = MeterFeed(self.meter, self._live, self.sidebar.model.title_of)
        self.warmth = WarmthFeed(self.sidebar.model)
        notices = Notices()
        self.drafts = Drafts(session, store, self.page.composer, self)
        self.words = StateWords(session, self.page, self._live, notices, lambda: self.controller.current, self)
        self.controller = ChatController(
            session, store, self.page, self._meter_feed, self._live, notices, self.drafts, self.words, self
        )
        self.watch = TurnWatch(
            session,
            self.controller,
            self.page.transcript,
            self._meter_feed,
            self._live,
            notices,
            self.words,
            self,
        )
        self.sending = Sending(session, self.controller, self.watch, self.drafts, self.page, self)
        self.cost = CostFeed(session.costs, self.page.composer, self)
        self.row_costs = RowCosts(self.sidebar.view, self.sidebar.model, session.costs.of_going_on, self)
        self.deletions = Deletions(session, store, bridge, self.controller, self._live, self.sidebar.undo_bar, self)
        self.changes = ConversationChanges(session, store, self.controller, self.sidebar, self)
        self.message_changes = MessageChanges(
            session, store, self.controller, self.watch, self.page.transcript, self.sidebar.undo_bar, self
        )
        self.exchange = ExchangeActions(
            store, self, hidden=lambda: self.deletions.hidden, language=lambda: self.language.current
        )
        self.compressions = Compressions(session, self.controller, self.watch, self._live, self.sidebar.model, self)
        self.preferences = Preferences(settings, on_settings_changed, session, library, self.theme, self.language, self)
        self.memory = MemoryPanel(
            engine,
            self.sidebar.model,
            self.changes,
            self.compressions,
            self.preferences,
            self.theme,
            self,
            is_busy=lambda one: session.is_busy(one) or session.is_compressing(one),
        )
        self.lab = CacheLab(engine, session, library, self.theme, self)
        self.dialogs = Dialogs(self.preferences, presets, library, store, self.controller, self.changes, loaded, self)
        self._use_send_key(settings)
        session.on_storage_error = self.controller.show_error
        session.on_load = self.show_load
        self._lay_out(settings.window_geometry)
        connect(self, bridge)
        self.sidebar.set_collapsed(_numbers(settings.collapsed_folders))
        self.refresh_conversations()
        self.controller.open(settings.last_conversation or None)
        self.drafts.begin_with(settings.new_draft)
        self.page.composer.edit.setFocus(Qt.FocusReason.OtherFocusReason)

    # what the parts, the menus and the keys ask for

    @Slot(object)
    def take(self, event: object) -> None:
        if self.lab.take(event):
            return
        is_of_row = self.row_costs.take(event)
        if (
            isinstance(event, Estimated)
            and not is_of_row
            and event.conversation_id
            and self.page.composer.draft.is_blank
        ):
            self.sidebar.set_cost(event.conversation_id, event.new_tokens, event.seconds)
        if self.cost.take(event) or is_of_row:
            return
        if getattr(event, "conversation_id", None) in self.deletions.hidden and not isinstance(event, Failed):
            self._live.take(event)
            return
        if not self._live.take(event):
            return
        self.warmth.take(event)
        self._meter_feed.take(event)
        self.memory.take(event)
        if not self.compressions.take(event):
            self.words.take(event)
            self.watch.take(event)
        if isinstance(event, ModelLoaded) or (isinstance(event, Failed) and event.conversation_id is None):
            self.header.show_model(self._session.model if self._live.has_model else None, self._live.is_loading)
            self.ask_for_cache_report()
        elif isinstance(event, PressureActed):
            self.ask_for_cache_report()
        elif isinstance(event, CodecsProbed):
            self.header.show_refused_codecs(event.refused)
        self.words.refresh()
        self.show_what_can_be_compressed()

    @Slot()
    def show_what_can_be_compressed(self) -> None:
        current = self.controller.current
        self.header.show_compression(self.compressions.can_compress(current), self.compressions.can_undo(current))

    @Slot(str)
    def prepare_chat_menu(self, conversation_id: str) -> None:
        self.sidebar.compress_action.setEnabled(self.compressions.can_compress(conversation_id))
        self.sidebar.undo_compression_action.setEnabled(self.compressions.can_undo(conversation_id))

    @Slot(object)
    def show_opened(self, conversation: Conversation | None) -> None:
        self.sidebar.select(conversation.id if conversation else None)
        self._show_head(conversation)
        self.show_what_can_be_compressed()
        self.cost.show_conversation(conversation.id if conversation else None)

    def _show_head(self, conversation: Conversation | None) -> None:
        title = conversation.title if conversation else ""
        is_incognito = conversation.is_incognito if conversation else self.controller.is_new_incognito
        self.header.show_conversation(title if conversation else None, is_incognito=is_incognito)
        self.page.empty.show_incognito(is_incognito)
        self.header.show_pinned(conversation is not None and conversation.is_pinned)
        self.setWindowTitle(f"{title} – Ember" if title else "Ember")

    @Slot()
    def new_chat(self) -> None:
        self.controller.open(None)
        self.focus_composer()

    @Slot()
    def new_incognito_chat(self) -> None:
        self.controller.open(None, is_incognito=True)
        self.focus_composer()

    @Slot(object)
    def keep_collapsed(self, folder_ids: frozenset[int]) -> None:
        self.preferences.change(collapsed_folders=",".join(str(one) for one in sorted(folder_ids)))

    @Slot(str)
    def keep_new_draft(self, text: str) -> None:
        self.preferences.change(new_draft=text)

    @Slot(str)
    def choose_model(self, name: str) -> None:
        """For the chat that is shown as well, where it has a model of its own."""
        current = self.controller.current
        try:
            if current is not None and self._store.conversation(current).model is not None:
                self._store.set_model(current, name)
        except AppError as error:
            self.controller.show_error(error)
        self.preferences.choose_model(name)

    @Slot(object)
    def use_settings(self, settings: Settings) -> None:
        self.header.show_settings(settings)
        self._use_send_key(settings)
        self.cost.refresh()

    @Slot(str)
    def show_load(self, request_id: str) -> None:
        self.lab.stop()  # a model that was chosen would wait for it
        self._live.load_requested(request_id)
        self.words.load_requested()
        self.header.show_model(None, is_loading=True)
        self._meter_feed.refresh()
        self.words.refresh()

    @Slot()
    def show_measuring(self) -> None:
        """The cache lab has begun to measure, or is done; it tells of every step as well."""
        running, live = self.lab.runs.running, self._live
        measurement = running.request_id if running is not None else None
        is_ending = running is not None and running.state is RunState.STOPPING
        if (measurement, is_ending) != (live.measurement, live.is_measurement_ending):
            live.measurement, live.is_measurement_ending = measurement, is_ending
            self._meter_feed.refresh()
            self.words.refresh()

    @Slot()
    def stop_or_focus_composer(self) -> None:
        if self.page.composer.is_busy:
            self.sending.stop()
        else:
            self.focus_composer()

    @Slot()
    def focus_composer(self) -> None:
        self.page.composer.edit.setFocus(Qt.FocusReason.ShortcutFocusReason)

    @Slot()
    def refresh_conversations(self) -> None:
        try:
            conversations, folders = self._store.conversations(), self._store.folders()
        except AppError as error:
            self.controller.show_error(error)
            return
        hidden, hidden_folders = self.deletions.hidden, self.deletions.hidden_folders
        self.sidebar.show_conversations(
            [one for one in conversations if one.id not in hidden],
            [one for one in folders if one.id not in hidden_folders],
        )
        current = next((one for one in conversations if one.id == self.controller.current), None)
        if current is not None:
            self._show_head(current)

    @Slot(str)
    def export_current(self, file_format: str) -> None:
        if self.controller.current is not None:
            self.exchange.export_chats([self.controller.current], file_format)

    @Slot(str)
    def open_fork(self, conversation_id: str) -> None:
        self.refresh_conversations()
        self.controller.open(conversation_id)

    @Slot()
    def ask_for_cache_report(self) -> None:
        request_id = uuid4().hex
        self.warmth.whole_report_requested(request_id)
        self._engine.submit(ReportCache(request_id))

    # Qt overrides

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self.words.refresh()
            self._meter_feed.refresh()
        super().changeEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.sidebar.set_narrow(self.width() < _NARROW_PX)

    def closeEvent(self, event: QCloseEvent) -> None:
        self.exchange.stop()
        self.memory.close()
        self.lab.close()
        self.controller.close()
        self.deletions.commit()
        geometry = bytes(self.saveGeometry().toBase64().data()).decode("ascii")
        self.preferences.change(window_geometry=geometry, last_conversation=self._reopened())
        super().closeEvent(event)

    def _lay_out(self, geometry: str) -> None:
        self.setWindowIcon(app_icon())
        self.setMinimumSize(QSize(600, 340))
        self.resize(1280, 820)
        if geometry:
            self.restoreGeometry(QByteArray.fromBase64(geometry.encode("ascii", "ignore")))
        upper = QHBoxLayout()
        upper.setSpacing(0)
        upper.addWidget(self.sidebar)
        upper.addWidget(self.page, 1)
        central = QWidget()
        column = QVBoxLayout(central)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addLayout(upper, 1)
        column.addWidget(self.meter)
        self.setCentralWidget(central)

    def _reopened(self) -> str:
        """The chat to begin with next time: "" for one that is gone by then."""
        current = self.controller.current
        try:
            return "" if current is None or self._store.conversation(current).is_incognito else current
        except AppError:
            return ""

    def _use_send_key(self, settings: Settings) -> None:
        self.page.composer.set_send_key(settings.send_with)
        self.page.transcript.set_send_key(settings.send_with)


def _numbers(text: str) -> list[int]:
    """Of a list as "1,5"; what is no number in it is left out."""
    return [int(one) for one in text.split(",") if one.isascii() and one.isdigit() and len(one) <= _MOST_DIGITS]
