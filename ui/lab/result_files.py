"""A page's plots and tables into files that the user chooses. Says in a sentence what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, QStandardPaths, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.errors import AppError
from app.experiments_file import Tables, measured_tables, write_bytes, write_tables
from ui.lab.lab_runs import Measurement, RunState
from ui.lab.picture import draw_picture, png_bytes
from ui.lab.plot_data import Plot
from ui.lab.run_words import about_words
from ui.lab.view import Table, View
from ui.theme import Theme


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page has to save. `stem`: of the files' names; `about`: what its numbers belong to; `words`: the tables as
    they are shown, for the picture; `tables`: the same as files.
    """

    stem: str
    title: str
    about: str
    plots: tuple[Plot, ...]
    words: tuple[Table, ...]
    tables: Tables


class ResultFiles(QObject):
    told = Signal(str)

    def __init__(self, theme: Theme, window: QWidget) -> None:
        super().__init__(window)
        self._theme = theme
        self._window = window
        self._folder = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)

    def ask_for_picture(self, shown: Shown) -> None:
        def save(path: str) -> None:
            self.save_picture_to(Path(path), shown)

        self._ask(self.tr("Save picture"), self.tr("Pictures (*.png)"), f"{shown.stem}.png", save)

    def ask_for_table(self, shown: Shown) -> None:
        def save(path: str) -> None:
            self.save_table_to(Path(path), shown)

        self._ask(self.tr("Save table"), self.tr("Tables (*.csv)"), f"{shown.stem}.csv", save)

    def save_picture_to(self, path: Path, shown: Shown) -> None:
        def write() -> list[Path]:
            image = draw_picture(shown.plots, self._theme.tokens, shown.title, shown.about, shown.words)
            write_bytes(path, png_bytes(image))
            return [path]

        self._try(path, write)

    def save_table_to(self, path: Path, shown: Shown) -> None:
        self._try(path, lambda: write_tables(path, shown.tables))

    def _try(self, path: Path, write: Callable[[], list[Path]]) -> None:
        self._folder = str(path.parent)
        try:
            files = write()
        except AppError as error:
            if error.code == "disk_full":
                words = self.tr("No space is left for {path}; free some or choose another place.")
            else:
                words = self.tr("{path} cannot be written; choose another place for it.")
            self.told.emit(words.format(path=error.params.get("path", path)))
            return
        words = self.tr("Saved as {path}").format(path=files[0])
        if len(files) > 1:
            others = ", ".join(file.name for file in files[1:])
            words = self.tr("Saved as {path}, and beside it {others}").format(path=files[0], others=others)
        self.told.emit(words)

    def _ask(self, title: str, kinds: str, file_name: str, save: Callable[[str], None]) -> None:
        dialog = QFileDialog(self._window, title, self._folder)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilter(kinds)
        dialog.setDefaultSuffix(file_name.rpartition(".")[2])
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.selectFile(file_name)
        dialog.fileSelected.connect(save)
        dialog.open()


def shown_of(view: View, run: Measurement) -> Shown:
    """What the page of a measurement has to save."""
    context, found = run.found.context, run.found
    return Shown(
        f"ember-{run.name}" + (f"-{context}" if context is not None else ""),
        view.title(),
        about_words(run),
        view.plots(found),
        view.tables(found),
        measured_tables(run.name, run.context, run.told, run.asked_at, is_whole=run.state is RunState.DONE),
    )
