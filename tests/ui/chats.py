"""Records of chats and folders, and a sidebar that shows them without a window around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from PySide6.QtCore import QModelIndex

from app.conversation import Conversation, Folder
from ui.sidebar.conversation_list import ConversationList

NOW = datetime.now(UTC)
OpenSidebar = Callable[..., ConversationList]


def chat(
    title: str,
    *,
    days: int = 0,
    folder: int | None = None,
    is_pinned: bool = False,
    is_incognito: bool = False,
) -> Conversation:
    """Its id is its title. Last changed `days` ago."""
    when = NOW - timedelta(days=days)
    return Conversation(
        id=f"incognito-{title}" if is_incognito else title,
        title=title,
        created_at=when,
        updated_at=when,
        num_messages=2,
        is_pinned=is_pinned,
        is_incognito=is_incognito,
        folder_id=folder,
    )


def chats(number: int) -> list[Conversation]:
    return [chat(f"chat {one:04}", days=one // 40) for one in range(number)]


def titles(sidebar: ConversationList) -> list[str]:
    model = sidebar.model
    return [str(model.index(row, 0).data()) for row in range(model.rowCount())]


def row(sidebar: ConversationList, title: str) -> QModelIndex:
    """The row of a chat or folder."""
    model = sidebar.model
    (found,) = [one for one in range(model.rowCount()) if model.index(one, 0).data() == title]
    return model.index(found, 0)


def show(sidebar: ConversationList, *conversations: Conversation, folders: Sequence[Folder] = ()) -> None:
    sidebar.show_conversations(list(conversations), list(folders))
