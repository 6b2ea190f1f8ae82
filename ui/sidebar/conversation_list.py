"""The sidebar: filter, New chat, the conversations, and undo for a moment after one was deleted."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QItemSelectionModel, QModelIndex, QPoint, Qt, Signal, Slot
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QListView, QMenu, QPushButton, QVBoxLayout, QWidget

from app.conversation import Conversation
from ui.icons import icon, pixmap
from ui.sidebar.conversation_delegate import ConversationDelegate
from ui.sidebar.conversation_model import ConversationModel, ListRole
from ui.sidebar.undo_bar import UndoBar
from ui.theme import Theme

_WIDTH = 264
_NARROW_WIDTH = 208


class ConversationList(QWidget):
    """Tells what was asked for; what it means is the window's."""

    chosen = Signal(str)
    new_requested = Signal()
    delete_requested = Signal(str)
    renamed = Signal(str, str)
    pin_requested = Signal(str, bool)
    compress_requested = Signal(str)
    undo_compression_requested = Signal(str)
    menu_about_to_show = Signal(str)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("sidebar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedWidth(_WIDTH)
        self._theme = theme
        self._current: str | None = None
        self.model = ConversationModel(self)
        self.view = QListView()
        self.filter = QLineEdit()
        self.new_button = QPushButton()
        self.undo_bar = UndoBar()
        self._logo = QLabel()
        self._filter_key = _key_label(self.filter)
        self._new_key = _key_label(self.new_button)
        self._delete = QAction(self)
        self._rename = QAction(self)
        self.pin_action = QAction(self, checkable=True)
        self.compress_action = QAction(self)
        self.undo_compression_action = QAction(self)
        self._prepare_view()
        self._lay_out()
        self.filter.textChanged.connect(self._on_filter_changed)
        self.new_button.clicked.connect(self.new_requested)
        self.model.renamed.connect(self.renamed)
        self.pin_action.triggered.connect(self._on_pin_triggered)
        self.compress_action.triggered.connect(self._on_compress_triggered)
        self.undo_compression_action.triggered.connect(self._on_undo_compression_triggered)
        theme.changed.connect(self._on_theme_changed)
        self._on_theme_changed()
        self._retranslate()

    def show_conversations(self, conversations: list[Conversation]) -> None:
        self.model.show_conversations(conversations)
        self.select(self._current)

    def select(self, conversation_id: str | None) -> None:
        """Mark the conversation that is shown, without choosing it again."""
        self._current = conversation_id
        selection = self.view.selectionModel()
        selection.blockSignals(True)
        index = self.model.index_of(conversation_id) if conversation_id else QModelIndex()
        if index.isValid():
            selection.setCurrentIndex(index, QItemSelectionModel.SelectionFlag.ClearAndSelect)
            self.view.scrollTo(index)
        else:
            selection.clear()
        selection.blockSignals(False)
        self.view.viewport().update()

    def edit_title(self, conversation_id: str | None) -> None:
        index = self.model.index_of(conversation_id) if conversation_id else QModelIndex()
        if index.isValid():
            self.view.setCurrentIndex(index)
            self.view.edit(index)

    @Slot()
    def focus_filter(self) -> None:
        self.filter.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.filter.selectAll()

    def set_narrow(self, is_narrow: bool) -> None:
        self.setFixedWidth(_NARROW_WIDTH if is_narrow else _WIDTH)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot(QModelIndex, QModelIndex)
    def _on_current_changed(self, current: QModelIndex, _previous: QModelIndex) -> None:
        conversation_id = current.data(ListRole.CONVERSATION_ID) if current.isValid() else None
        if conversation_id and conversation_id != self._current:
            self._current = conversation_id
            self.chosen.emit(conversation_id)

    @Slot(str)
    def _on_filter_changed(self, text: str) -> None:
        self.model.set_filter(text)
        self.select(self._current)
        self._filter_key.setVisible(not text)

    @Slot()
    def _on_delete_triggered(self) -> None:
        if conversation_id := self._conversation_at(self.view.currentIndex()):
            self.delete_requested.emit(conversation_id)

    @Slot()
    def _on_rename_triggered(self) -> None:
        if self._conversation_at(self.view.currentIndex()):
            self.view.edit(self.view.currentIndex())

    @Slot(bool)
    def _on_pin_triggered(self, is_pinned: bool) -> None:
        if conversation_id := self._conversation_at(self.view.currentIndex()):
            self.pin_requested.emit(conversation_id, is_pinned)

    @Slot()
    def _on_compress_triggered(self) -> None:
        if conversation_id := self._conversation_at(self.view.currentIndex()):
            self.compress_requested.emit(conversation_id)

    @Slot()
    def _on_undo_compression_triggered(self) -> None:
        if conversation_id := self._conversation_at(self.view.currentIndex()):
            self.undo_compression_requested.emit(conversation_id)

    @Slot(QPoint)
    def _on_menu_requested(self, position: QPoint) -> None:
        index = self.view.indexAt(position)
        if conversation_id := self._conversation_at(index):
            self.menu_about_to_show.emit(conversation_id)
            self.pin_action.setChecked(index.data(ListRole.IS_PINNED))
            menu = QMenu(self)
            menu.addActions([self.pin_action, self.compress_action, self.undo_compression_action])
            menu.addSeparator()
            menu.addActions([self._rename, self._delete])
            menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
            menu.popup(self.view.viewport().mapToGlobal(position))

    @Slot()
    def _on_theme_changed(self) -> None:
        colour = self._theme.tokens.text
        self.new_button.setIcon(icon("plus", colour))
        self._logo.setPixmap(pixmap("ember", colour, 20, self.devicePixelRatioF()))
        self.view.viewport().update()

    def _conversation_at(self, index: QModelIndex) -> str | None:
        return index.data(ListRole.CONVERSATION_ID) if index.isValid() else None

    def _retranslate(self) -> None:
        self.filter.setPlaceholderText(self.tr("Search titles"))
        self.filter.setAccessibleName(self.tr("Search titles"))
        self.new_button.setText(self.tr("New chat"))
        self.new_button.setAccessibleName(self.tr("New chat"))
        self.view.setAccessibleName(self.tr("Chats"))
        self._delete.setText(self.tr("Delete"))
        self._rename.setText(self.tr("Rename"))
        self.pin_action.setText(self.tr("Keep in memory"))
        self.compress_action.setText(self.tr("Compress this chat's memory…"))
        self.undo_compression_action.setText(self.tr("Undo compression"))
        self.model.refresh_words()

    def _prepare_view(self) -> None:
        view = self.view
        view.setModel(self.model)
        view.setItemDelegate(ConversationDelegate(self._theme, view))
        view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        view.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        view.setEditTriggers(QListView.EditTrigger.NoEditTriggers)
        view.setMouseTracking(True)
        view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        view.customContextMenuRequested.connect(self._on_menu_requested)
        view.selectionModel().currentChanged.connect(self._on_current_changed)
        for action, key, slot in (
            (self._delete, QKeySequence(Qt.Key.Key_Delete), self._on_delete_triggered),
            (self._rename, QKeySequence(Qt.Key.Key_F2), self._on_rename_triggered),
        ):
            action.setShortcut(key)
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)  # only while the list has the focus
            action.triggered.connect(slot)
            view.addAction(action)

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
        self.new_button.setFixedHeight(38)
        self.new_button.setProperty("kind", "new")
        self._filter_key.setText("Ctrl K")
        self._new_key.setText("Ctrl N")
        column = QVBoxLayout(self)
        column.setContentsMargins(10, 16, 11, 8)
        column.setSpacing(10)
        column.addLayout(head)
        column.addSpacing(5)
        column.addWidget(self.filter)
        column.addWidget(self.new_button)
        column.addWidget(self.view, 1)
        column.addWidget(self.undo_bar)


def _key_label(owner: QWidget) -> QLabel:
    """A key's name at the right end inside of `owner`."""
    label = QLabel(owner)
    label.setProperty("kind", "key")
    label.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
    row = QHBoxLayout(owner)
    row.setContentsMargins(0, 0, 10, 0)
    row.addStretch(1)
    row.addWidget(label, 0, Qt.AlignmentFlag.AlignVCenter)
    return label
