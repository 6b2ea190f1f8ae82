"""The sidebar: search, New chat, the conversations in their groups, and undo for a moment after a deletion."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from PySide6.QtCore import QEvent, QModelIndex, QPoint, Qt, Signal, Slot
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QStackedWidget, QVBoxLayout, QWidget

from app.conversation import Conversation, Folder
from ui.icons import pixmap
from ui.sidebar.chat_menu import ChatMenu
from ui.sidebar.conversation_model import ConversationModel
from ui.sidebar.conversation_view import ConversationView
from ui.sidebar.key_label import key_label
from ui.sidebar.midnight import Midnight
from ui.sidebar.new_chat_row import NewChatRow
from ui.sidebar.open_chat import OpenChat
from ui.sidebar.search_field import SearchField
from ui.sidebar.search_results import SearchResults
from ui.sidebar.search_room import Search, SearchRoom, search_titles
from ui.sidebar.told_bar import ToldBar
from ui.theme import Theme
from ui.undo_bar import UndoBar

_WIDTH = 264
_NARROW_WIDTH = 208


class ConversationList(QWidget):
    """Tells what was asked for; what it means is the window's."""

    chosen = Signal(str)
    entered = Signal(str)  # Enter was pressed on a chat that is open: on to its text field
    hit_chosen = Signal(str, object, str)  # a conversation, the id of a message in it or None, the words looked for
    new_requested = Signal()
    new_incognito_requested = Signal()
    renamed = Signal(str, str)
    pin_requested = Signal(str, bool)
    move_requested = Signal(object, object)  # list of conversation ids, the folder's id or None
    duplicate_requested = Signal(str)
    export_requested = Signal(object, str)  # list of conversation ids, "markdown", "html" or "json"
    delete_requested = Signal(object)  # list of conversation ids
    folder_create_requested = Signal(object)  # list of the conversation ids to move into it, perhaps none
    folder_renamed = Signal(int, str)
    folder_delete_requested = Signal(int)
    collapsed_changed = Signal(object)  # frozenset of folder ids
    compress_requested = Signal(str)
    undo_compression_requested = Signal(str)
    menu_about_to_show = Signal(str)

    def __init__(self, theme: Theme, parent: QWidget | None = None, *, search: Search | None = None) -> None:
        """`search` looks through titles and texts; without it titles only are searched."""
        super().__init__(parent)
        self.setObjectName("sidebar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedWidth(_WIDTH)
        self._theme = theme
        self.model = ConversationModel(self)
        self.view = ConversationView(self.model, theme)
        self.open_chat = OpenChat(self.view, self.model, self)
        self.filter = SearchField()
        self.results = SearchResults(theme)
        self.search = SearchRoom(
            self.filter, self.results, self.model, search or (lambda query: search_titles(self.model, query)), self
        )
        self.new_row = NewChatRow(theme)
        self.new_button = self.new_row.button
        self.told_bar = ToldBar()
        self.undo_bar = UndoBar()
        self.undo_bar.focus_after = self.view
        self.menu = ChatMenu(self.view, self.model, self)
        self.pin_action = self.menu.pin
        self.compress_action = self.menu.compress
        self.undo_compression_action = self.menu.undo_compression
        self._logo = QLabel()
        self._filter_key = key_label(self.filter)
        self._stack = QStackedWidget()
        self._midnight = Midnight(self)
        self._lay_out()
        self._wire()
        self._on_theme_changed()
        self._retranslate()

    def show_conversations(self, conversations: Sequence[Conversation], folders: Sequence[Folder] = ()) -> None:
        """Newest first. Selection, scroll position and an open editor stay."""
        with self.open_chat.kept():
            self.model.show_conversations(conversations, folders)
        self.search.chats_changed()

    def select(self, conversation_id: str | None) -> None:
        """Mark the conversation that is shown, without choosing it again."""
        self.open_chat.select(conversation_id)

    def set_collapsed(self, folder_ids: Collection[int]) -> None:
        """The folders that are closed, as they were left."""
        self.model.set_collapsed(folder_ids)

    def set_cost(self, conversation_id: str, tokens: int, seconds: float | None) -> None:
        """What a message to this chat would read first, and how long that takes where that is known."""
        self.model.set_cost(conversation_id, tokens, seconds)

    def edit_title(self, conversation_id: str | None) -> None:
        self._edit(self.model.index_of(conversation_id) if conversation_id else QModelIndex())

    def edit_folder(self, folder_id: int) -> None:
        self._edit(self.model.index_of_folder(folder_id))

    def step(self, step: int) -> None:
        """Open the next chat of the list (1) or the one before (-1), counted from the one that is open."""
        self.open_chat.step(step)

    @Slot(str)
    def tell(self, words: str) -> None:
        """Say for some seconds, at the foot of the list, what happened."""
        self.told_bar.tell(words)

    @Slot()
    def focus_filter(self) -> None:
        self.filter.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.filter.selectAll()

    def set_narrow(self, is_narrow: bool) -> None:
        self.setFixedWidth(_NARROW_WIDTH if is_narrow else _WIDTH)
        self.new_row.set_narrow(is_narrow)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.search.set_shown(True)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.search.set_shown(False)

    @Slot(str)
    def _on_entered(self, conversation_id: str) -> None:
        self.open_chat.choose(conversation_id)
        self.entered.emit(conversation_id)

    @Slot(int, bool)
    def _on_collapse_requested(self, folder_id: int, is_collapsed: bool) -> None:
        before = self.model.collapsed
        self.set_collapsed(before | {folder_id} if is_collapsed else before - {folder_id})
        self.collapsed_changed.emit(self.model.collapsed)

    @Slot()
    def _on_search_started(self) -> None:
        self._stack.setCurrentWidget(self.results)

    @Slot()
    def _on_search_ended(self) -> None:
        had_focus = self.results.view.hasFocus()
        self._stack.setCurrentWidget(self.view)
        if had_focus:
            self.view.setFocus(Qt.FocusReason.OtherFocusReason)

    @Slot(str)
    def _on_filter_text_changed(self, text: str) -> None:
        self._filter_key.setVisible(not text)

    @Slot()
    def _on_new_folder_requested(self) -> None:
        self.folder_create_requested.emit([])

    @Slot(QPoint)
    def _on_menu_requested(self, position: QPoint) -> None:
        index = self.view.indexAt(position)
        ids = self.menu.targets(index)
        if len(ids) == 1:
            self.menu_about_to_show.emit(ids[0])
        self.menu.open_at(position)

    @Slot()
    def _on_theme_changed(self) -> None:
        self._logo.setPixmap(pixmap("ember", self._theme.tokens.text, 20, self.devicePixelRatioF()))
        self.view.viewport().update()

    def _edit(self, index: QModelIndex) -> None:
        if index.isValid():
            self.search.end()
            self.view.setFocus(Qt.FocusReason.OtherFocusReason)  # ends an editor that is open elsewhere
            self.view.setCurrentIndex(index)
            if self.view.state() is not ConversationView.State.EditingState:
                self.view.edit(index)

    def _retranslate(self) -> None:
        self.filter.setPlaceholderText(self.tr("Search"))
        self.filter.setAccessibleName(self.tr("Search titles and texts"))
        self.view.setAccessibleName(self.tr("Chats"))
        self.menu.retranslate()
        self.search.retranslate()
        self.model.refresh_words()

    def _wire(self) -> None:
        self.filter.textChanged.connect(self._on_filter_text_changed)
        self.search.started.connect(self._on_search_started)
        self.search.ended.connect(self._on_search_ended)
        self.search.hit_chosen.connect(self.hit_chosen)
        self.new_row.new_requested.connect(self.new_requested)
        self.new_row.new_incognito_requested.connect(self.new_incognito_requested)
        self.new_row.new_folder_requested.connect(self._on_new_folder_requested)
        self.model.renamed.connect(self.renamed)
        self.model.folder_renamed.connect(self.folder_renamed)
        view, menu = self.view, self.menu
        view.customContextMenuRequested.connect(self._on_menu_requested)
        self.open_chat.chosen.connect(self.chosen)
        view.entered_chat.connect(self._on_entered)
        view.collapse_requested.connect(self._on_collapse_requested)
        view.dropped.connect(self.move_requested)
        menu.pin_requested.connect(self.pin_requested)
        menu.move_requested.connect(self.move_requested)
        menu.folder_create_requested.connect(self.folder_create_requested)
        menu.folder_delete_requested.connect(self.folder_delete_requested)
        menu.duplicate_requested.connect(self.duplicate_requested)
        menu.export_requested.connect(self.export_requested)
        menu.compress_requested.connect(self.compress_requested)
        menu.undo_compression_requested.connect(self.undo_compression_requested)
        menu.delete_requested.connect(self.delete_requested)
        menu.undo_requested.connect(self.undo_bar.undo)
        self._midnight.passed.connect(self.model.refresh_rows)
        self._theme.changed.connect(self._on_theme_changed)

    def _lay_out(self) -> None:
        name = QLabel("Ember")
        name.setProperty("kind", "title")
        head = QHBoxLayout()
        head.setContentsMargins(7, 0, 0, 0)
        head.setSpacing(9)
        head.addWidget(self._logo)
        head.addWidget(name)
        head.addStretch(1)
        self.filter.setFixedHeight(38)
        self._filter_key.setText("Ctrl K")
        self._stack.addWidget(self.view)
        self._stack.addWidget(self.results)
        column = QVBoxLayout(self)
        column.setContentsMargins(10, 16, 11, 8)
        column.setSpacing(10)
        column.addLayout(head)
        column.addSpacing(5)
        column.addWidget(self.filter)
        column.addWidget(self.new_row)
        column.addWidget(self._stack, 1)
        column.addWidget(self.told_bar)
        column.addWidget(self.undo_bar)
