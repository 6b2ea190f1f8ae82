"""Chats to files and from files that the user chooses: asks where, writes, reads, and says what came of it. GUI thread.

A file is written as a whole or not at all, and read as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path

from PySide6.QtCore import QObject, QStandardPaths, Qt, Signal, Slot
from PySide6.QtWidgets import QFileDialog, QWidget

from app.conversation_store import ConversationStore
from app.errors import AppError
from app.exchange.ember_json import export_json
from app.exchange.export_file import write_export
from app.exchange.html_export import export_html
from app.exchange.import_file import ImportResult
from app.exchange.markdown_export import export_markdown
from app.exchange.names import Names
from ui import numbers
from ui.sidebar.file_names import file_stem
from ui.sidebar.import_job import ImportJob
from ui.sidebar.row_words import chats_words, title_words
from ui.sidebar.skipped_words import skipped_words

_SUFFIXES = {"markdown": "md", "html": "html", "json": "json"}


class ExchangeActions(QObject):
    """`told` says in a sentence what is going on or what came of it."""

    imported = Signal(object)  # ImportResult
    exported = Signal(str)  # the path of the file
    failed = Signal(object)  # AppError
    told = Signal(str)

    def __init__(
        self,
        store: ConversationStore,
        parent: QWidget,
        *,
        hidden: Callable[[], Collection[str]] = frozenset,
        language: Callable[[], str] = lambda: "en",
    ) -> None:
        """`hidden`: the chats that are being deleted, which `export_all` leaves out. `language`: "en" or "ko"."""
        super().__init__(parent)
        self._window = parent
        self._store = store
        self._hidden = hidden
        self._language = language
        self._folder = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)
        self._paths: list[Path] = []
        self._job: ImportJob | None = None

    @property
    def is_importing(self) -> bool:
        return self._job is not None

    @Slot(object, str)
    def export_chats(self, conversation_ids: Sequence[str], file_format: str) -> None:
        """Ask for a file and write these chats into it, as "markdown", "html" or "json"."""
        try:
            titles = [self._store.conversation(one).title for one in conversation_ids]
        except AppError as error:
            self.failed.emit(error)
            return
        if not titles:
            return
        several = self.tr("Ember chats")
        stem = file_stem(title_words(titles[0]), several) if len(titles) == 1 else _dated(several)
        ids = list(conversation_ids)
        self._ask_where(stem, file_format, lambda path: self._write(Path(path), ids, file_format))

    @Slot()
    def export_all(self) -> None:
        """Everything but incognito chats and those being deleted, as JSON."""
        hidden = self._hidden()
        try:
            chats = self._store.conversations()
        except AppError as error:
            self.failed.emit(error)
            return
        ids = [one.id for one in chats if not one.is_incognito and one.id not in hidden]
        stem = _dated(self.tr("Ember chats"))
        self._ask_where(stem, "json", lambda path: self._write(Path(path), ids, "json"))

    @Slot()
    def import_files(self) -> None:
        """Ask for files and take in their chats, one file after the other."""
        dialog = self._dialog(self.tr("Import chats"), self.tr("Exported chats (*.json *.jsonl)"))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.filesSelected.connect(self.import_from)
        dialog.open()

    @Slot(object)
    def import_from(self, paths: Sequence[str]) -> None:
        self._paths.extend(map(Path, paths))
        self._next_import()

    def stop(self) -> None:
        """The window closes: nothing is kept of a file that is not in as a whole."""
        self._paths.clear()
        if self._job is not None:
            self._job.stop()
            self._job = None

    def _ask_where(self, stem: str, file_format: str, write: Callable[[str], None]) -> None:
        suffix = _SUFFIXES[file_format]
        filters = {
            "markdown": self.tr("Markdown (*.md)"),
            "html": self.tr("Web page (*.html)"),
            "json": self.tr("Chats of Ember (*.json)"),
        }
        dialog = self._dialog(self.tr("Export chats"), filters[file_format])
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(suffix)
        dialog.selectFile(f"{stem}.{suffix}")
        dialog.fileSelected.connect(write)
        dialog.open()

    def _dialog(self, title: str, name_filter: str) -> QFileDialog:
        dialog = QFileDialog(self._window, title, self._folder)
        dialog.setNameFilters([name_filter, self.tr("All files (*)")])
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.directoryEntered.connect(self._on_folder_entered)
        return dialog

    @Slot(str)
    def _on_folder_entered(self, folder: str) -> None:
        self._folder = folder

    def _write(self, path: Path, ids: Sequence[str], file_format: str) -> None:
        self._folder = str(path.parent)
        try:
            write_export(path, self._text(ids, file_format))
        except AppError as error:
            self.failed.emit(error)
            return
        self.exported.emit(str(path))
        words = self.tr("Saved {chats} as {file}").format(chats=chats_words(len(ids)), file=path.name)
        self.told.emit(words)

    def _text(self, ids: Sequence[str], file_format: str) -> str:
        if file_format == "json":
            return export_json(self._store, ids)
        names = self._names()
        chats = [(self._store.conversation(one), self._store.messages(one)) for one in ids]
        if file_format == "html":
            return export_html(chats, names)
        return "\n---\n\n".join(export_markdown(chat, messages, names) for chat, messages in chats)

    def _names(self) -> Names:
        return Names(
            user=self.tr("You"),
            assistant=self.tr("Assistant"),
            system=self.tr("System prompt"),
            attached=self.tr("Attached"),
            untitled=self.tr("New chat"),
            language=self._language(),
        )

    def _next_import(self) -> None:
        if self._job is not None or not self._paths:
            return
        path = self._paths.pop(0)
        self._job = ImportJob(self._store, path, self)
        self._job.progressed.connect(self._on_progressed)
        self._job.finished.connect(self._on_import_finished)
        self._job.failed.connect(self._on_import_failed)
        self.told.emit(self.tr("Reading {file}…").format(file=path.name))
        self._job.start()

    @Slot(int, int)
    def _on_progressed(self, num_stored: int, num_chats: int) -> None:
        if num_stored < num_chats:
            words = self.tr("Importing {count} of {chats}…")
            self.told.emit(words.format(count=numbers.count(num_stored), chats=chats_words(num_chats)))

    @Slot(object)
    def _on_import_finished(self, result: ImportResult) -> None:
        self._end_job()
        words = [self.tr("Imported {chats}").format(chats=chats_words(result.num_conversations))]
        if result.skipped:
            words.append(self.tr("left out: {kinds}").format(kinds="; ".join(map(skipped_words, result.skipped))))
        self.told.emit(", ".join(words))
        self.imported.emit(result)
        self._next_import()

    @Slot(object)
    def _on_import_failed(self, error: AppError) -> None:
        self._end_job()
        self.failed.emit(error)
        self._next_import()

    def _end_job(self) -> None:
        if self._job is not None:
            self._job.deleteLater()
            self._job = None


def _dated(words: str) -> str:
    return f"{words} {datetime.now().astimezone():%Y-%m-%d}"
