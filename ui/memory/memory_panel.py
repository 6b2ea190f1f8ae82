"""Fills the memory panel from the engine's events, and asks the engine for what its buttons want. GUI thread.

Asks for the blocks and redraws at most twice a second each, so that an open panel takes nothing from the reply, and
never while it is hidden. What the plots and the diary show is kept all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from time import monotonic
from uuid import uuid4

from PySide6.QtCore import QObject, QTimer, Slot
from PySide6.QtWidgets import QWidget

from app.engine_port import EnginePort
from engine.protocol.commands import FreeNow, ReportBlocks
from engine.protocol.events import (
    BlocksReported,
    CacheReported,
    Compressed,
    EngineStopped,
    Finished,
    ModelLoaded,
    PressureActed,
    SnapshotSaved,
    StatisticsChanged,
)
from ui.conversation_changes import ConversationChanges
from ui.memory.chat_row import ChatState
from ui.memory.compressions import Compressions
from ui.memory.diary import Diary
from ui.memory.history import History
from ui.memory.memory_page import MemoryPage
from ui.settings.preferences import Preferences
from ui.sidebar.conversation_model import ConversationModel
from ui.theme import Theme

ASK_MS, DRAW_MS = 520, 520  # a coarse timer may come a twentieth early


def _now() -> datetime:
    return datetime.now().astimezone()


class MemoryPanel(QObject):
    """`page` is made when it is opened for the first time."""

    def __init__(
        self,
        engine: EnginePort,
        conversations: ConversationModel,
        changes: ConversationChanges,
        compressions: Compressions,
        preferences: Preferences,
        theme: Theme,
        window: QWidget,
        *,
        is_busy: Callable[[str], bool],
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """`is_busy`: whether something is being done in a conversation, so that its memory is needed."""
        super().__init__(window)
        self._engine = engine
        self._conversations = conversations
        self._changes = changes
        self._compressions = compressions
        self._preferences = preferences
        self._theme = theme
        self._window = window
        self._is_busy = is_busy
        self._clock = clock
        self.speed = History(is_continuous=False)
        self.kv_bytes = History(is_continuous=True)
        self.diary = Diary()
        self.page: MemoryPage | None = None
        self._awaited: str | None = None
        self._asked_at = self._drawn_at = float("-inf")
        self._is_outdated = False
        self._report: BlocksReported | None = None
        self._disk_bytes: dict[str, int] = {}  # by conversation, as last reported
        self._is_report_new = False
        self._bytes_per_token: int | None = None  # of the model that is loaded
        self._ask_timer = QTimer(self, singleShot=True)
        self._ask_timer.timeout.connect(self._ask)
        self._draw_timer = QTimer(self, singleShot=True)
        self._draw_timer.timeout.connect(self._draw)
        preferences.changed.connect(self._on_settings_changed)
        changes.changed.connect(self._on_chats_changed)

    @property
    def is_seen(self) -> bool:
        return self.page is not None and self.page.isVisible() and not self.page.isMinimized()

    @Slot()
    def toggle(self) -> None:
        """Open it, bring it to the front, or close it where it is in front."""
        if self.page is not None and self.page.isVisible() and self.page.isActiveWindow():
            self.page.close()
        else:
            self.open()

    @Slot()
    def open(self) -> None:
        page = self.page or self._make_page()
        page.show_settings(self._preferences.settings)
        page.show()
        page.raise_()
        page.activateWindow()

    @Slot()
    def close(self) -> None:
        if self.page is not None:
            self.page.close()

    def take(self, event: object) -> None:
        if self.diary.take(event, self._conversations.title_of, self._clock):
            self._show_soon()
        match event:
            case BlocksReported() if event.request_id == self._awaited:
                self._awaited = None
                self._report, self._is_report_new = event, True
                self.kv_bytes.add(event.memory_bytes)
                self._show_soon()
                if self._is_outdated:
                    self._ask_soon()
            case StatisticsChanged():
                if event.decode_tps:
                    self.speed.add(event.decode_tps)
                self.kv_bytes.add(event.all_caches_bytes)
                self._show_soon()
                self._ask_soon()
            case CacheReported():
                self.kv_bytes.add(event.memory_bytes)
                self._disk_bytes |= {row.conversation_id: row.disk_bytes for row in event.conversations}
                self._show_soon()
                self._ask_soon()
            case PressureActed():
                self.kv_bytes.add(event.memory_bytes)
                self._ask_soon()
            case ModelLoaded():
                self._bytes_per_token = event.model.kv_bytes_per_token
                self._ask_soon()
            case Finished() | Compressed() | SnapshotSaved():
                self._ask_soon()
            case EngineStopped():
                self._awaited = None

    # slots

    @Slot()
    def _ask(self) -> None:
        """One question at a time; what changes meanwhile is asked for after the answer."""
        if not self.is_seen:
            return
        if self._awaited is not None:
            self._is_outdated = True
            return
        self._is_outdated = False
        self._asked_at = monotonic()
        self._awaited = uuid4().hex
        self._engine.submit(ReportBlocks(self._awaited))

    @Slot()
    def _draw(self) -> None:
        if not self.is_seen:
            return
        assert self.page is not None
        self._drawn_at = monotonic()
        if self._is_report_new and self._report is not None:
            self._is_report_new = False
            self.page.show_report(self._report, self._state_of, self._bytes_per_token)
        else:
            self.page.show_states()
        self.page.show_history()

    @Slot()
    def _on_shown(self) -> None:
        self._ask_soon()
        self._draw()

    @Slot(object)
    def _on_settings_changed(self, settings: object) -> None:
        if self.page is not None:
            self.page.show_settings(self._preferences.settings)
            self._ask_soon()

    @Slot()
    def _on_chats_changed(self) -> None:
        self._show_soon()

    @Slot()
    def chats_deleted(self) -> None:
        """What they had is gone, too."""
        self._ask_soon()

    @Slot(str)
    def _on_free_requested(self, conversation_id: str) -> None:
        if not self._is_busy(conversation_id):
            self._engine.submit(FreeNow((conversation_id,)))
            self._ask_soon()

    @Slot()
    def _on_free_all_requested(self) -> None:
        self._engine.submit(FreeNow())
        self._ask_soon()

    @Slot(str)
    def _on_compress_requested(self, conversation_id: str) -> None:
        self._compressions.ask_how(conversation_id, self.page)

    @Slot(int)
    def _on_budget_chosen(self, budget_mb: int) -> None:
        self._preferences.set_value("memory_budget_mb", budget_mb)

    @Slot(object)
    def _on_disk_cap_chosen(self, cap_mb: int) -> None:
        self._preferences.set_value("disk_cap_mb", cap_mb)

    # private

    def _make_page(self) -> MemoryPage:
        page = self.page = MemoryPage(self._theme, self.speed, self.kv_bytes, self.diary, self._window)
        page.shown.connect(self._on_shown)
        page.pin_requested.connect(self._changes.set_pinned)
        page.free_requested.connect(self._on_free_requested)
        page.free_all_requested.connect(self._on_free_all_requested)
        page.compress_requested.connect(self._on_compress_requested)
        page.undo_requested.connect(self._compressions.undo)
        page.budget_chosen.connect(self._on_budget_chosen)
        page.disk_cap_chosen.connect(self._on_disk_cap_chosen)
        return page

    def _ask_soon(self) -> None:
        if self.is_seen and not self._ask_timer.isActive():
            self._ask_timer.start(_rest_ms(ASK_MS, self._asked_at))

    def _show_soon(self) -> None:
        if self.is_seen and not self._draw_timer.isActive():
            self._draw_timer.start(_rest_ms(DRAW_MS, self._drawn_at))

    def _state_of(self, conversation_id: str) -> ChatState:
        known = next((one for one in self._conversations.conversations if one.id == conversation_id), None)
        return ChatState(
            title=known.title if known else "",
            is_known=known is not None,
            is_pinned=known.is_pinned if known else False,
            can_free=not self._is_busy(conversation_id),
            can_compress=self._compressions.can_compress(conversation_id),
            can_undo=self._compressions.can_undo(conversation_id),
            disk_bytes=self._disk_bytes.get(conversation_id, 0),
        )


def _rest_ms(gap_ms: int, last_s: float) -> int:
    """Until `gap_ms` have passed since `last_s` of the clock; 0 where they have."""
    return int(max(0.0, gap_ms - (monotonic() - last_s) * 1000))
