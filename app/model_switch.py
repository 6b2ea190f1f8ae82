"""Which model is loaded, or on its way, and which one a conversation wants. Used by the parts of `app.chat_session`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.conversation import Conversation
from app.engine_port import EnginePort
from app.errors import EngineFailedError
from app.settings import Settings
from engine.protocol.commands import LoadModel
from engine.protocol.config import Weights
from engine.protocol.errors import EngineError
from engine.protocol.events import EngineStopped, Event, Failed, ModelInfo, ModelLoaded

FindModel = Callable[[str], Path]  # a name or path; raises EngineError


class ModelSwitch:
    """`info` is None while nothing is loaded. `find_model` None: conversations take whatever model is there."""

    def __init__(self, engine: EnginePort, find_model: FindModel | None = None) -> None:
        self.info: ModelInfo | None = None
        self.name: str | None = None  # of the one loaded or on its way
        self._engine = engine
        self._find_model = find_model
        self._request_id: str | None = None
        self._path: Path | None = None

    @property
    def tokenizer_id(self) -> str | None:
        return self.info.tokenizer_id if self.info else None

    @property
    def is_loading(self) -> bool:
        return self._request_id is not None

    def load(self, request_id: str, path: Path, weights: Weights) -> None:
        self._request_id = request_id
        self._path = path
        self.name = path.name
        self._engine.submit(LoadModel(request_id, path, weights))

    def missing_for(self, conversation: Conversation, settings: Settings) -> Path | None:
        """The model to load before the conversation goes on; None where the right one is there or on its way.

        A conversation without a model of its own takes the settings' one back where another chat's was loaded.
        Raises EngineFailedError when its own model is gone.
        """
        if self._find_model is None or self._path is None:
            return None
        try:
            wanted = self._find_model(conversation.model or settings.model)
        except EngineError as error:
            if conversation.model is None:
                return None  # what is loaded will do
            raise EngineFailedError(error.code, str(error), **error.params) from error
        return None if wanted == self._path and (self.info is not None or self.is_loading) else wanted

    def take(self, event: Event) -> bool:
        """Whether the event ended the load that was waited for."""
        match event:
            case ModelLoaded():
                self.info = event.model
                return self._ended(event.request_id)
            case Failed() if event.request_id == self._request_id:
                self.info = None  # the one before was given up first
                return self._ended(event.request_id)
            case EngineStopped():
                self.info = None
        return False

    def _ended(self, request_id: str) -> bool:
        if request_id != self._request_id:
            return False
        self._request_id = None
        return True
