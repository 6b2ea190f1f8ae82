"""Who hears of what in the window: its parts, its menus and its keys connected. No logic of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence, QShortcut

from app.engine_bridge import EngineBridge
from ui.shortcuts import bind_shortcuts

if TYPE_CHECKING:
    from ui.main_window import MainWindow


def connect(window: MainWindow, bridge: EngineBridge) -> None:
    """Once, when all parts are there."""
    bridge.event_arrived.connect(window.take)
    window.controller.opened.connect(window.show_opened)
    window.controller.conversations_changed.connect(window.refresh_conversations)
    window.watch.turn_ended.connect(window.ask_for_cache_report)
    window.meter.clicked.connect(window.memory.toggle)
    window.drafts.new_draft_changed.connect(window.keep_new_draft)
    window.controller.cost_changed.connect(window.cost.refresh)
    window.lab.runs.changed.connect(window.show_measuring)
    window.page.composer.hint.action.clicked.connect(window.lab.stop)
    window.page.composer.hint.action.clicked.connect(window.focus_composer)
    _connect_sidebar(window)
    _connect_header(window)
    _connect_exchange(window)
    _connect_keys(window)


def _connect_sidebar(window: MainWindow) -> None:
    sidebar, compressions = window.sidebar, window.compressions
    sidebar.chosen.connect(window.controller.open)
    sidebar.entered.connect(window.focus_composer)
    sidebar.hit_chosen.connect(window.controller.show_message)
    sidebar.new_requested.connect(window.new_chat)
    sidebar.new_incognito_requested.connect(window.new_incognito_chat)
    sidebar.delete_requested.connect(window.deletions.delete)
    sidebar.folder_delete_requested.connect(window.deletions.delete_folder)
    sidebar.collapsed_changed.connect(window.keep_collapsed)
    sidebar.compress_requested.connect(compressions.ask_how)
    sidebar.undo_compression_requested.connect(compressions.undo)
    sidebar.menu_about_to_show.connect(window.prepare_chat_menu)
    window.changes.changed.connect(window.refresh_conversations)
    window.message_changes.forked.connect(window.open_fork)
    window.deletions.changed.connect(window.refresh_conversations)
    window.deletions.deleted.connect(window.warmth.forget)
    window.deletions.deleted.connect(window.memory.chats_deleted)
    compressions.asked.connect(window.show_what_can_be_compressed)
    compressions.ended.connect(window.ask_for_cache_report)


def _connect_header(window: MainWindow) -> None:
    header, preferences = window.header, window.preferences
    header.model_chosen.connect(window.choose_model)
    header.weights_chosen.connect(preferences.choose_weights)
    header.theme_chosen.connect(preferences.choose_theme)
    header.language_chosen.connect(preferences.choose_language)
    header.send_key_chosen.connect(preferences.choose_send_key)
    preferences.changed.connect(window.use_settings)
    preferences.save_failed.connect(window.controller.show_error)
    preferences.load_requested.connect(window.show_load)
    preferences.load_failed.connect(window.take)
    header.new_incognito_requested.connect(window.new_incognito_chat)
    header.chat_settings_requested.connect(window.dialogs.open_chat_settings)
    header.settings_requested.connect(window.dialogs.open_settings)
    header.shortcuts_requested.connect(window.dialogs.open_shortcuts)
    header.lab_requested.connect(window.lab.open)
    header.memory_requested.connect(window.memory.toggle)
    header.quit_requested.connect(window.close)
    header.pin_requested.connect(window.changes.set_current_pinned)
    header.rename_requested.connect(window.changes.rename_current)
    header.duplicate_requested.connect(window.changes.duplicate_current)
    header.delete_requested.connect(window.deletions.delete_current)
    header.compress_requested.connect(window.compressions.ask_how_current)
    header.undo_compression_requested.connect(window.compressions.undo_current)


def _connect_exchange(window: MainWindow) -> None:
    exchange, header = window.exchange, window.header
    window.sidebar.export_requested.connect(exchange.export_chats)
    header.export_requested.connect(window.export_current)
    header.export_all_requested.connect(exchange.export_all)
    header.import_requested.connect(exchange.import_files)
    exchange.imported.connect(window.refresh_conversations)
    exchange.failed.connect(window.controller.show_error)
    exchange.told.connect(window.sidebar.tell)


def _connect_keys(window: MainWindow) -> None:
    transcript, composer = window.page.transcript, window.page.composer
    transcript.focus_left.connect(window.focus_composer)
    undo = QShortcut(QKeySequence("Ctrl+Z"), transcript)
    undo.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)  # texts being written have an undo of their own
    undo.activated.connect(window.message_changes.undo_last)
    composer.edit_last_requested.connect(window.message_changes.edit_last)
    bind_shortcuts(
        window,
        {
            "new_chat": window.new_chat,
            "new_incognito": window.new_incognito_chat,
            "search": window.sidebar.focus_filter,
            "previous_chat": partial(window.sidebar.step, -1),
            "next_chat": partial(window.sidebar.step, 1),
            "focus_composer": window.focus_composer,
            "focus_transcript": transcript.setFocus,
            "stop": window.stop_or_focus_composer,
            "regenerate": window.message_changes.regenerate_last,
            "jump_to_end": transcript.jump_to_end,
            "choose_model": window.header.open_model_menu,
            "chat_settings": window.dialogs.open_chat_settings,
            "settings": window.dialogs.open_settings,
            "pin": window.changes.toggle_current_pinned,
            "duplicate": window.changes.duplicate_current,
            "compress": window.compressions.ask_how_current,
            "undo_compression": window.compressions.undo_current,
            "export_chat": partial(window.export_current, "markdown"),
            "import_chats": window.exchange.import_files,
            "lab": window.lab.open,
            "memory_panel": window.memory.toggle,
            "more": window.header.open_more_menu,
            "shortcuts": window.dialogs.open_shortcuts,
            "quit": window.close,
        },
    )
