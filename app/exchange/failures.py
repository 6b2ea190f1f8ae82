"""Why a file cannot be imported. Each sentence names the file; nothing of it was kept. params: name, and those said."""

from __future__ import annotations

from pathlib import Path

from app.errors import ImportFailedError


class ImportUnreadableError(ImportFailedError):
    """The file is not there, no ordinary file, or may not be read. params: reason."""

    code = "import_unreadable"


class ImportTooLargeError(ImportFailedError):
    """params: most, in MB."""

    code = "import_too_large"


class ImportNotTextError(ImportFailedError):
    """Neither UTF-8 nor UTF-16."""

    code = "import_not_text"


class ImportNotJsonError(ImportFailedError):
    """params: line, counted from 1."""

    code = "import_not_json"


class ImportUnknownFormatError(ImportFailedError):
    """JSON, and nothing that Ember knows as conversations."""

    code = "import_unknown_format"


class ImportNewerError(ImportFailedError):
    """An export of a newer Ember."""

    code = "import_newer"


class ImportDamagedError(ImportFailedError):
    """An export of Ember's in which something is missing or makes no sense. params: place."""

    code = "import_damaged"


class ImportEmptyError(ImportFailedError):
    """There is no conversation in it, or none with a message."""

    code = "import_empty"


def unreadable(path: Path, reason: str) -> ImportUnreadableError:
    return ImportUnreadableError(
        f"{path} cannot be read ({reason}); choose another file.", name=path.name, reason=reason
    )


def too_large(path: Path, most_mb: int) -> ImportTooLargeError:
    return ImportTooLargeError(
        f"{path} is larger than {most_mb} MB; export fewer conversations at a time.",
        name=path.name,
        most=str(most_mb),
    )


def not_text(path: Path) -> ImportNotTextError:
    return ImportNotTextError(
        f"{path} is no text in UTF-8 or UTF-16; choose a JSON file that a chat program exported.", name=path.name
    )


def not_json(path: Path, line: int) -> ImportNotJsonError:
    return ImportNotJsonError(
        f"{path} is no JSON (line {line}); choose a file that a chat program exported, whole and unchanged.",
        name=path.name,
        line=str(line),
    )


def unknown_format(path: Path) -> ImportUnknownFormatError:
    return ImportUnknownFormatError(
        f"{path} holds no conversations in a form that Ember knows; choose an export of Ember or of ChatGPT "
        '(conversations.json), or a list of {"role", "content"}.',
        name=path.name,
    )


def newer(path: Path) -> ImportNewerError:
    return ImportNewerError(f"{path} was exported by a newer Ember; update Ember to import it.", name=path.name)


def damaged_export(path: Path, place: str) -> ImportDamagedError:
    return ImportDamagedError(
        f"{path} is damaged ({place}); export it again, or put the part right by hand.", name=path.name, place=place
    )


def empty(path: Path) -> ImportEmptyError:
    return ImportEmptyError(f"There is no conversation in {path}; choose another file.", name=path.name)
