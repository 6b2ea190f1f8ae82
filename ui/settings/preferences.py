"""What the user chooses in menus and in the settings: kept, and put into effect at once. GUI thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_session import ChatSession
from app.errors import AppError
from app.model_library import ModelLibrary
from app.settings import Group, Settings, checked
from engine.protocol.config import Weights
from engine.protocol.errors import EngineError
from engine.protocol.events import Failed
from ui.language import Language
from ui.theme import Theme

_FIELDS = {setting.name: setting for setting in fields(Settings)}


class Preferences(QObject):
    changed = Signal(object)  # Settings
    save_failed = Signal(object)  # AppError; the new values count nevertheless, until Ember ends
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
        """Keep new values of some fields and put them into effect; the model is loaded again where it must be."""
        before = self._settings
        self._settings = replace(before, **values)
        try:
            self._on_settings_changed(self._settings)
        except AppError as error:
            self.save_failed.emit(error)
        if self._settings.theme != before.theme:
            self._theme.set_mode(self._settings.theme)
        if self._settings.language != before.language:
            self._language.set_mode(self._settings.language)
        self.changed.emit(self._settings)
        if (self._settings.model, self._settings.weights) != (before.model, before.weights):
            self._load()

    def set_value(self, name: str, value: object) -> None:
        """Keep what a control says of one field. Raises ValueError where the field cannot have that value."""
        setting = _FIELDS[name]
        self.change(**{name: checked(setting.default, value, setting.metadata)})

    def restore_defaults(self, group: Group) -> None:
        """All fields of a group, as they were when Ember was new."""
        defaults = {name: one.default for name, one in _FIELDS.items() if one.metadata["group"] is group}
        self.change(**{name: value for name, value in defaults.items() if not _FIELDS[name].metadata["is_hidden"]})

    @Slot(str)
    def choose_theme(self, mode: str) -> None:
        self.change(theme=mode)

    @Slot(str)
    def choose_language(self, mode: str) -> None:
        self.change(language=mode)

    @Slot(str)
    def choose_send_key(self, send_with: str) -> None:
        self.change(send_with=send_with)

    @Slot(str)
    def choose_model(self, name: str) -> None:
        """The same one again is loaded again: it may have failed before."""
        if name == self._settings.model:
            self._load()
        else:
            self.change(model=name)

    @Slot(str)
    def choose_weights(self, weights: str) -> None:
        if weights == self._settings.weights:
            self._load()
        else:
            self.change(weights=Weights(weights))

    def _load(self) -> None:
        try:
            path = self._library.resolve(self._settings.model)
        except EngineError as error:
            self.load_failed.emit(Failed("", None, error.code, str(error), error.params))
        else:
            self.load_requested.emit(self._session.load_model(path, self._settings.weights))
