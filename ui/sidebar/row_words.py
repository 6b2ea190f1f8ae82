"""The rows of the conversation list in words: what a heading, a tooltip and a screen reader say."""

from __future__ import annotations

import unicodedata

from PySide6.QtCore import QCoreApplication, QLocale

from engine.protocol.events import CacheState
from ui import numbers
from ui.estimate_words import about
from ui.memory.precision_words import is_full, precision_help, precision_words
from ui.sidebar.list_rows import ChatRow, FolderRow, Group, HeadingRow
from ui.sidebar.warmth import Cost, Warmth
from ui.tooltips import plain


def _tr(source: str) -> str:
    return QCoreApplication.translate("Rows", source)


def one_line(text: str) -> str:
    """As it is shown in a row: composed (NFC), white space and line ends as one space, nothing that turns the row."""
    shown = "".join(one for one in unicodedata.normalize("NFC", text) if one not in _TURNING)
    return " ".join(shown.split())


def title_words(title: str) -> str:
    return one_line(title) or _tr("New chat")


def heading_words(row: HeadingRow) -> str:
    match row.group:
        case Group.INCOGNITO:
            return _tr("Incognito: kept in memory only, gone when Ember closes")
        case Group.PINNED:
            return _tr("Pinned")
        case Group.FOLDERS:
            return _tr("Folders")
        case Group.TODAY:
            return _tr("Today")
        case Group.YESTERDAY:
            return _tr("Yesterday")
        case Group.PREVIOUS_WEEK:
            return _tr("Previous 7 days")
        case Group.PREVIOUS_MONTH:
            return _tr("Previous 30 days")
    assert row.month is not None
    month = QLocale().standaloneMonthName(row.month.month)
    return _tr("{month} {year}").format(month=month, year=row.month.year)


def folder_words(row: FolderRow) -> str:
    """For a screen reader."""
    state = _tr("collapsed") if row.is_collapsed else _tr("expanded")
    return ", ".join((_tr("Folder {name}").format(name=one_line(row.folder.name)), chats_words(row.num_chats), state))


def chats_words(num_chats: int) -> str:
    if num_chats == 1:
        return _tr("1 chat")
    return _tr("{count} chats").format(count=numbers.count(num_chats))


def chat_tooltip(row: ChatRow, warmth: Warmth | None, cost: Cost | None) -> str:
    parts = [one_line(row.conversation.title), warmth_words(warmth, cost), _pin_words(row)]
    if row.folder is not None:
        parts.insert(1, _tr("Folder {name}").format(name=one_line(row.folder.name)))
    return plain("\n".join(part for part in parts if part))


def chat_words(row: ChatRow, warmth: Warmth | None, cost: Cost | None) -> str:
    """For a screen reader: title, where it stands, pinned or not, where its cache is."""
    if row.conversation.is_incognito:
        place = _tr("Incognito")
    elif row.folder is not None:
        place = _tr("Folder {name}").format(name=one_line(row.folder.name))
    else:
        place = heading_words(row.heading) if row.heading.group is not Group.PINNED else ""
    parts = (title_words(row.conversation.title), place, _pin_words(row), warmth_words(warmth, cost))
    return ", ".join(part for part in parts if part)


def pin_help() -> str:
    """What pinning a chat does, both things."""
    return _tr("A pinned chat stands on top, and its cache goes last when memory or disk runs short")


def warmth_words(warmth: Warmth | None, cost: Cost | None = None) -> str:
    if warmth is None:
        return ""
    sizes = _tr("{tokens} tokens, {size}").format(
        tokens=numbers.count(warmth.tokens), size=numbers.size(warmth.num_bytes)
    )
    match warmth.state:
        case CacheState.WARM:
            words = _tr("In memory ({sizes}, {precision}): goes on at once")
        case CacheState.ON_DISK if cost is not None and cost.seconds is not None and is_full(warmth.precision):
            words = _tr("On disk ({sizes}): resumes in about {seconds}")
        case CacheState.ON_DISK if cost is not None and cost.seconds is not None:
            words = _tr("On disk ({sizes}, {precision}): resumes in about {seconds}")
        case CacheState.ON_DISK if is_full(warmth.precision):
            words = _tr("On disk ({sizes}): resumes without reading the chat again")
        case CacheState.ON_DISK:
            words = _tr("On disk ({sizes}, {precision}): resumes without reading the chat again")
        case _:
            return _cold_words(cost)
    words = words.format(
        sizes=sizes,
        precision=precision_words(warmth.precision, warmth.kept) or numbers.DASH,
        seconds=about(cost.seconds if cost else None),
    )
    return words if is_full(warmth.precision) else f"{words}\n{precision_help(warmth.precision)}"


def _cold_words(cost: Cost | None) -> str:
    if cost is None:
        return _tr("Cold: the next message reads the whole chat first")
    tokens = numbers.count(cost.tokens)
    if cost.seconds is None:
        return _tr("Cold: will read {tokens} tokens").format(tokens=tokens)
    seconds = about(cost.seconds)
    return _tr("Cold: will read {tokens} tokens, about {seconds}").format(tokens=tokens, seconds=seconds)


def _pin_words(row: ChatRow) -> str:
    return _tr("Pinned: its cache goes last") if row.conversation.is_pinned else ""


_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
