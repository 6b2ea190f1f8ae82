"""What the window says of the engine's state around the chat that is shown: the hint under the composer, the status of
the empty page, the notice in the transcript. GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Slot

from app.chat_session import ChatSession
from engine.protocol.events import Failed, ModelLoaded, Phase
from ui.chat_page import ChatPage
from ui.error_words import failure_words
from ui.live_replies import LiveReplies
from ui.meter.meter_reading import EngineState
from ui.notices import Notices


class StateWords(QObject):
    """`current`: the conversation that is shown."""

    def __init__(
        self,
        session: ChatSession,
        page: ChatPage,
        live: LiveReplies,
        notices: Notices,
        current: Callable[[], str | None],
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._page = page
        self._live = live
        self._notices = notices
        self._current = current
        self._model_failure: Failed | None = None

    def take(self, event: object) -> None:
        match event:
            case Failed(conversation_id=None):
                self._model_failure = event
            case ModelLoaded():
                self._model_failure = None

    def load_requested(self) -> None:
        self._model_failure = None

    @Slot()
    def refresh(self) -> None:
        """After a change of state or language."""
        state = self._live.state_for(self._current())
        hint = self._hint(state)
        can_stop = hint is not None and state.is_measuring and not self._live.is_measurement_ending
        self._page.composer.set_hint(hint, self.tr("Stop measuring") if can_stop else "")
        self._page.empty.show_status(self._status(state), state.light.value)
        self._page.transcript.show_notice(self._notices.words(self._current()))

    def _hint(self, state: EngineState) -> str | None:
        """What sending now means; None where nothing is in its way."""
        if self._model_failure is not None:
            return failure_words(self._model_failure)
        if self._live.is_loading:
            return self.tr("The model is still loading; a message you send now waits for it")
        if not self._live.has_model:
            return self.tr("No model is loaded; choose one at the top")
        is_busy = self._page.composer.is_busy
        if state.is_measuring:
            if is_busy:
                return self.tr("This chat waits for the measurement of the cache lab")
            return self.tr("The cache lab is measuring; a message you send now waits for it")
        if not state.is_elsewhere or is_busy:
            return None
        if state.phase is Phase.COMPRESSING:
            return self.tr("Another chat is being compressed; a message you send now waits its turn")
        return self.tr("Another chat is answering; a message you send now waits its turn")

    def _status(self, state: EngineState) -> str:
        model = self._session.model
        if self._model_failure is not None:
            return failure_words(self._model_failure)
        if self._live.has_model and model is not None and not (self._live.is_loading or state.is_measuring):
            return self.tr("{model} is ready").format(model=model.name)
        return state.words()
