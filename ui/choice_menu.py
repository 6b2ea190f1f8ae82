"""A menu in which one of several values is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QMenu


def add_choices(menu: QMenu, choices: Mapping[str, str], chosen: str, choose: Callable[[str], None]) -> None:
    """Append {value: words} to `menu`, the chosen one marked. `choose` hears of another value."""
    group = QActionGroup(menu)
    for value, words in choices.items():
        action = QAction(words.replace("&", "&&"), menu)
        action.setCheckable(True)
        action.setChecked(value == chosen)
        action.setData(value)
        group.addAction(action)
        menu.addAction(action)

    def on_triggered(action: QAction) -> None:
        if action.data() != chosen:
            choose(action.data())

    group.triggered.connect(on_triggered)
