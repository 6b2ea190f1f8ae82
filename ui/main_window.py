"""The window: makes its parts and wires them to the session. No logic of its own beyond who hears of what."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from PySide6.QtCore import QByteArray, QEvent, QSize, Qt, Slot
from PySide6.QtGui import QCloseEvent, QKeySequence, QResizeEvent, QShortcut
from PySide6.QtWidgets import QHBoxLayout, QMainWindow, QVBoxLayout, QWidget

from app.chat_session import ChatSession
from app.conversation import Conversation
from app.conversation_store import ConversationStore
from app.engine_bridge import EngineBridge
from app.engine_port import EnginePort
from app.errors import AppError
from app.model_library import ModelLibrary
from app.paths import resources_dir
from app.settings import Settings
from engine.protocol.commands import ReportCache
from engine.protocol.events import CodecsProbed, Failed, ModelLoaded, PressureActed
from ui.chat_controller import ChatController
from ui.chat_page import ChatPage
from ui.header import Header
from ui.icons import app_icon
from ui.language import Language
from ui.live_replies import LiveReplies
from ui.memory.compressions import Compressions
from ui.meter.meter_feed import MeterFeed
from ui.meter.strip import MeterStrip
from ui.settings.preferences import Preferences
from ui.sidebar.conversation_list import ConversationList
from ui.sidebar.deletions import Deletions
from ui.sidebar.warmth_feed import WarmthFeed
from ui.theme import Theme

_NARROW_PX = 860


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
    ) -> None:
        super().__init__()
        self._session = session
        self._store = store
        self._bridge = bridge
        self._engine = engine
        self._live = LiveReplies()
        self.language = Language(resources_dir() / "translations", self)
        self.theme = Theme(resources_dir() / "themes", self)
        self.language.set_mode(settings.language)
        self.theme.set_mode(settings.theme)
        self.sidebar = ConversationList(self.theme)
        self.header = Header(self.theme, library, settings)
        self.page = ChatPage(self.theme, self.header)
        self.meter = MeterStrip(self.theme)
        self._meter_feed = MeterFeed(self.meter, self._live, self.sidebar.model.title_of)
        self._warmth = WarmthFeed(self.sidebar.model)
        self.controller = ChatController(session, store, self.page, self._meter_feed, self._live, self)
        self.deletions = Deletions(session, store, bridge, self.controller, self._live, self.sidebar.undo_bar, self)
        self.compressions = Compressions(session, self.controller, self._live, self.sidebar.model, self)
        self.preferences = Preferences(settings, on_settings_changed, session, library, self.theme, self.language, self)
        self.page.composer.set_send_key(settings.send_with)
        session.on_storage_error = self.controller.show_error
        self._lay_out(settings.window_geometry)
        self._wire()
        self._refresh_conversations()
        self.controller.open(settings.last_conversation or None)
        self.page.composer.edit.setFocus(Qt.FocusReason.OtherFocusReason)

    # what the parts ask for

    @Slot(object)
    def _on_event_arrived(self, event: object) -> None:
        if getattr(event, "conversation_id", None) in self.deletions.hidden and not isinstance(event, Failed):
            self._live.take(event)
            return
        if not self._live.take(event):
            return
        self._warmth.take(event)
        self._meter_feed.take(event)
        if not self.compressions.take(event):
            self.controller.take(event)
        if isinstance(event, ModelLoaded) or (isinstance(event, Failed) and event.conversation_id is None):
            self.header.show_model(self._session.model if self._live.has_model else None, self._live.is_loading)
            self._ask_for_cache_report()
        elif isinstance(event, PressureActed):
            self._ask_for_cache_report()
        elif isinstance(event, CodecsProbed):
            self.header.show_refused_codecs(event.refused)
        self.controller.refresh_words()
        self._show_what_can_be_compressed()

    @Slot()
    def _show_what_can_be_compressed(self) -> None:
        current = self.controller.current
        self.header.show_compression(self.compressions.can_compress(current), self.compressions.can_undo(current))

    @Slot(str)
    def _on_chat_menu_about_to_show(self, conversation_id: str) -> None:
        self.sidebar.compress_action.setEnabled(self.compressions.can_compress(conversation_id))
        self.sidebar.undo_compression_action.setEnabled(self.compressions.can_undo(conversation_id))

    @Slot(object)
    def _on_opened(self, conversation: Conversation | None) -> None:
        self.sidebar.select(conversation.id if conversation else None)
        self.header.show_conversation(conversation.title if conversation else None)
        self.header.show_pinned(conversation is not None and conversation.is_pinned)
        self._show_what_can_be_compressed()
        title = conversation.title if conversation else ""
        self.setWindowTitle(f"{title} – Ember" if title else "Ember")

    @Slot()
    def _on_new_requested(self) -> None:
        self.controller.open(None)
        self.page.composer.edit.setFocus(Qt.FocusReason.ShortcutFocusReason)

    @Slot(str, str)
    def _on_renamed(self, conversation_id: str, title: str) -> None:
        try:
            self._store.set_title(conversation_id, title)
        except AppError as error:
            self.controller.show_error(error)
        self._refresh_conversations()
        if conversation_id == self.controller.current:
            self.header.show_conversation(title)
            self.setWindowTitle(f"{title} – Ember")

    @Slot(str, bool)
    def _on_pin_requested(self, conversation_id: str, is_pinned: bool) -> None:
        try:
            self._session.set_pinned(conversation_id, is_pinned)
        except AppError as error:
            self.controller.show_error(error)
            return
        self._refresh_conversations()
        if conversation_id == self.controller.current:
            self.header.show_pinned(is_pinned)

    @Slot(bool)
    def _on_pin_current_requested(self, is_pinned: bool) -> None:
        if self.controller.current is not None:
            self._on_pin_requested(self.controller.current, is_pinned)

    @Slot()
    def _on_rename_current_requested(self) -> None:
        self.sidebar.edit_title(self.controller.current)

    @Slot(object)
    def _on_settings_changed(self, settings: Settings) -> None:
        self.header.show_settings(settings)
        self.page.composer.set_send_key(settings.send_with)

    @Slot(str)
    def _on_load_requested(self, request_id: str) -> None:
        self._live.load_requested(request_id)
        self.controller.load_requested()
        self.header.show_model(None, is_loading=True)
        self._meter_feed.refresh()
        self.controller.refresh_words()

    @Slot()
    def _on_escape_pressed(self) -> None:
        if self.page.composer.is_busy:
            self.controller.stop()
        else:
            self.page.composer.edit.setFocus(Qt.FocusReason.ShortcutFocusReason)

    @Slot()
    def _refresh_conversations(self) -> None:
        try:
            conversations = self._store.conversations()
        except AppError as error:
            self.controller.show_error(error)
            return
        hidden = self.deletions.hidden
        self.sidebar.show_conversations([one for one in conversations if one.id not in hidden])

    @Slot()
    def _ask_for_cache_report(self) -> None:
        request_id = uuid4().hex
        self._warmth.whole_report_requested(request_id)
        self._engine.submit(ReportCache(request_id))

    # Qt overrides

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self.controller.refresh_words()
            self._meter_feed.refresh()
        super().changeEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.sidebar.set_narrow(self.width() < _NARROW_PX)

    def closeEvent(self, event: QCloseEvent) -> None:
        self.controller.keep_draft(is_closing=True)
        self.deletions.commit()
        geometry = bytes(self.saveGeometry().toBase64().data()).decode("ascii")
        self.preferences.change(window_geometry=geometry, last_conversation=self.controller.current or "")
        super().closeEvent(event)

    def _lay_out(self, geometry: str) -> None:
        self.setWindowIcon(app_icon())
        self.setMinimumSize(QSize(620, 440))
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

    def _wire(self) -> None:
        self._bridge.event_arrived.connect(self._on_event_arrived)
        self.controller.opened.connect(self._on_opened)
        self.controller.conversations_changed.connect(self._refresh_conversations)
        self.controller.turn_ended.connect(self._ask_for_cache_report)
        sidebar, header, preferences = self.sidebar, self.header, self.preferences
        sidebar.chosen.connect(self.controller.open)
        sidebar.new_requested.connect(self._on_new_requested)
        sidebar.delete_requested.connect(self.deletions.delete)
        sidebar.renamed.connect(self._on_renamed)
        sidebar.pin_requested.connect(self._on_pin_requested)
        self.deletions.changed.connect(self._refresh_conversations)
        self.deletions.deleted.connect(self._warmth.forget)
        header.model_chosen.connect(preferences.choose_model)
        header.weights_chosen.connect(preferences.choose_weights)
        header.theme_chosen.connect(preferences.choose_theme)
        header.language_chosen.connect(preferences.choose_language)
        header.send_key_chosen.connect(preferences.choose_send_key)
        preferences.changed.connect(self._on_settings_changed)
        preferences.load_requested.connect(self._on_load_requested)
        preferences.load_failed.connect(self._on_event_arrived)
        header.pin_requested.connect(self._on_pin_current_requested)
        header.rename_requested.connect(self._on_rename_current_requested)
        header.delete_requested.connect(self.deletions.delete_current)
        compressions = self.compressions
        header.compress_requested.connect(compressions.ask_how_current)
        header.undo_compression_requested.connect(compressions.undo_current)
        sidebar.compress_requested.connect(compressions.ask_how)
        sidebar.undo_compression_requested.connect(compressions.undo)
        sidebar.menu_about_to_show.connect(self._on_chat_menu_about_to_show)
        compressions.asked.connect(self._show_what_can_be_compressed)
        compressions.ended.connect(self._ask_for_cache_report)
        for key, slot in (
            (QKeySequence.StandardKey.New, self._on_new_requested),
            ("Ctrl+K", sidebar.focus_filter),
            ("Esc", self._on_escape_pressed),
        ):
            QShortcut(QKeySequence(key), self, slot)
