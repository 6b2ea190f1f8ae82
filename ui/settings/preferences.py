"""What the user chooses in the header's menus: kept in the settings and put into effect at once. GUI thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.model_library import ModelLibrary
from app.settings import Settings
from engine.protocol.config import Weights
from engine.protocol.errors import EngineError
from engine.protocol.events import Failed
from ui.language import Language
from ui.theme import Theme


class Preferences(QObject):
    changed = Signal(object)  # Settings
    load_requested = Signal(str)  # request id
    load_failed = Signal(object)  # Failed

    def __init__(
        self,
        settings: Settings,
        on_settings_changed: Callable[[Settings], None],
        session: ChatSession,
        library: ModelLibrary,
        theme: Theme,
        language: Language,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._settings = settings
        self._on_settings_changed = on_settings_changed
        self._session = session
        self._library = library
        self._theme = theme
        self._language = language

    @property
    def settings(self) -> Settings:
        return self._settings

    def change(self, **values: Any) -> None:
        """Keep new values of some fields."""
        self._settings = replace(self._settings, **values)
        self._on_settings_changed(self._settings)
        self.changed.emit(self._settings)

    @Slot(str)
    def choose_theme(self, mode: str) -> None:
        self.change(theme=mode)
        self._theme.set_mode(mode)

    @Slot(str)
    def choose_language(self, mode: str) -> None:
        self.change(language=mode)
        self._language.set_mode(mode)

    @Slot(str)
    def choose_send_key(self, send_with: str) -> None:
        self.change(send_with=send_with)

    @Slot(str)
    def choose_model(self, name: str) -> None:
        self.change(model=name)
        self._load()

    @Slot(str)
    def choose_weights(self, weights: str) -> None:
        self.change(weights=Weights(weights))
        self._load()

    def _load(self) -> None:
        try:
            path = self._library.resolve(self._settings.model)
        except EngineError as error:
            self.load_failed.emit(Failed("", None, error.code, str(error), error.params))
        else:
            self.load_requested.emit(self._session.load_model(path, self._settings.weights))
