"""Which words stand under the composer: of all that could be said now, the one that matters most."""

from __future__ import annotations

from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QWidget

from ui.announce import announce
from ui.composer.cost_words import Cost
from ui.composer.hint_line import HintLine


class ComposerHint(HintLine):
    """In this order: what was just done, why this draft is not sent, the window's hint, the cost, the keys.

    `is_refused`: the cost of just this draft forbids sending it.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.is_refused = False
        self._hint: str | None = None
        self._action = ""
        self._cost: Cost | None = None
        self._told = ""
        self._is_busy = False
        self._is_reply = True
        self._sends_with = "enter"
        self._refresh_words()

    def set_state(self, *, is_busy: bool, is_reply: bool, sends_with: str) -> None:
        self._is_busy, self._is_reply, self._sends_with = is_busy, is_reply, sends_with
        self._refresh_words()

    def set_hint(self, words: str | None, action: str = "") -> None:
        self._hint, self._action = words, action
        self._refresh_words()

    def set_cost(self, cost: Cost | None) -> None:
        if cost != self._cost:
            self.set_loud(False)
        self._cost = cost
        self.is_refused = cost is not None and cost.is_refused
        self._refresh_words()

    def tell(self, words: str) -> None:
        """Until something else is done."""
        self._told = words
        self._refresh_words()
        announce(self, words)

    def tell_refusal(self) -> None:
        """Someone sends what is refused."""
        self.set_loud(True)
        announce(self, self.text())

    def draft_changed(self) -> None:
        """What was told is of the past, and whether the draft fits is not known until the next cost."""
        self.is_refused = False
        self.set_loud(False)
        if self._told:
            self._told = ""
            self._refresh_words()

    def key_words(self) -> str:
        if self._is_busy and self._is_reply:
            return self.tr("Esc stops the reply")
        if self._is_busy:
            return self.tr("Esc stops it, and this chat's memory stays as it was")
        if self._sends_with == "enter":
            return self.tr("Enter sends, Shift+Enter starts a new line")
        return self.tr("Ctrl+Enter sends, Enter starts a new line")

    # Qt overrides

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._refresh_words()
        super().changeEvent(event)

    def _refresh_words(self) -> None:
        cost = None if self._told or self._is_busy or (self._hint and not self.is_refused) else self._cost
        words = cost.words if cost else self._told or self._hint or ""
        action = self._action if words == self._hint else ""
        self.show_words(words, cost.strong if cost else "", self.key_words(), action)
