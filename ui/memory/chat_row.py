"""One chat in the memory panel: its title, what it takes, its page map, and what can be done with it."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from engine.protocol.events import BlockPlace, ConversationBlocks
from ui import numbers
from ui.memory.cells import CellTiles
from ui.memory.page_map import PageMap
from ui.memory.page_words import chat_words, place_words
from ui.memory.place_bar import PlaceBar
from ui.memory.precision_words import FULL, bytes_of_kinds, kind_of
from ui.sidebar.row_words import pin_help, title_words
from ui.theme import Theme
from ui.tokens import SPACE_L, SPACE_M, SPACE_XS

_HEAD_PX = 272
_NARROW_PX = 860
_BUTTON_EDGES = 12


@dataclass(frozen=True, slots=True)
class ChatState:
    """What the window knows of a chat besides its blocks. `disk_bytes`: of what is kept of it on disk as well.

    `shares_with`: the title of the one chat that has its shared blocks in memory too; "" where it may be several.
    """

    title: str
    is_known: bool = True  # False: of no conversation in the list
    is_pinned: bool = False
    can_free: bool = True
    can_compress: bool = False
    can_undo: bool = False
    disk_bytes: int = 0
    shares_with: str = ""


class ChatRow(QWidget):
    pin_requested = Signal(str, bool)
    free_requested = Signal(str)
    compress_requested = Signal(str)
    undo_requested = Signal(str)

    def __init__(self, conversation_id: str, theme: Theme, tiles: CellTiles, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.conversation_id = conversation_id
        self._row: ConversationBlocks | None = None
        self._state = ChatState("")
        self._most_bytes = 0
        self.title = QLabel()
        self.title.setProperty("kind", "strong")
        self.title.setWordWrap(True)
        self.title.setTextFormat(Qt.TextFormat.PlainText)
        self.detail = QLabel()
        self.detail.setProperty("kind", "muted")
        self.detail.setWordWrap(True)
        self.bar = PlaceBar(theme, tiles)
        self.bar.setMaximumWidth(_HEAD_PX - 20)
        self.map = PageMap(theme, tiles)
        self.pin_button = _button()
        kept_place = self.pin_button.sizePolicy()
        kept_place.setRetainSizeWhenHidden(True)  # so that all maps are equally wide
        self.pin_button.setSizePolicy(kept_place)
        self.free_button = _button()
        self.compress_button = _button()
        self.undo_button = _button()
        self._lay_out()
        self._name_buttons()
        self.pin_button.clicked.connect(
            lambda: self.pin_requested.emit(self.conversation_id, not self._state.is_pinned)
        )
        self.free_button.clicked.connect(lambda: self.free_requested.emit(self.conversation_id))
        self.compress_button.clicked.connect(lambda: self.compress_requested.emit(self.conversation_id))
        self.undo_button.clicked.connect(lambda: self.undo_requested.emit(self.conversation_id))

    @property
    def buttons(self) -> list[QPushButton]:
        return [self.pin_button, self.free_button, self.compress_button, self.undo_button]

    def show_chat(self, row: ConversationBlocks, state: ChatState, most_bytes: int) -> None:
        """`most_bytes`: of the largest chat, whose bar is the longest."""
        is_same = (row, state) == (self._row, self._state)
        if is_same and most_bytes == self._most_bytes:
            return
        self._row, self._state, self._most_bytes = row, state, most_bytes
        if is_same:
            self._show_bar(row, state)
        else:
            self._show(row, state)

    def retranslate(self) -> None:
        """The language has changed."""
        self._name_buttons()
        if self._row is not None:
            self._show(self._row, self._state)
            self.map.retranslate()

    def _name_buttons(self) -> None:
        pin, unpin = self.tr("Pin"), self.tr("Unpin")
        widths = [self.pin_button.fontMetrics().horizontalAdvance(words) for words in (pin, unpin)]
        self.pin_button.setMinimumWidth(max(widths) + _BUTTON_EDGES)
        self.pin_button.setToolTip(pin_help())
        self.free_button.setText(self.tr("Free"))
        self.free_button.setToolTip(self.tr("Put this chat away from memory now; it comes back from disk"))
        self.compress_button.setText(self.tr("Compress"))
        self.compress_button.setToolTip(self.tr("Keep only what matters most of this chat's memory"))
        self.undo_button.setText(self.tr("Undo"))
        self.undo_button.setToolTip(self.tr("Bring this chat's memory back to full precision"))

    def _show(self, row: ConversationBlocks, state: ChatState) -> None:
        title = chat_title(state)
        self.setAccessibleName(title)
        self.title.setText(title)
        self.detail.setText(chat_words(row))
        self._show_bar(row, state)
        self.map.show_runs(row.runs, title, state.shares_with)
        self.pin_button.setText(self.tr("Unpin") if state.is_pinned else self.tr("Pin"))
        self.pin_button.setVisible(state.is_known)
        is_in_memory = any(run.place is not BlockPlace.DISK for run in row.runs)
        self.free_button.setEnabled(is_in_memory and state.can_free)
        self.compress_button.setEnabled(state.can_compress and kind_of(row.precision) != "kvzip")
        self.undo_button.setVisible(state.can_undo)
        for button in self.buttons:
            button.setAccessibleName(f"{button.text()}: {title}")

    def _show_bar(self, row: ConversationBlocks, state: ChatState) -> None:
        """In memory in the colours of its precisions, then on disk in grey."""
        sizes, whole = bytes_by_place(row, state.disk_bytes), max(1, self._most_bytes)
        kinds = bytes_by_kind(row) | {"on_disk": sizes.get(BlockPlace.DISK, 0)}
        self.bar.set_segments([(round(nbytes / whole, 3), kind) for kind, nbytes in kinds.items() if nbytes])
        words = ", ".join(f"{numbers.size(nbytes)} {place_words(place)}" for place, nbytes in sizes.items())
        self.bar.setToolTip(words)
        self.bar.setAccessibleName(words)

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place(is_narrow=self.width() < _NARROW_PX)

    def _lay_out(self) -> None:
        self._head = QWidget()
        words = QVBoxLayout(self._head)
        words.setContentsMargins(0, 0, 0, 0)
        words.setSpacing(2)
        words.addWidget(self.title)
        words.addWidget(self.detail)
        words.addSpacing(SPACE_XS)
        words.addWidget(self.bar)
        words.addStretch(1)
        self._actions = QWidget()
        first = QHBoxLayout()
        first.setSpacing(SPACE_XS)
        first.addStretch(1)
        for button in (self.pin_button, self.free_button, self.compress_button):
            first.addWidget(button)
        actions = QVBoxLayout(self._actions)
        actions.setContentsMargins(0, 0, 0, 0)
        actions.setSpacing(0)
        actions.addLayout(first)
        actions.addWidget(self.undo_button, 0, Qt.AlignmentFlag.AlignRight)
        actions.addStretch(1)
        line = QFrame()
        line.setProperty("kind", "rule")
        self._grid = grid = QGridLayout()
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACE_L)
        grid.setVerticalSpacing(SPACE_XS)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, SPACE_M)
        column.setSpacing(SPACE_M)
        column.addWidget(line)
        column.addLayout(grid)
        self._is_narrow: bool | None = None
        self._place(is_narrow=False)

    def _place(self, *, is_narrow: bool) -> None:
        """Wide: words, map, buttons side by side. Narrow: the map below."""
        if is_narrow == self._is_narrow:
            return
        self._is_narrow = is_narrow
        top = Qt.AlignmentFlag.AlignTop
        for widget in (self._head, self.map, self._actions):
            self._grid.removeWidget(widget)
        if is_narrow:
            self._head.setMinimumWidth(0)
            self._head.setMaximumWidth(16_777_215)
            self._grid.addWidget(self._head, 0, 0, 1, 2)
            self._grid.addWidget(self._actions, 0, 2, top)
            self._grid.addWidget(self.map, 1, 0, 1, 3)
        else:
            self._head.setFixedWidth(_HEAD_PX)
            self._grid.addWidget(self._head, 0, 0, top)
            self._grid.addWidget(self.map, 0, 1, top)
            self._grid.addWidget(self._actions, 0, 2, top)
        self._grid.setColumnStretch(1, 1)


def chat_title(state: ChatState) -> str:
    if state.is_known:
        return title_words(state.title)
    return QCoreApplication.translate("ChatRow", "Chat that is no longer in the list")


def bytes_by_place(row: ConversationBlocks, disk_bytes: int) -> dict[BlockPlace, int]:
    """What a chat takes, the slack of its buffers too, where the most of its blocks in memory are; and on disk."""
    stored = sum(run.bytes for run in row.runs if run.place is BlockPlace.DISK)
    is_on_device = any(run.place is BlockPlace.DEVICE for run in row.runs)
    sizes = {
        BlockPlace.DEVICE if is_on_device else BlockPlace.MEMORY: row.held_bytes,
        BlockPlace.DISK: max(stored, disk_bytes),
    }
    return {place: nbytes for place, nbytes in sizes.items() if nbytes}


def bytes_by_kind(row: ConversationBlocks) -> dict[str, int]:
    """What a chat takes in memory, by precision; the slack of its buffers counts as full."""
    found = bytes_of_kinds(row.runs)
    found[FULL] += max(0, row.held_bytes - sum(found.values()))
    return found


def _button() -> QPushButton:
    button = QPushButton()
    button.setProperty("kind", "action")
    button.setCursor(Qt.CursorShape.PointingHandCursor)
    button.setAutoDefault(False)
    return button
