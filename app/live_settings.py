"""Settings that were changed while Ember runs: put into effect, and kept."""

from __future__ import annotations

import logging

from app.chat_session import ChatSession
from app.engine_port import EnginePort, engine_config
from app.errors import StorageError
from app.paths import DataPaths
from app.settings import Settings, save_settings
from engine.protocol.commands import Configure

_log = logging.getLogger(__name__)


class LiveSettings:
    """`current` is what the engine and the session were told last."""

    def __init__(self, paths: DataPaths, current: Settings, session: ChatSession, engine: EnginePort) -> None:
        self.current = current
        self._paths = paths
        self._session = session
        self._engine = engine

    def change(self, settings: Settings) -> None:
        """The engine hears only of what concerns it. Raises StorageError: they hold until the end then."""
        before, after = (engine_config(self._paths, one) for one in (self.current, settings))
        self.current = settings
        self._session.settings_changed(settings)
        if after != before:
            self._engine.submit(Configure(after))
        try:
            save_settings(self._paths.settings, settings)
        except StorageError as error:
            _log.warning("The settings were not saved: %s", error)
            raise
