"""Known failures of the app. Each message is one sentence that says what to do; everything else is a bug.

`code` names the kind for the window, which words it in the user's language with `params`; `str(error)` is the English
sentence for the command line and the log. `exit_code` is the command line's, from the public contract.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from engine.protocol.errors import ContextOverflowError, EngineError, MemoryBudgetError, ModelError


class AppError(Exception):
    code = "app"
    exit_code = 1

    def __init__(self, message: str, **params: str) -> None:
        super().__init__(message)
        self.params = params


class UserError(AppError):
    """What was asked for cannot be done as asked."""

    code = "user"
    exit_code = 2


class EmptyMessageError(UserError):
    """The message holds nothing but white space."""

    code = "empty_message"


class BusyError(UserError):
    """The conversation is still answering."""

    code = "busy"


class CompressingError(BusyError):
    """The conversation's cache is being compressed, or brought back."""

    code = "compressing"


class NothingToCompressError(UserError):
    """Nothing has been said in the conversation yet."""

    code = "nothing_to_compress"


class NothingToContinueError(UserError):
    """The last reply is whole, or there is none."""

    code = "nothing_to_continue"


class UnknownConversationError(UserError):
    """No conversation has this id. params: id."""

    code = "unknown_conversation"


class UnknownMessageError(UserError):
    """No message has this id. params: id."""

    code = "unknown_message"


class UnknownFolderError(UserError):
    """No folder has this id. params: id."""

    code = "unknown_folder"


class PresetNameError(UserError):
    """A preset cannot be called so: nothing, or too much, is left of the name. params: name."""

    code = "preset_name"


class PresetNameTakenError(PresetNameError):
    """Another preset has the name. params: name."""

    code = "preset_name_taken"


class PresetBuiltInError(PresetNameError):
    """The name is that of a preset that comes with Ember. params: name."""

    code = "preset_built_in"


class UnknownPresetError(UserError):
    """The user has no preset of this name. params: name."""

    code = "unknown_preset"


class SettingsImportError(UserError):
    """The file holds no settings of Ember. params: path."""

    code = "settings_import"


class NewerSettingsError(SettingsImportError):
    """The settings were exported by a newer Ember. params: path."""

    code = "newer_settings"


class ImportFailedError(UserError):
    """A file cannot be imported; nothing of it was kept. Its kinds are in `app.exchange.failures`. params: name."""

    code = "import_failed"


class StorageError(AppError):
    """The data folder cannot be read or written. params: path."""

    code = "storage"
    exit_code = 4


class ExportFailedError(StorageError):
    """A file cannot be written outside the data folder. params: path, reason."""

    code = "export_failed"


class ReadOnlyError(StorageError):
    """The data folder may not be written. params: path."""

    code = "read_only"


class DiskFullError(StorageError):
    """No space is left, or a quota is used up. params: path."""

    code = "disk_full"


class DatabaseBusyError(StorageError):
    """Another program keeps the database locked. params: path."""

    code = "database_busy"


class NewerDatabaseError(StorageError):
    """The database was made by a newer Ember; it is left untouched. params: path."""

    code = "newer_database"


class DamagedDatabaseError(StorageError):
    """The file is no database of Ember's, or a broken one; it is left untouched. params: path."""

    code = "damaged_database"


class AttachmentError(UserError):
    """A file cannot go with a message. params: name."""

    code = "attachment"


class FileMissingError(AttachmentError):
    """Nothing is there any more. params: name."""

    code = "attachment_missing"


class FileIsFolderError(AttachmentError):
    """A folder was given. params: name."""

    code = "attachment_folder"


class FileIsSpecialError(AttachmentError):
    """A device, a pipe or a socket: reading it might never end. params: name."""

    code = "attachment_special"


class FileDeniedError(AttachmentError):
    """Its rights forbid reading it. params: name."""

    code = "attachment_denied"


class FileUnreadableError(AttachmentError):
    """The system reports an error. params: name, reason."""

    code = "attachment_unreadable"


class FileEmptyError(AttachmentError):
    """There is nothing in it but white space. params: name."""

    code = "attachment_empty"


