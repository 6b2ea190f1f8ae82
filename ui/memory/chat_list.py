"""The memory panel's chats, a row each: those in memory, then those on disk, as far as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import QLabel, QPushButton, QVBoxLayout, QWidget

from engine.protocol.events import BlocksReported, ConversationBlocks
from ui import numbers
from ui.memory.cells import CellTiles
from ui.memory.chat_row import ChatRow, ChatState, bytes_by_place, chat_title
from ui.memory.page_words import sharing_pair
from ui.theme import Theme
from ui.tokens import SPACE_S

FIRST_ROWS = 8  # shown before one asks for more
_MORE_ROWS = 40
_IN_MEMORY_ROWS = 40  # as many before one asks for more; rarely are there so many


class ChatList(QWidget):
    pin_requested = Signal(str, bool)
    free_requested = Signal(str)
    compress_requested = Signal(str)
    undo_requested = Signal(str)

    def __init__(self, theme: Theme, tiles: CellTiles, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._tiles = tiles
        self._report: BlocksReported | None = None
        self._state_of: Callable[[str], ChatState] = ChatState
        self._most_rows = FIRST_ROWS
        self.rows: dict[str, ChatRow] = {}
        self.nothing = QLabel()
        self.nothing.setProperty("kind", "muted")
        self.nothing.setWordWrap(True)
        self.more = QPushButton()
        self.more.setProperty("kind", "action")
        self.more.clicked.connect(self._on_more_clicked)
        self._list = QVBoxLayout()
        self._list.setSpacing(0)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_S)
        column.addLayout(self._list)
        column.addWidget(self.nothing)
        column.addWidget(self.more, 0, Qt.AlignmentFlag.AlignLeft)
        self._show_ends()

    @property
    def shown(self) -> list[ChatRow]:
        """The rows from top to bottom."""
        return sorted(self.rows.values(), key=self._list.indexOf)

    def show_report(self, report: BlocksReported, state_of: Callable[[str], ChatState]) -> None:
        """`state_of` a conversation, by its id."""
        self._report, self._state_of = report, state_of
        self._show_rows(report)

    @Slot()
    def show_states(self) -> None:
        """Titles, pins or what can be done have changed, not the blocks."""
        if self._report is not None:
            self._show_rows(self._report)

    def retranslate(self) -> None:
        self.nothing.setText(
            self.tr("Nothing is kept yet. Once the model has answered, the blocks of that chat appear here.")
        )
        for row in self.rows.values():
            row.retranslate()
        self._show_ends()

    @Slot()
    def _on_more_clicked(self) -> None:
        self._most_rows += _MORE_ROWS
        self.show_states()

    def _show_rows(self, report: BlocksReported) -> None:
        wanted = self._wanted_rows(report.conversations)
        known = {row.conversation_id for row in wanted}
        for gone in [one for one in self.rows if one not in known]:
            widget = self.rows.pop(gone)
            widget.hide()
            self._list.removeWidget(widget)
            widget.deleteLater()
        partners = {one: chat_title(self._state_of(other)) for one, other in sharing_pair(report).items()}
        states = [
            replace(self._state_of(one), shares_with=partners.get(one, ""))
            for one in (row.conversation_id for row in wanted)
        ]
        sizes = (sum(bytes_by_place(row, state.disk_bytes).values()) for row, state in zip(wanted, states, strict=True))
        most_bytes = max(sizes, default=0)
        for place, (row, state) in enumerate(zip(wanted, states, strict=True)):
            widget = self.rows.get(row.conversation_id) or self._new_row(row.conversation_id)
            if self._list.indexOf(widget) != place:
                self._list.insertWidget(place, widget)
            widget.show_chat(row, state, most_bytes)
        self._show_ends()

    def _wanted_rows(self, rows: Sequence[ConversationBlocks]) -> list[ConversationBlocks]:
        in_memory = [row for row in rows if row.held_bytes]
        on_disk = [row for row in rows if not row.held_bytes]
        in_memory = in_memory[: max(_IN_MEMORY_ROWS, self._most_rows)]
        return in_memory + on_disk[: max(0, self._most_rows - len(in_memory))]

    def _new_row(self, conversation_id: str) -> ChatRow:
        row = self.rows[conversation_id] = ChatRow(conversation_id, self._theme, self._tiles)
        row.pin_requested.connect(self.pin_requested)
        row.free_requested.connect(self.free_requested)
        row.compress_requested.connect(self.compress_requested)
        row.undo_requested.connect(self.undo_requested)
        return row

    def _show_ends(self) -> None:
        """What stands in place of rows, and below them."""
        total = len(self._report.conversations) if self._report else 0
        self.nothing.setVisible(self._report is not None and not total)
        self.more.setVisible(total > len(self.rows))
        left = numbers.count(total - len(self.rows))
        self.more.setText(self.tr("Show more chats ({count})").format(count=left))
