"""A file -> an attachment, the text that the model reads of it. No Qt; blocks, so the window calls it from a thread.

What a file is, its bytes decide, not its name. Nothing here waits for more than the disk: what is no ordinary file is
refused before it is read.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from app.attachment_pdf import is_pdf, pdf_text
from app.attachment_text import decoded
from app.conversation import Attachment
from app.errors import (
    AttachmentError,
    FileDeniedError,
    FileEmptyError,
    FileIsFolderError,
    FileIsSpecialError,
    FileMissingError,
    FileTooLargeError,
    FileUnreadableError,
    NotTextError,
    TextTooLongError,
)
from app.history import well_formed

MOST_BYTES = 20_000_000
MOST_CHARACTERS = 4_000_000
_CHUNK_BYTES = 1 << 20


class ReadingEndedError(Exception):
    """`is_cancelled` said so; nobody waits for the file any more."""


def _never() -> bool:
    return False


def read_attachment(path: Path, *, is_cancelled: Callable[[], bool] = _never) -> Attachment:
    """Read a text, Markdown, code or PDF. Raises AttachmentError, and ReadingEndedError when `is_cancelled`."""
    name = shown_name(path)

    def go_on() -> None:
        if is_cancelled():
            raise ReadingEndedError

    data = _bytes_of(path, name, go_on)
    if is_pdf(data):
        text = pdf_text(data, name, most=MOST_CHARACTERS, go_on=go_on, clock=time.monotonic)
        text = well_formed(text)
    else:
        text = _text_of(data, name)
    _refuse_long(text, name)
    return Attachment(name, text, len(data))


def pasted_attachment(text: str, name: str) -> Attachment:
    """A text that was pasted and is too long for the field. Raises TextTooLongError."""
    text = well_formed(text).replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")
    _refuse_long(text, name)
    return Attachment(name, text, len(text.encode()))


def shown_name(path: Path) -> str:
    """The file's name as it can be shown and stored: names on disk need not be well-formed text."""
    return well_formed(path.name or str(path)).replace("\n", " ")


def _text_of(data: bytes, name: str) -> str:
    text = decoded(data)
    if text is None:
        raise NotTextError(f"{name} is no text; choose a text, code or a PDF.", name=name)
    if not text.strip():
        raise FileEmptyError(f"{name} is empty; choose a file with text in it.", name=name)
    return text


def _bytes_of(path: Path, name: str, go_on: Callable[[], None]) -> bytes:
    try:
        _refuse_special(path.stat().st_mode, name)  # before opening: that waits at a pipe, and acts on a device
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:  # noqa: PTH123  # of a handle
            _refuse_special(os.fstat(handle).st_mode, name)
            data = bytearray()
            while chunk := file.read(_CHUNK_BYTES):
                go_on()
                data += chunk
                if len(data) > MOST_BYTES:
                    raise _too_large(name)
    except FileNotFoundError as error:
        raise FileMissingError(f"{name} is no longer there; choose it again.", name=name) from error
    except PermissionError as error:
        raise FileDeniedError(f"{name} may not be read; change its rights, or choose a copy.", name=name) from error
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise FileUnreadableError(
            f"{name} cannot be read ({reason}); try again, or choose a copy.", name=name, reason=reason
        ) from error
    return bytes(data)


def _refuse_special(mode: int, name: str) -> None:
    if stat.S_ISDIR(mode):
        raise FileIsFolderError(f"{name} is a folder; choose the files in it.", name=name)
    if not stat.S_ISREG(mode):
        raise FileIsSpecialError(f"{name} is no ordinary file; choose a text or a PDF.", name=name)


def _refuse_long(text: str, name: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise TextTooLongError(
            f"{name} has more than {MOST_CHARACTERS:,} characters of text; choose a part of it.",
            name=name,
            most=f"{MOST_CHARACTERS:,}",
        )


def _too_large(name: str) -> AttachmentError:
    most = f"{MOST_BYTES // 1_000_000} MB"
    return FileTooLargeError(
        f"{name} is larger than {most}; choose a smaller file, or a part of it.", name=name, most=most
    )
