"""The installed models as choices of a combo box."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.model_library import ModelLibrary
from app.settings import Settings


def _tr(source: str) -> str:
    return QCoreApplication.translate("Settings", source)


def model_choices(library: ModelLibrary) -> dict[str, str]:
    """Value of `Settings.model` -> words. The model that comes with Ember is "", wherever it lies."""
    choices = {"": _tr("The one that comes with Ember")}
    for entry in library.models():
        if entry.is_default:
            choices[""] = _tr("{name} (default)").format(name=entry.name)
        else:
            choices[entry.name] = entry.name
    return choices


def shown_model(model: str, library: ModelLibrary) -> str:
    """The choice that stands for this setting: the model that comes with Ember may be called by its name, too."""
    own = {entry.name for entry in library.models() if entry.is_default}
    return "" if model in own else model


def chat_model_choices(library: ModelLibrary, settings: Settings) -> dict[str, str]:
    """The same for `Conversation.model`, where "" stands for None: as in the settings."""
    entries = library.models()
    followed = settings.model or next((entry.name for entry in entries if entry.is_default), "")
    as_settings = _tr("As in the settings ({name})").format(name=followed) if followed else _tr("As in the settings")
    return {"": as_settings} | {entry.name: entry.name for entry in entries}