class FileTooLargeError(AttachmentError):
    """More bytes than are read. params: name, most."""

    code = "attachment_too_large"


class TextTooLongError(AttachmentError):
    """More text than goes with a message. params: name, most: characters."""

    code = "attachment_too_long"


class NotTextError(AttachmentError):
    """A picture, an archive, a program: no text. params: name."""

    code = "attachment_not_text"


class PdfLockedError(AttachmentError):
    """A PDF that wants a password. params: name."""

    code = "attachment_pdf_locked"


class PdfDamagedError(AttachmentError):
    """A PDF that cannot be taken apart. params: name."""

    code = "attachment_pdf_damaged"


class PdfWithoutTextError(AttachmentError):
    """A PDF of pictures, such as a scan. params: name."""

    code = "attachment_pdf_without_text"


class FileTooSlowError(AttachmentError):
    """Taking it apart takes longer than one should wait. params: name, seconds."""

    code = "attachment_too_slow"


class TooManyFilesError(AttachmentError):
    """More files than go with one message. params: most."""

    code = "attachment_too_many"


class AlreadyRunningError(AppError):
    """Another Ember holds the data folder. params: path."""

    code = "already_running"
    exit_code = 5


class EngineFailedError(AppError):
    """The engine answered a call of the command line with `Failed`."""

    def __init__(self, code: str, message: str, **params: str) -> None:
        super().__init__(message, **params)
        self.code = code
        self.exit_code = exit_code_of(code)


class InterruptedCallError(AppError):
    """Ctrl+C, or a polite end by the system."""

    code = "interrupted"
    exit_code = 130


def exit_code_of(engine_code: str) -> int:
    """The exit code for the kind of an EngineError."""
    if engine_code in _MODEL_CODES:
        return 3
    if engine_code == "no_scratch":
        return StorageError.exit_code
    return 2 if engine_code in _USAGE_CODES else 1


def _codes(kind: type[EngineError]) -> set[str]:
    return {kind.code}.union(*(_codes(below) for below in kind.__subclasses__()))


_MODEL_CODES = _codes(ModelError)
_USAGE_CODES = {
    ContextOverflowError.code,
    MemoryBudgetError.code,
    "cannot_compress",
    "cannot_measure",
    "compression_share",
    "nothing_to_undo",
    "too_short_to_compress",
}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR}


def from_os_error(error: OSError, path: Path) -> StorageError:
    """The storage failure behind a failed file operation on `path`."""
    if error.errno in _FULL:
        return _disk_full(path)
    if error.errno in _READ_ONLY:
        return _read_only(path)
    return _unreadable(path, error.strerror or str(error))


def from_sqlite_error(error: sqlite3.Error, path: Path) -> StorageError:
    """The storage failure behind a failed statement on the database at `path`."""
    extended = getattr(error, "sqlite_errorcode", None)
    primary = extended & 0xFF if isinstance(extended, int) else None  # the low byte is the primary result code
    if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG):
        return _disk_full(path)
    if extended in (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE):
        return _disk_full(path)  # a file size limit (EFBIG) and a full tmpfs are told this way
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return _read_only(path)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatabaseBusyError(
            f"Another program is using {path}; close it, or try again in a moment.", path=str(path)
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, "it is damaged")
    return _unreadable(path, str(error))


def damaged(path: Path, why: str) -> DamagedDatabaseError:
    """`why` reads as in "it is damaged"."""
    return DamagedDatabaseError(
        f"Ember cannot read {path}, since {why}; it was left untouched: "
        "move it away to start afresh, or put a backup in its place.",
        path=str(path),
    )


def _disk_full(path: Path) -> DiskFullError:
    return DiskFullError(
        f"Ember cannot save to {path}, since no space is left on the disk; free some space and try again.",
        path=str(path),
    )


def _read_only(path: Path) -> ReadOnlyError:
    return ReadOnlyError(
        f"Ember cannot write to {path}; make the folder writable, or choose another one with --data-dir.",
        path=str(path),
    )


def _unreadable(path: Path, reason: str) -> StorageError:
    return StorageError(
        f"Ember cannot use {path} ({reason}); check the disk, or choose another folder with --data-dir.",
        path=str(path),
    )
