"""What was dropped or pasted: files of this machine, or text."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QMimeData
from PySide6.QtGui import QTextDocumentFragment


def files_of(source: QMimeData) -> list[Path]:
    """The files; none when there is something else among them, such as a link."""
    urls = source.urls()
    return [Path(url.toLocalFile()) for url in urls] if urls and all(url.isLocalFile() for url in urls) else []


def text_of(source: QMimeData) -> str:
    """The text without its look; "" where there is none."""
    if source.hasText():
        return source.text().replace("\0", "")
    return QTextDocumentFragment.fromHtml(source.html()).toPlainText() if source.hasHtml() else ""


def is_picture(source: QMimeData) -> bool:
    """A picture and nothing that could be written instead."""
    return source.hasImage() and not source.hasText() and not source.urls()
