"""Settings and presets to and from a file that the user chooses. All of a file counts, or nothing changes."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Qt, Slot
from PySide6.QtWidgets import QFileDialog, QWidget

from app.errors import AppError
from app.model_library import ModelLibrary
from app.presets import Presets
from app.settings_exchange import export_settings, read_exported_settings
from engine.protocol.errors import EngineError
from ui.error_words import error_words
from ui.settings.dialog_notice import DialogNotice
from ui.settings.preferences import Preferences
from ui.settings.problem_words import problem_names

_FILE_NAME = "ember-settings.json"


class SettingsFiles(QObject):
    def __init__(
        self,
        preferences: Preferences,
        library: ModelLibrary,
        presets: Presets,
        notice: DialogNotice,
        window: QWidget,
    ) -> None:
        super().__init__(window)
        self._preferences = preferences
        self._library = library
        self._presets = presets
        self._notice = notice
        self._window = window

    @Slot()
    def ask_for_export(self) -> None:
        dialog = self._file_dialog(self.tr("Export settings"))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("json")
        dialog.selectFile(_FILE_NAME)
        dialog.fileSelected.connect(self.export_to)
        dialog.open()

    @Slot()
    def ask_for_import(self) -> None:
        dialog = self._file_dialog(self.tr("Import settings"))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(self.import_from)
        dialog.open()

    @Slot(str)
    def export_to(self, path: str) -> None:
        try:
            export_settings(Path(path), self._preferences.settings, self._presets.own())
        except AppError as error:
            self._notice.show_words(self._file_words(error))
        else:
            self._notice.show_words(self.tr("Settings and presets are in {path} now.").format(path=path))

    @Slot(str)
    def import_from(self, path: str) -> None:
        try:
            found = read_exported_settings(Path(path), self._knows_model)
            if found.presets:
                self._presets.save_all(found.presets)
        except AppError as error:
            self._notice.show_words(self._file_words(error))
            return
        words = self.tr("{settings} settings and {presets} presets were taken over.").format(
            settings=len(found.values), presets=len(found.presets)
        )
        if found.problems:
            words += " " + self.tr("These could not be used and were left out: {names}").format(
                names=problem_names(found.problems)
            )
        self._notice.show_words(words)
        self._preferences.change(**found.values)  # last: that they could not be saved matters more

    def _knows_model(self, name: str) -> bool:
        try:
            self._library.resolve(name)
        except EngineError:
            return False
        return True

    def _file_words(self, error: AppError) -> str:
        path = error.params.get("path", "")
        match error.code:
            case "storage" | "read_only":
                return self.tr("{path} cannot be read or written; choose another place.").format(path=path)
            case "disk_full":
                return self.tr("No space is left for {path}; free some or choose another place.").format(path=path)
        return error_words(error)

    def _file_dialog(self, title: str) -> QFileDialog:
        dialog = QFileDialog(self._window, title)
        dialog.setNameFilter(self.tr("Settings of Ember (*.json)"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        return dialog
