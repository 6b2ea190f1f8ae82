"""The names of presets: those that come with Ember are worded, the user's stay as they were given."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.presets import Preset


def _tr(source: str) -> str:
    return QCoreApplication.translate("Settings", source)


def preset_name(preset: Preset) -> str:
    if not preset.is_built_in:
        return preset.name
    match preset.name:
        case "Precise":
            return _tr("Precise")
        case "Balanced":
            return _tr("Balanced")
        case "Creative":
            return _tr("Creative")
    return preset.name
