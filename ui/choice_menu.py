"""A menu in which one of several values is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QMenu


def add_choices(menu: QMenu, choices: Mapping[str, str], chosen: str, choose: Callable[[str], None]) -> None:
    """Append {value: words} to `menu`, the chosen one marked. `choose` hears of another value."""
    actions = [QAction(words.replace("&", "&&"), menu) for words in choices.values()]
    if not actions:
        return
    group = QActionGroup(actions[0])  # goes with them when the menu is cleared
    for action, value in zip(actions, choices, strict=True):
        action.setCheckable(True)
        action.setChecked(value == chosen)
        action.setData(str(value))
        group.addAction(action)
        menu.addAction(action)

    def on_triggered(action: QAction) -> None:
        if action.data() != chosen:
            choose(action.data())

    group.triggered.connect(on_triggered)
