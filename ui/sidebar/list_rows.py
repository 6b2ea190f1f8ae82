"""What stands in the conversation list, in which order: headings, folders, chats. No Qt.

Order: incognito chats, pinned ones, the folders with their chats, then the loose chats by date. Each chat stands once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from app.conversation import Conversation, Folder

Key = tuple[str, str]


class Group(StrEnum):
    INCOGNITO = "incognito"
    PINNED = "pinned"
    FOLDERS = "folders"
    TODAY = "today"
    YESTERDAY = "yesterday"
    PREVIOUS_WEEK = "previous_week"
    PREVIOUS_MONTH = "previous_month"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class HeadingRow:
    """`month` is the first day of the month, for `Group.MONTH` only."""

    group: Group
    month: date | None = None

    @property
    def key(self) -> Key:
        return "heading", f"{self.group}{self.month or ''}"


@dataclass(frozen=True, slots=True)
class FolderRow:
    folder: Folder
    num_chats: int
    is_collapsed: bool

    @property
    def key(self) -> Key:
        return "folder", str(self.folder.id)


@dataclass(frozen=True, slots=True)
class ChatRow:
    """`folder` is the one that the chat belongs to, also where it stands among the pinned ones."""

    conversation: Conversation
    heading: HeadingRow
    folder: Folder | None = None

    @property
    def key(self) -> Key:
        return chat_key(self.conversation.id)

    @property
    def is_indented(self) -> bool:
        return self.heading.group is Group.FOLDERS


Row = HeadingRow | FolderRow | ChatRow


def chat_key(conversation_id: str) -> Key:
    return "chat", conversation_id


def folder_key(folder_id: int) -> Key:
    return "folder", str(folder_id)


def heading_of(updated_at: datetime, today: date) -> HeadingRow:
    """The date group, by the day in the zone of this computer. What lies in the future counts as today."""
    return _heading_of_day(updated_at.astimezone().date(), today)


@lru_cache(maxsize=2048)
def _heading_of_day(day: date, today: date) -> HeadingRow:
    if day >= today:
        return HeadingRow(Group.TODAY)
    if day == today - timedelta(days=1):
        return HeadingRow(Group.YESTERDAY)
    if day >= today - timedelta(days=7):
        return HeadingRow(Group.PREVIOUS_WEEK)
    if day >= today - timedelta(days=30):
        return HeadingRow(Group.PREVIOUS_MONTH)
    return HeadingRow(Group.MONTH, day.replace(day=1))


def rows_of(
    conversations: Sequence[Conversation],
    folders: Sequence[Folder],
    collapsed: Collection[int],
    today: date,
    open_id: str | None = None,
) -> list[Row]:
    """`conversations` come newest first. A chat whose folder is not among `folders` is loose.

    A collapsed folder still shows the chat that is open, so that the list always tells where one is.
    """
    by_id = {folder.id: folder for folder in folders}
    incognito: list[Conversation] = []
    pinned: list[Conversation] = []
    filed: dict[int, list[Conversation]] = {folder.id: [] for folder in folders}
    loose: list[Conversation] = []
    for one in conversations:
        if one.is_incognito:
            incognito.append(one)
        elif one.is_pinned:
            pinned.append(one)
        elif one.folder_id in filed:
            filed[one.folder_id].append(one)
        else:
            loose.append(one)
    rows: list[Row] = []
    for group, chats in ((Group.INCOGNITO, incognito), (Group.PINNED, pinned)):
        if chats:
            heading = HeadingRow(group)
            rows.append(heading)
            rows.extend(ChatRow(one, heading, by_id.get(one.folder_id or 0)) for one in chats)
    if folders:
        heading = HeadingRow(Group.FOLDERS)
        rows.append(heading)
        for folder in folders:
            chats, is_collapsed = filed[folder.id], folder.id in collapsed
            rows.append(FolderRow(folder, len(chats), is_collapsed))
            rows.extend(ChatRow(one, heading, folder) for one in chats if not is_collapsed or one.id == open_id)
    rows.extend(_dated(loose, today))
    return rows


def _dated(conversations: Sequence[Conversation], today: date) -> Iterator[Row]:
    groups: dict[HeadingRow, list[Conversation]] = {}
    for one in conversations:
        groups.setdefault(heading_of(one.updated_at, today), []).append(one)
    for heading, chats in groups.items():
        yield heading
        yield from (ChatRow(one, heading) for one in chats)
