"""Asks the engine what sending would cost, whenever that may have changed, and lets the composer say it. GUI thread.

Asked only when someone can read the answer (the window is seen, no reply runs in this chat, a model is there), a moment
after the last change, and never twice at once: the engine may have a long reply to write before it answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from PySide6.QtCore import QEvent, QObject, QTimer, Slot

from app.conversation import Draft
from app.errors import AppError
from engine.protocol.events import (
    Compressed,
    EngineStopped,
    Estimated,
    Failed,
    ModelLoaded,
    PressureActed,
    TokensCounted,
    ViewMoved,
)
from ui.composer.composer import Composer
from ui.composer.cost_words import Cost, cost_of, files_too_long
from ui.composer.token_counts import TokenCounter, TokenCounts

_ASK_MS = 250
_LOST_S = 120.0  # an answer that has not come by then is no longer waited for


class CostSource(TokenCounter, Protocol):
    """`app.costs.Costs` has this shape."""

    def estimate(self, conversation_id: str | None, draft: Draft) -> str: ...


@dataclass(frozen=True, slots=True)
class _Question:
    request_id: str
    conversation_id: str | None
    draft: Draft
    asked_at: float


class CostFeed(QObject):
    """The window tells it which conversation is shown, and gives it every event before anyone else."""

    def __init__(
        self,
        costs: CostSource,
        composer: Composer,
        parent: QObject | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(parent)
        self._costs = costs
        self._composer = composer
        self._clock = clock
        self._conversation_id: str | None = None
        self._question: _Question | None = None
        self._counts = TokenCounts(costs)
        self._is_stale = False  # something changed since the question was put
        self._words: Callable[[], Cost | None] = _nothing
        self._timer = QTimer(self, singleShot=True, interval=_ASK_MS)
        self._timer.timeout.connect(self._on_due)
        composer.content_changed.connect(self.refresh)
        composer.attachments_changed.connect(self._on_attachments_changed)
        composer.busy_changed.connect(self._on_busy_changed)
        composer.installEventFilter(self)

    def show_conversation(self, conversation_id: str | None) -> None:
        """Another chat is shown, with its draft; None is a new one."""
        self._conversation_id = conversation_id
        self._show(_nothing)
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        """Something that the cost depends on may have changed."""
        self._timer.start()

    def take(self, event: object) -> bool:
        """True: it is the answer to a question of this one, and nobody else's."""
        match event:
            case Estimated():
                return self._on_estimated(event)
            case TokensCounted():
                return self._on_counted(event)
            case Failed():
                return self._on_failed(event)
            case ModelLoaded():
                self._forget_model()
                self.refresh()
            case EngineStopped():
                self._forget_model()
                self._show(_nothing)
            case Compressed() | PressureActed() | ViewMoved() if event.conversation_id == self._conversation_id:
                self.refresh()
        return False

    # slots

    @Slot()
    def _on_due(self) -> None:
        if self._costs.model is None:
            self._show(_nothing)
        elif self._is_waiting():
            self._is_stale = True
        elif self._is_seen() and not self._composer.is_busy:
            draft = self._composer.draft
            if self._fits_by_counts(draft):
                self._ask(draft)

    @Slot()
    def _on_attachments_changed(self) -> None:
        self._show_counts()
        self.refresh()

    @Slot(bool)
    def _on_busy_changed(self, is_busy: bool) -> None:
        if is_busy:
            self._show(_nothing)
        else:
            self.refresh()

    # Qt overrides

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Show and watched is self._composer:
            self._composer.window().installEventFilter(self)
            self.refresh()
        elif event.type() == QEvent.Type.WindowStateChange:
            self.refresh()
        elif event.type() == QEvent.Type.LanguageChange and watched is self._composer:
            self._composer.set_cost(self._words())
        return False

    def _ask(self, draft: Draft) -> None:
        if self._conversation_id is None and draft.is_blank:
            self._show(_nothing)
            return
        try:
            request_id = self._costs.estimate(self._conversation_id, draft)
        except AppError:  # sending will tell it
            self._show(_nothing)
        else:
            self._question = _Question(request_id, self._conversation_id, draft, self._clock())
            self._is_stale = False

    def _fits_by_counts(self, draft: Draft) -> bool:
        """False: the files alone are too long, which is told; or nobody knows yet, and counting them comes first."""
        texts, model = _texts_of(draft), self._costs.model
        if not self._counts.are_known(texts):
            self._show_counts()
            return False
        num_tokens, is_more = self._counts.total(texts)
        if model is None or num_tokens < model.context_length:
            return True
        self._show(partial(files_too_long, num_tokens, is_more, model.context_length, model.name))
        return False

    def _on_estimated(self, event: Estimated) -> bool:
        question, model = self._question, self._costs.model
        if question is None:
            return False
        if event.request_id != question.request_id:
            if event.conversation_id == (
                question.conversation_id or ""
            ):  # a newer one of someone else: ours is dropped
                self._question = None
                self.refresh()
            return False
        self._question = None
        is_current = question.conversation_id == self._conversation_id and question.draft == self._composer.draft
        if not is_current or self._is_stale:
            self.refresh()
        if is_current and model is not None and not self._composer.is_busy:
            is_blank, has_files = question.draft.is_blank, bool(question.draft.attachments)
            self._show(partial(cost_of, event, model.name, is_blank=is_blank, has_files=has_files))
        return True

    def _on_counted(self, event: TokensCounted) -> bool:
        if not self._counts.take(event, shown=_texts_of(self._composer.draft)):
            return False
        self._show_counts()
        self.refresh()
        return True

    def _on_failed(self, event: Failed) -> bool:
        if self._question is not None and event.request_id == self._question.request_id:
            self._question = None
            self._show(_nothing)
            return True
        if self._counts.take(event, shown=()):
            return True
        if event.conversation_id is None:  # a load
            self._forget_model()
            self.refresh()
        return False

    def _forget_model(self) -> None:
        self._question = None
        self._counts.forget()
        self._show_counts()

    def _show_counts(self) -> None:
        is_counting = self._costs.model is not None
        self._composer.files.show_tokens(self._counts.by_text, is_counting, self._counts.more)

    def _show(self, words: Callable[[], Cost | None]) -> None:
        self._words = words  # to be said again in another language
        self._composer.set_cost(words())

    def _is_waiting(self) -> bool:
        """For an answer; another question is put when it comes."""
        return self._question is not None and self._clock() - self._question.asked_at < _LOST_S

    def _is_seen(self) -> bool:
        return self._composer.isVisible() and not self._composer.window().isMinimized()


def _nothing() -> None:
    return None


def _texts_of(draft: Draft) -> list[str]:
    return [file.text for file in draft.attachments]
