"""The rows of the conversation list for Qt. A refresh changes what differs, so selection, scroll and editor stay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import date, datetime
from enum import IntEnum
from typing import Any

from PySide6.QtCore import QAbstractListModel, QMimeData, QModelIndex, QObject, QPersistentModelIndex, QSize, Qt, Signal

from app.conversation import Conversation, Folder
from engine.protocol.events import CacheState
from ui.sidebar import row_words
from ui.sidebar.list_changes import list_changes, runs
from ui.sidebar.list_rows import ChatRow, FolderRow, Group, HeadingRow, Key, Row, chat_key, folder_key, rows_of
from ui.sidebar.warmth import Cost, Warmth

CHATS_MIME = "application/x-ember-chats"
ROW_PX, HEADING_PX, SENTENCE_PX = 35, 28, 44


class ListRole(IntEnum):
    IS_HEADING = Qt.ItemDataRole.UserRole + 1
    CONVERSATION_ID = Qt.ItemDataRole.UserRole + 2
    WARMTH = Qt.ItemDataRole.UserRole + 3
    IS_PINNED = Qt.ItemDataRole.UserRole + 4
    FOLDER_ID = Qt.ItemDataRole.UserRole + 5  # of a folder's own row
    IS_OPEN = Qt.ItemDataRole.UserRole + 6
    ROW = Qt.ItemDataRole.UserRole + 7
    COST = Qt.ItemDataRole.UserRole + 8


_Index = QModelIndex | QPersistentModelIndex
_SIZES = {size: QSize(100, size) for size in (ROW_PX, HEADING_PX, SENTENCE_PX)}


def _today() -> date:
    return datetime.now().astimezone().date()


class ConversationModel(QAbstractListModel):
    renamed = Signal(str, str)
    folder_renamed = Signal(int, str)

    def __init__(self, parent: QObject | None = None, *, today: Callable[[], date] = _today) -> None:
        super().__init__(parent)
        self._today = today
        self._conversations: Sequence[Conversation] = ()
        self._folders: Sequence[Folder] = ()
        self._collapsed: frozenset[int] = frozenset()
        self._open_id: str | None = None
        self._warmth: dict[str, Warmth] = {}
        self._costs: dict[str, Cost] = {}
        self._rows: list[Row] = []
        self._row_of: dict[Key, int] = {}
        self._is_refreshing = False

    @property
    def is_refreshing(self) -> bool:
        """Rows come and go: a row that becomes the current one by that was chosen by nobody."""
        return self._is_refreshing

    @property
    def warmth(self) -> dict[str, Warmth]:
        return self._warmth

    @property
    def conversations(self) -> Sequence[Conversation]:
        return self._conversations

    @property
    def folders(self) -> Sequence[Folder]:
        return self._folders

    @property
    def collapsed(self) -> frozenset[int]:
        return self._collapsed

    def show_conversations(self, conversations: Sequence[Conversation], folders: Sequence[Folder] = ()) -> None:
        """Newest first; folders in the order they are to stand in."""
        self._conversations, self._folders = conversations, folders
        self.refresh_rows()

    def set_collapsed(self, folder_ids: Collection[int]) -> None:
        self._collapsed = frozenset(folder_ids)
        self.refresh_rows()

    def set_open(self, conversation_id: str | None) -> None:
        """The chat that the window shows."""
        before, self._open_id = self._open_id, conversation_id
        if before != conversation_id:
            self.refresh_rows()
            self._tell_changed(one for one in (before, conversation_id) if one)

    def set_warmth(self, conversation_id: str, warmth: Warmth | None) -> None:
        before = self._warmth.get(conversation_id)
        if before == warmth:
            return
        if warmth is None:
            self._warmth.pop(conversation_id, None)
        else:
            self._warmth[conversation_id] = warmth
        if warmth is None or before is None or before.state is not warmth.state:
            self._costs.pop(conversation_id, None)  # it was the cost in another state
        self._tell_changed([conversation_id])

    def set_cold_except(self, known: set[str]) -> None:
        """The engine keeps nothing of the conversations that are not `known`; one without a message stays unknown."""
        for conversation in self._conversations:
            if conversation.id not in known:
                self.set_warmth(conversation.id, Warmth(CacheState.COLD) if conversation.num_messages else None)

    def set_cost(self, conversation_id: str, tokens: int, seconds: float | None) -> None:
        """What a message to this chat would read first, and how long that takes where that is known."""
        cost = Cost(tokens, seconds)
        if self._costs.get(conversation_id) != cost:
            self._costs[conversation_id] = cost
            self._tell_changed([conversation_id])

    def title_of(self, conversation_id: str) -> str:
        """ "" for one without a title, or that is not known."""
        return next((one.title for one in self._conversations if one.id == conversation_id), "")

    def index_of(self, conversation_id: str) -> QModelIndex:
        return self._index(chat_key(conversation_id))

    def index_of_folder(self, folder_id: int) -> QModelIndex:
        return self._index(folder_key(folder_id))

    @property
    def chat_ids(self) -> list[str]:
        """Of the rows, from the top."""
        return [row.conversation.id for row in self._rows if isinstance(row, ChatRow)]

    def chats_from(self, row: int) -> list[str]:
        """The ids of the chats below `row`, and then of those above it: the nearest first."""
        below, above = self._rows[row + 1 :], reversed(self._rows[:row])
        return [one.conversation.id for one in (*below, *above) if isinstance(one, ChatRow)]

    def refresh_words(self) -> None:
        """The language changed."""
        if self._rows:
            self.dataChanged.emit(self.index(0, 0), self.index(len(self._rows) - 1, 0))

    def refresh_rows(self) -> None:
        """Work out the rows again; after midnight a chat may stand under another heading."""
        rows = rows_of(self._conversations, self._folders, self._collapsed, self._today(), self._open_id)
        changes = list_changes([row.key for row in self._rows], [row.key for row in rows])
        self._is_refreshing = True
        for first, last in changes.removed:
            self.beginRemoveRows(QModelIndex(), first, last)
            del self._rows[first : last + 1]
            self.endRemoveRows()
        if changes.is_reordered:
            self._reorder(changes.kept)
        for first, last in changes.inserted:
            self.beginInsertRows(QModelIndex(), first, last)
            self._rows[first:first] = rows[first : last + 1]
            self.endInsertRows()
        self._is_refreshing = False
        self._row_of = {row.key: number for number, row in enumerate(rows)}
        changed = runs(number for number, row in enumerate(rows) if self._rows[number] != row)
        self._rows = rows
        for first, last in changed:
            self.dataChanged.emit(self.index(first, 0), self.index(last, 0))

    # Qt overrides

    def rowCount(self, parent: _Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._rows)

    def flags(self, index: _Index) -> Qt.ItemFlag:
        row = self._rows[index.row()] if index.isValid() else None
        match row:
            case ChatRow(conversation=conversation):
                return _FIXED_FLAGS if conversation.is_incognito else _FIXED_FLAGS | Qt.ItemFlag.ItemIsDragEnabled
            case FolderRow():
                return _FOLDER_FLAGS
        return Qt.ItemFlag.NoItemFlags

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row = self._rows[index.row()]
        if role == ListRole.ROW:
            return row
        match row:
            case ChatRow():
                return self._chat_data(row, role)
            case FolderRow():
                return self._folder_data(row, role)
        return self._heading_data(row, role)

    def setData(self, index: _Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        row = self._rows[index.row()] if index.isValid() else None
        words = " ".join(str(value).split())
        if role != Qt.ItemDataRole.EditRole or not words:
            return False
        if isinstance(row, ChatRow) and words != row.conversation.title:
            self._rows[index.row()] = replace(row, conversation=replace(row.conversation, title=words))
            self.dataChanged.emit(index, index)
            self.renamed.emit(row.conversation.id, words)
        elif isinstance(row, FolderRow) and words != row.folder.name:
            self._rows[index.row()] = replace(row, folder=replace(row.folder, name=words))
            self.dataChanged.emit(index, index)
            self.folder_renamed.emit(row.folder.id, words)
        return isinstance(row, ChatRow | FolderRow)

    def mimeTypes(self) -> list[str]:
        return [CHATS_MIME]

    def mimeData(self, indexes: Sequence[QModelIndex]) -> QMimeData:
        rows = (self._rows[index.row()] for index in indexes)
        ids = [row.conversation.id for row in rows if isinstance(row, ChatRow)]
        data = QMimeData()
        data.setData(CHATS_MIME, "\n".join(ids).encode())
        return data

    # private

    def _index(self, key: Key) -> QModelIndex:
        row = self._row_of.get(key)
        return QModelIndex() if row is None else self.index(row, 0)

    def _tell_changed(self, ids: Iterable[str]) -> None:
        for conversation_id in ids:
            index = self.index_of(conversation_id)
            if index.isValid():
                self.dataChanged.emit(index, index)

    def _reorder(self, keys: Sequence[Key]) -> None:
        """The same rows in another order; whoever holds a persistent index keeps the row it stands for."""
        self.layoutAboutToBeChanged.emit()
        by_key = {row.key: row for row in self._rows}
        held = self.persistentIndexList()
        held_keys = [self._rows[index.row()].key for index in held]
        self._rows = [by_key[key] for key in keys]
        new_row = {key: number for number, key in enumerate(keys)}
        self.changePersistentIndexList(held, [self.index(new_row[key], 0) for key in held_keys])
        self.layoutChanged.emit()

    def _chat_data(self, row: ChatRow, role: int) -> Any:
        conversation = row.conversation
        match role:
            case Qt.ItemDataRole.SizeHintRole:
                return _SIZES[ROW_PX]
            case Qt.ItemDataRole.DisplayRole:
                return row_words.title_words(conversation.title)
            case Qt.ItemDataRole.EditRole:
                return row_words.one_line(conversation.title)
            case Qt.ItemDataRole.ToolTipRole:
                return row_words.chat_tooltip(row, *self._state(conversation.id))
            case Qt.ItemDataRole.AccessibleTextRole:
                return row_words.chat_words(row, *self._state(conversation.id))
            case ListRole.IS_HEADING:
                return False
            case ListRole.CONVERSATION_ID:
                return conversation.id
            case ListRole.WARMTH:
                return self._warmth.get(conversation.id)
            case ListRole.COST:
                return self._costs.get(conversation.id)
            case ListRole.IS_PINNED:
                return conversation.is_pinned
            case ListRole.IS_OPEN:
                return conversation.id == self._open_id
        return None

    def _folder_data(self, row: FolderRow, role: int) -> Any:
        match role:
            case Qt.ItemDataRole.SizeHintRole:
                return _SIZES[ROW_PX]
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.EditRole:
                return row_words.one_line(row.folder.name)
            case Qt.ItemDataRole.AccessibleTextRole:
                return row_words.folder_words(row)
            case ListRole.IS_HEADING:
                return True
            case ListRole.FOLDER_ID:
                return row.folder.id
        return None

    def _heading_data(self, row: HeadingRow, role: int) -> Any:
        match role:
            case Qt.ItemDataRole.SizeHintRole:
                return _SIZES[SENTENCE_PX if row.group is Group.INCOGNITO else HEADING_PX]
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.AccessibleTextRole:
                return row_words.heading_words(row)
            case ListRole.IS_HEADING:
                return True
        return None

    def _state(self, conversation_id: str) -> tuple[Warmth | None, Cost | None]:
        return self._warmth.get(conversation_id), self._costs.get(conversation_id)


_FIXED_FLAGS = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsEditable
_FOLDER_FLAGS = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsEditable
