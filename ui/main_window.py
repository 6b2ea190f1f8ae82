"""The window: makes its parts and wires them to the session. No logic of its own beyond who hears of what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from ui.header import Header
from ui.icons import app_icon
from ui.language import Language
from ui.live_replies import LiveReplies
from ui.memory.compressions import Compressions
from ui.message_changes import MessageChanges
from ui.meter.meter_feed import MeterFeed
from ui.meter.strip import MeterStrip
from ui.settings.preferences import Preferences
from ui.shortcuts import bind_shortcuts
from ui.sidebar.conversation_list import ConversationList
from ui.sidebar.deletions import Deletions
from ui.sidebar.exchange_actions import ExchangeActions
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
        presets: Presets,
        loaded: LoadedSettings | None = None,
    ) -> None:
        """`loaded`: the settings as they were read, with what was wrong in their file."""
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
        self.sidebar = ConversationList(self.theme, search=store.search)
        self.header = Header(self.theme, library, settings)
        self.page = ChatPage(self.theme, self.header)
        self.meter = MeterStrip(self.theme)
        self._meter_feed = MeterFeed(self.meter, self._live, self.sidebar.model.title_of)
        self._warmth = WarmthFeed(self.sidebar.model)
        self.controller = ChatController(session, store, self.page, self._meter_feed, self._live, self)
        self.cost = CostFeed(session, self.page.composer, self)
        self.deletions = Deletions(session, store, bridge, self.controller, self._live, self.sidebar.undo_bar, self)
        self.changes = ConversationChanges(session, store, self.controller, self.sidebar, self)
        self.message_changes = MessageChanges(
            session, store, self.controller, self.page.transcript, self.sidebar.undo_bar, self
        )
        self.exchange = ExchangeActions(
            store, self, hidden=lambda: self.deletions.hidden, language=lambda: self.language.current
        )
        self.compressions = Compressions(session, self.controller, self._live, self.sidebar.model, self)
        self.preferences = Preferences(settings, on_settings_changed, session, library, self.theme, self.language, self)
        self.dialogs = Dialogs(self.preferences, presets, library, store, self.controller, self.changes, loaded, self)
        self._use_send_key(settings)
        session.on_storage_error = self.controller.show_error
        session.on_load = self._on_load_requested
        self._lay_out(settings.window_geometry)
        self._wire()
        self.sidebar.set_collapsed([int(one) for one in settings.collapsed_folders.split(",") if one.isdigit()])
        self._refresh_conversations()
        self.controller.open(settings.last_conversation or None)
        self.page.composer.edit.setFocus(Qt.FocusReason.OtherFocusReason)

    # what the parts ask for

    @Slot(object)
    def _on_event_arrived(self, event: object) -> None:
        if isinstance(event, Estimated) and event.conversation_id:
            self.sidebar.set_cost(event.conversation_id, event.new_tokens, event.seconds)
        if self.cost.take(event):
            return
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
        self._show_head(conversation)
        self._show_what_can_be_compressed()
        self.cost.show_conversation(conversation.id if conversation else None)

    def _show_head(self, conversation: Conversation | None) -> None:
        title = conversation.title if conversation else ""
        is_incognito = conversation.is_incognito if conversation else self.controller.is_new_incognito
        self.header.show_conversation(title if conversation else None, is_incognito=is_incognito)
        self.page.empty.show_incognito(is_incognito)
        self.header.show_pinned(conversation is not None and conversation.is_pinned)
        self.setWindowTitle(f"{title} – Ember" if title else "Ember")

    @Slot()
    def _on_new_requested(self) -> None:
        self.controller.open(None)
        self._focus_composer()

    @Slot()
    def _on_new_incognito_requested(self) -> None:
        self.controller.open(None, is_incognito=True)
        self._focus_composer()

    @Slot(str, object, str)
    def _on_hit_chosen(self, conversation_id: str, message_id: int | None, query: str) -> None:
        self.controller.show_message(conversation_id, message_id, query)

    @Slot(object)
    def _on_collapsed_changed(self, folder_ids: frozenset[int]) -> None:
        self.preferences.change(collapsed_folders=",".join(str(one) for one in sorted(folder_ids)))

    @Slot(str)
    def _on_model_chosen(self, name: str) -> None:
        """For the chat that is shown as well, where it has a model of its own."""
        current = self.controller.current
        try:
            if current is not None and self._store.conversation(current).model is not None:
                self._store.set_model(current, name)
        except AppError as error:
            self.controller.show_error(error)
        self.preferences.choose_model(name)

    @Slot(object)
    def _on_settings_changed(self, settings: Settings) -> None:
        self.header.show_settings(settings)
        self._use_send_key(settings)
        self.cost.refresh()

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
            self._focus_composer()

    @Slot()
    def _focus_composer(self) -> None:
        self.page.composer.edit.setFocus(Qt.FocusReason.ShortcutFocusReason)

    @Slot()
    def _refresh_conversations(self) -> None:
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
    def _on_export_current_requested(self, file_format: str) -> None:
        if self.controller.current is not None:
            self.exchange.export_chats([self.controller.current], file_format)

    @Slot(str)
    def _on_forked(self, conversation_id: str) -> None:
        self._refresh_conversations()
        self.controller.open(conversation_id)

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
        self.exchange.stop()
        self.controller.keep_draft(is_closing=True)
        self.deletions.commit()
        geometry = bytes(self.saveGeometry().toBase64().data()).decode("ascii")
        self.preferences.change(window_geometry=geometry, last_conversation=self.controller.current or "")
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

    def _wire(self) -> None:
        self._bridge.event_arrived.connect(self._on_event_arrived)
        self.controller.opened.connect(self._on_opened)
        self.controller.conversations_changed.connect(self._refresh_conversations)
        self.controller.turn_ended.connect(self._ask_for_cache_report)
        self.controller.cost_changed.connect(self.cost.refresh)
        self._wire_sidebar()
        self._wire_header()
        self._wire_exchange()
        self._wire_keys()

    def _wire_sidebar(self) -> None:
        sidebar, compressions = self.sidebar, self.compressions
        sidebar.chosen.connect(self.controller.open)
        sidebar.entered.connect(self._focus_composer)
        sidebar.hit_chosen.connect(self._on_hit_chosen)
        sidebar.new_requested.connect(self._on_new_requested)
        sidebar.new_incognito_requested.connect(self._on_new_incognito_requested)
        sidebar.delete_requested.connect(self.deletions.delete)
        sidebar.folder_delete_requested.connect(self.deletions.delete_folder)
        sidebar.collapsed_changed.connect(self._on_collapsed_changed)
        sidebar.compress_requested.connect(compressions.ask_how)
        sidebar.undo_compression_requested.connect(compressions.undo)
        sidebar.menu_about_to_show.connect(self._on_chat_menu_about_to_show)
        self.changes.changed.connect(self._refresh_conversations)
        self.message_changes.forked.connect(self._on_forked)
        self.deletions.changed.connect(self._refresh_conversations)
        self.deletions.deleted.connect(self._warmth.forget)
        compressions.asked.connect(self._show_what_can_be_compressed)
        compressions.ended.connect(self._ask_for_cache_report)

    def _wire_header(self) -> None:
        header, preferences = self.header, self.preferences
        header.model_chosen.connect(self._on_model_chosen)
        header.weights_chosen.connect(preferences.choose_weights)
        header.theme_chosen.connect(preferences.choose_theme)
        header.language_chosen.connect(preferences.choose_language)
        header.send_key_chosen.connect(preferences.choose_send_key)
        preferences.changed.connect(self._on_settings_changed)
        preferences.save_failed.connect(self.controller.show_error)
        preferences.load_requested.connect(self._on_load_requested)
        preferences.load_failed.connect(self._on_event_arrived)
        header.new_incognito_requested.connect(self._on_new_incognito_requested)
        header.chat_settings_requested.connect(self.dialogs.open_chat_settings)
        header.settings_requested.connect(self.dialogs.open_settings)
        header.shortcuts_requested.connect(self.dialogs.open_shortcuts)
        header.quit_requested.connect(self.close)
        header.pin_requested.connect(self.changes.set_current_pinned)
        header.rename_requested.connect(self.changes.rename_current)
        header.duplicate_requested.connect(self.changes.duplicate_current)
        header.delete_requested.connect(self.deletions.delete_current)
        header.compress_requested.connect(self.compressions.ask_how_current)
        header.undo_compression_requested.connect(self.compressions.undo_current)

    def _wire_exchange(self) -> None:
        exchange, header = self.exchange, self.header
        self.sidebar.export_requested.connect(exchange.export_chats)
        header.export_requested.connect(self._on_export_current_requested)
        header.export_all_requested.connect(exchange.export_all)
        header.import_requested.connect(exchange.import_files)
        exchange.imported.connect(self._refresh_conversations)
        exchange.failed.connect(self.controller.show_error)
        exchange.told.connect(self.sidebar.tell)

    def _wire_keys(self) -> None:
        transcript, composer = self.page.transcript, self.page.composer
        transcript.focus_left.connect(self._focus_composer)
        composer.edit_last_requested.connect(self.message_changes.edit_last)
        bind_shortcuts(
            self,
            {
                "new_chat": self._on_new_requested,
                "new_incognito": self._on_new_incognito_requested,
                "search": self.sidebar.focus_filter,
                "previous_chat": partial(self.sidebar.step, -1),
                "next_chat": partial(self.sidebar.step, 1),
                "focus_composer": self._focus_composer,
                "focus_transcript": transcript.setFocus,
                "stop": self._on_escape_pressed,
                "jump_to_end": transcript.jump_to_end,
                "choose_model": self.header.open_model_menu,
                "chat_settings": self.dialogs.open_chat_settings,
                "settings": self.dialogs.open_settings,
                "pin": self.changes.toggle_current_pinned,
                "duplicate": self.changes.duplicate_current,
                "compress": self.compressions.ask_how_current,
                "undo_compression": self.compressions.undo_current,
                "export_chat": partial(self._on_export_current_requested, "markdown"),
                "import_chats": self.exchange.import_files,
                "more": self.header.open_more_menu,
                "shortcuts": self.dialogs.open_shortcuts,
                "quit": self.close,
            },
        )

    def _use_send_key(self, settings: Settings) -> None:
        self.page.composer.set_send_key(settings.send_with)
        self.page.transcript.set_send_key(settings.send_with)
