"""The rows of the conversation list: headings of date groups and conversations under them, newest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal

from app.conversation import Conversation
from engine.protocol.events import CacheState
from ui import numbers
from ui.memory.precision_words import is_full, precision_help, precision_words


class ListRole(IntEnum):
    IS_HEADING = Qt.ItemDataRole.UserRole + 1
    CONVERSATION_ID = Qt.ItemDataRole.UserRole + 2
    WARMTH = Qt.ItemDataRole.UserRole + 3
    IS_PINNED = Qt.ItemDataRole.UserRole + 4


class Group(StrEnum):
    TODAY = "today"
    YESTERDAY = "yesterday"
    PREVIOUS_WEEK = "previous_week"
    OLDER = "older"


@dataclass(frozen=True, slots=True)
class Warmth:
    """Where a conversation's cache is, as far as the engine has said; None is unknown."""

    state: CacheState
    tokens: int | None = None
    num_bytes: int | None = None
    precision: str = ""
    kept: float = 1.0


def group_of(updated_at: datetime, today: date) -> Group:
    day = updated_at.astimezone().date()
    if day >= today:
        return Group.TODAY
    if day == today - timedelta(days=1):
        return Group.YESTERDAY
    return Group.PREVIOUS_WEEK if day >= today - timedelta(days=7) else Group.OLDER


_Index = QModelIndex | QPersistentModelIndex


class ConversationModel(QAbstractListModel):
    renamed = Signal(str, str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._conversations: list[Conversation] = []
        self._warmth: dict[str, Warmth] = {}
        self._filter = ""
        self._rows: list[Group | Conversation] = []

    @property
    def warmth(self) -> dict[str, Warmth]:
        return self._warmth

    def show_conversations(self, conversations: list[Conversation]) -> None:
        """Newest first."""
        self._conversations = conversations
        self._rebuild()

    def set_filter(self, text: str) -> None:
        """Only titles that hold `text`, whatever the case."""
        self._filter = text.strip().casefold()
        self._rebuild()

    def set_warmth(self, conversation_id: str, warmth: Warmth | None) -> None:
        if self._warmth.get(conversation_id) == warmth:
            return
        if warmth is None:
            self._warmth.pop(conversation_id, None)
        else:
            self._warmth[conversation_id] = warmth
        index = self.index_of(conversation_id)
        if index.isValid():
            self.dataChanged.emit(index, index)

    def set_cold_except(self, known: set[str]) -> None:
        """The engine keeps nothing of the conversations that are not `known`; one without a message stays unknown."""
        for conversation in self._conversations:
            if conversation.id not in known:
                self.set_warmth(conversation.id, Warmth(CacheState.COLD) if conversation.num_messages else None)

    def title_of(self, conversation_id: str) -> str:
        """ "" for one without a title, or that is not known."""
        return next((one.title for one in self._conversations if one.id == conversation_id), "")

    def index_of(self, conversation_id: str) -> QModelIndex:
        for row, entry in enumerate(self._rows):
            if isinstance(entry, Conversation) and entry.id == conversation_id:
                return self.index(row, 0)
        return QModelIndex()

    def refresh_words(self) -> None:
        """The language changed."""
        if self._rows:
            self.dataChanged.emit(self.index(0, 0), self.index(len(self._rows) - 1, 0))

    # Qt overrides

    def rowCount(self, parent: _Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._rows)

    def flags(self, index: _Index) -> Qt.ItemFlag:
        if not index.isValid() or isinstance(self._rows[index.row()], Group):
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsEditable

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        entry = self._rows[index.row()]
        if isinstance(entry, Group):
            return self._heading_data(entry, role)
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return entry.title or self.tr("New chat")
            case Qt.ItemDataRole.EditRole:
                return entry.title
            case Qt.ItemDataRole.ToolTipRole:
                return "\n".join(filter(None, (entry.title, self._warmth_words(entry.id), self._pin_words(entry))))
            case Qt.ItemDataRole.AccessibleTextRole:
                title = entry.title or self.tr("New chat")
                return ", ".join(filter(None, (title, self._warmth_words(entry.id), self._pin_words(entry))))
            case ListRole.IS_HEADING:
                return False
            case ListRole.CONVERSATION_ID:
                return entry.id
            case ListRole.WARMTH:
                return self._warmth.get(entry.id)
            case ListRole.IS_PINNED:
                return entry.is_pinned
        return None

    def setData(self, index: _Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        entry = self._rows[index.row()] if index.isValid() else None
        title = " ".join(str(value).split())
        if role != Qt.ItemDataRole.EditRole or not isinstance(entry, Conversation) or not title:
            return False
        if title != entry.title:
            self._rows[index.row()] = replace(entry, title=title)
            self.dataChanged.emit(index, index)
            self.renamed.emit(entry.id, title)
        return True

    def _heading_data(self, group: Group, role: int) -> Any:
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return {
                Group.TODAY: self.tr("Today"),
                Group.YESTERDAY: self.tr("Yesterday"),
                Group.PREVIOUS_WEEK: self.tr("Previous 7 days"),
                Group.OLDER: self.tr("Older"),
            }[group]
        return True if role == ListRole.IS_HEADING else None

    def _pin_words(self, entry: Conversation) -> str:
        return self.tr("Kept in memory as long as possible") if entry.is_pinned else ""

    def _warmth_words(self, conversation_id: str) -> str:
        warmth = self._warmth.get(conversation_id)
        if warmth is None:
            return ""
        sizes = self.tr("{tokens} tokens, {size}").format(
            tokens=numbers.count(warmth.tokens), size=numbers.size(warmth.num_bytes)
        )
        match warmth.state:
            case CacheState.WARM:
                words = self.tr("In memory ({sizes}, {precision}): goes on at once")
            case CacheState.ON_DISK if is_full(warmth.precision):
                words = self.tr("On disk ({sizes}): resumes without reading the chat again")
            case CacheState.ON_DISK:
                words = self.tr("On disk ({sizes}, {precision}): resumes without reading the chat again")
            case _:
                return self.tr("Cold: the next message reads the whole chat first")
        words = words.format(sizes=sizes, precision=precision_words(warmth.precision, warmth.kept) or numbers.DASH)
        return words if is_full(warmth.precision) else f"{words}\n{precision_help(warmth.precision)}"

    def _rebuild(self) -> None:
        self.beginResetModel()
        self._rows = []
        today = datetime.now().astimezone().date()
        group: Group | None = None
        for conversation in self._conversations:
            if self._filter and self._filter not in conversation.title.casefold():
                continue
            own = group_of(conversation.updated_at, today)
            if own is not group:
                group = own
                self._rows.append(group)
            self._rows.append(conversation)
        self.endResetModel()
