"""The text of a PDF, through pypdf. Bounded in time: pypdf has no end of its own on a malicious file.

pypdf is imported when the first PDF is read: it is slow to import, and most people attach none.
"""

from __future__ import annotations

import logging
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING

from app.errors import AttachmentError, FileTooSlowError, PdfDamagedError, PdfLockedError, PdfWithoutTextError

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader

MOST_S = 120.0
_HEADER_WITHIN = 1024
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")  # what some programs' fonts call the space
# What pypdf lets through from a file that breaks the format; it has no common base for them.
_DAMAGE: tuple[type[Exception], ...] = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, AssertionError),
    *(NotImplementedError, struct.error, zlib.error, EOFError, OSError, MemoryError),
)


def is_pdf(data: bytes) -> bool:
    return b"%PDF-" in data[:_HEADER_WITHIN]


def pdf_text(data: bytes, name: str, *, most: int, go_on: Callable[[], None], clock: Callable[[], float]) -> str:
    """The text of all pages, "[Page n]" before each; more than `most` characters are cut off past that page.

    `go_on` is called many times a second and raises to end it. Raises PdfLockedError, PdfDamagedError,
    PdfWithoutTextError, FileTooSlowError.
    """
    until = clock() + MOST_S

    def check(*_operation: object) -> None:
        go_on()
        if clock() > until:
            raise FileTooSlowError(
                f"Reading {name} takes longer than {MOST_S:.0f} s; choose a part of it.",
                name=name,
                seconds=f"{MOST_S:.0f}",
            )

    pages: list[str] = []
    num_characters = 0
    for number, text in enumerate(_page_texts(data, name, check), start=1):
        pages.append(f"[Page {number}]\n{text}")
        num_characters += len(text)
        if num_characters > most:
            break
    if not num_characters:
        raise PdfWithoutTextError(
            f"{name} has pictures of pages and no text; run text recognition (OCR) on it first.", name=name
        )
    return "\n\n".join(pages)


def _page_texts(data: bytes, name: str, check: Callable[..., None]) -> Iterator[str]:
    from pypdf.errors import DependencyError, FileNotDecryptedError, PyPdfError, WrongPasswordError  # noqa: PLC0415

    damage: tuple[type[Exception], ...] = (PyPdfError, *_DAMAGE)
    try:
        reader = _opened(data)
        if reader is None:
            raise _locked(name)
        for page in reader.pages:
            check()
            yield _text_of(page, check)
    except AttachmentError:
        raise
    except (DependencyError, FileNotDecryptedError, WrongPasswordError) as error:
        raise _locked(name) from error
    except damage as error:
        raise PdfDamagedError(f"{name} is a damaged PDF; save it again, or choose a copy.", name=name) from error


def _opened(data: bytes) -> PdfReader | None:
    """None: it wants a password. Many PDFs are locked for editing only, with an empty one for reading."""
    from pypdf import PasswordType, PdfReader  # noqa: PLC0415

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of every small fault of a file
    reader = PdfReader(BytesIO(data))
    is_open = not reader.is_encrypted or reader.decrypt("") is not PasswordType.NOT_DECRYPTED
    return reader if is_open else None


def _text_of(page: PageObject, check: Callable[..., None]) -> str:
    lines = page.extract_text(visitor_operand_before=check).splitlines()
    return "\n".join(_CONTROLS.sub(" ", line).rstrip() for line in lines).strip()


def _locked(name: str) -> PdfLockedError:
    return PdfLockedError(f"{name} is locked with a password; save a copy without one.", name=name)
