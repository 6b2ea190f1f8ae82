"""A page's plots and rows into files that the user chooses. Says in a sentence what came of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QStandardPaths, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.commands.csv_file import write_csv
from app.errors import AppError
from ui.lab.lab_runs import Measurement
from ui.lab.picture import draw_picture, save_picture
from ui.lab.run_words import facts_words
from ui.lab.view import View
from ui.theme import Theme


class ResultFiles(QObject):
    told = Signal(str)

    def __init__(self, theme: Theme, window: QWidget) -> None:
        super().__init__(window)
        self._theme = theme
        self._window = window
        self._folder = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)

    def ask_for_picture(self, view: View, run: Measurement) -> None:
        def save(path: str) -> None:
            self.save_picture_to(Path(path), view, run)

        self._ask(self.tr("Save picture"), self.tr("Pictures (*.png)"), f"{_stem(run)}.png", save)

    def ask_for_table(self, run: Measurement) -> None:
        def save(path: str) -> None:
            self.save_table_to(Path(path), run)

        self._ask(self.tr("Save table"), self.tr("Tables (*.csv)"), f"{_stem(run)}.csv", save)

    def save_picture_to(self, path: Path, view: View, run: Measurement) -> None:
        about = f"Ember · {facts_words(run)}"
        image = draw_picture(view.plots(run.found), self._theme.tokens, view.title(), about)
        self._try(path, lambda: save_picture(image, path))

    def save_table_to(self, path: Path, run: Measurement) -> None:
        self._try(path, lambda: write_csv(path, {"rows": run.rows}))

    def _try(self, path: Path, write: Callable[[], None]) -> None:
        self._folder = str(path.parent)
        try:
            write()
        except AppError as error:
            if error.code == "disk_full":
                words = self.tr("No space is left for {path}; free some or choose another place.")
            else:
                words = self.tr("{path} cannot be written; choose another place for it.")
            self.told.emit(words.format(path=path))
        else:
            self.told.emit(self.tr("Saved as {path}").format(path=path))

    def _ask(self, title: str, kinds: str, file_name: str, save: Callable[[str], None]) -> None:
        dialog = QFileDialog(self._window, title, self._folder)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilter(kinds)
        dialog.setDefaultSuffix(file_name.rpartition(".")[2])
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.selectFile(file_name)
        dialog.fileSelected.connect(save)
        dialog.open()


def _stem(run: Measurement) -> str:
    context = run.found.context
    return f"ember-{run.name}" + (f"-{context}" if context is not None else "")
