"""Everything that can be done with one message, as a menu."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QMenu, QWidget

from app.conversation import Message
from ui.transcript.message_actions import Action, key, words

_GROUPS = (
    (Action.COPY, Action.COPY_TEXT, Action.COPY_MARKDOWN),
    (Action.EDIT, Action.REGENERATE, Action.CONTINUE),
    (Action.EARLIER, Action.LATER),
    (Action.FORK,),
    (Action.DELETE, Action.DELETE_BELOW),
)


def message_menu(
    message: Message,
    possible: set[Action],
    perform: Callable[[Action], None],
    parent: QWidget,
    *,
    selected_text: str = "",
    link: str = "",
) -> QMenu:
    """The menu, not shown yet; it deletes itself. What is not possible now is left out."""
    menu = QMenu(parent)
    menu.aboutToHide.connect(menu.deleteLater)
    for text, to_copy in ((_tr("Copy selection"), selected_text), (_tr("Copy link"), link)):
        if to_copy:
            copies = menu.addAction(text)
            copies.triggered.connect(lambda _checked=False, wanted=to_copy: QGuiApplication.clipboard().setText(wanted))
    if message.num_versions == 1:
        possible = possible - {Action.EARLIER, Action.LATER}
    for group in _GROUPS:
        shown = [action for action in group if action in possible]
        if shown and not menu.isEmpty():
            menu.addSeparator()
        for action in shown:
            entry = menu.addAction(f"{words(action)}\t{key(action)}" if key(action) else words(action))
            entry.setData(action)
            entry.triggered.connect(lambda _checked=False, chosen=action: perform(chosen))
    return menu


def _tr(source: str) -> str:
    return QCoreApplication.translate("MessageMenu", source)
