"""One reply: what the model thought, if it did, behind a click, and its answer below."""

from __future__ import annotations

import logging
from collections.abc import Callable

from PySide6.QtWidgets import QWidget

from ui.markdown.plain import plain_blocks
from ui.markdown.reasoning import ReasoningSplitter, Split, split_reasoning
from ui.markdown.stream import Update
from ui.theme import Theme
from ui.transcript.markdown_body import MarkdownBody
from ui.transcript.reasoning import ReasoningSection

_log = logging.getLogger(__name__)


class ReplyBody(MarkdownBody):
    """The parts are those of the answer. All is in one layout: each level more takes a turn more to find its height.

    A reply comes from a model, and this is called from within Qt, which an exception would bring down: a reply that
    cannot be read or drawn is shown as it was written.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, parent=parent)
        self._splitter = ReasoningSplitter()
        self._reasoning: ReasoningSection | None = None
        self._answer: list[str] = []
        self._written: list[str] = []
        self._is_plain = False

    @property
    def reasoning(self) -> ReasoningSection | None:
        return self._reasoning

    def show_text(self, text: str) -> None:
        """Show a whole reply."""
        self._written = [text]
        self._attempt(lambda: self._show_text(text))

    def _show_text(self, text: str) -> None:
        thought, answer = split_reasoning(text)
        if thought:
            self._section().show_text(thought, is_open=not answer.strip())
        self._answer = [answer]
        super().show_text(answer)

    def replace_text(self, text: str) -> None:
        """Show another whole reply than the one that streamed."""
        self._splitter = ReasoningSplitter()
        self._is_plain = False
        if self._reasoning is not None and not split_reasoning(text)[0]:
            self._reasoning.hide()
            self._reasoning.deleteLater()
            self._reasoning, self._num_above = None, 0
        super().replace_text(text)

    def feed(self, text: str) -> None:
        """Append to a reply that streams; a caret stands at its end."""
        self._written.append(text)
        self._attempt(lambda: self._take(self._splitter.feed(text)))

    def finish(self) -> None:
        """Nothing follows: the open end is final and the caret goes."""
        self._attempt(self._finish)

    def _finish(self) -> None:
        was_thinking = bool(self._splitter.is_thinking)
        self._take(self._splitter.finish())
        if self._reasoning is not None:
            self._reasoning.finish(is_answered=not was_thinking)
        if not was_thinking:
            super().finish()

    def recolour(self) -> None:
        super().recolour()
        if self._reasoning is not None:
            self._reasoning.recolour()

    def plain_text(self) -> str:
        """What is shown: the thought only while it is open."""
        thought = self._reasoning.plain_text() if self._reasoning is not None and self._reasoning.is_open else ""
        answer = super().plain_text()
        return "\n".join(text for text in (thought, answer) if text)

    def markdown(self) -> str:
        """The reply as Markdown, for copying: the thought only while it is open."""
        thought = self._reasoning.thought if self._reasoning is not None and self._reasoning.is_open else ""
        return "\n\n".join(text for text in (thought, "".join(self._answer)) if text)

    def _attempt(self, work: Callable[[], None]) -> None:
        if not self._is_plain:
            try:
                work()
                return
            except Exception:  # noqa: BLE001  # whatever it is, only this reply is odd
                _log.exception("a reply cannot be drawn as Markdown")
        self._is_plain = True
        text = "".join(self._written)
        self._answer = [text]
        self.clear()
        self._apply(Update(plain_blocks(text), ()))

    def _take(self, split: Split) -> None:
        if split.restarts or (self._splitter.is_thinking and self._reasoning is None):
            self._answer = []
            self.clear()
        if self._splitter.is_thinking or split.thought:
            self._section().feed(split.thought)
        if self._splitter.is_thinking:
            return
        if self._reasoning is not None:
            self._reasoning.finish(is_answered=True)
        self._answer.append(split.answer)
        super().feed(split.answer)

    def _section(self) -> ReasoningSection:
        if self._reasoning is None:
            self._reasoning = ReasoningSection(self._theme)
            self._layout.insertWidget(0, self._reasoning)
            self._num_above = 1
        return self._reasoning
