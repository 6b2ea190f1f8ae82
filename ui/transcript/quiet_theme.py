"""The theme as messages see it that the model no longer reads: their words are quieter, and still legible."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QObject, Slot
from PySide6.QtGui import QColor

from ui.theme import Theme
from ui.tokens import Tokens

_SHARE = 0.72  # of the way from the text's colour to the muted one, which itself has a contrast above 4.5


class QuietTheme(Theme):
    """Follows another theme. Colours of code stay: they have no contrast to spare."""

    def __init__(self, theme: Theme, parent: QObject | None = None) -> None:
        QObject.__init__(self, parent)  # not Theme's: nothing is loaded, and the system is the other one's to follow
        self._theme = theme
        self._tokens = quieted(theme.tokens)
        theme.changed.connect(self._on_theme_changed)

    def color(self, name: str) -> QColor:
        return QColor(getattr(self._tokens, name))

    @Slot()
    def _on_theme_changed(self) -> None:
        self._tokens = quieted(self._theme.tokens)


def quieted(tokens: Tokens) -> Tokens:
    return replace(tokens, text=_mix(tokens.text, tokens.muted, _SHARE))


def _mix(first: str, second: str, share: float) -> str:
    pairs = ((int(first[place : place + 2], 16), int(second[place : place + 2], 16)) for place in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)
