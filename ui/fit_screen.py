"""The size of a dialog: as wanted, or what the screen has room for."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

FRAME_PX = 60  # of the window's title and edges, and some air


def resize_within_screen(widget: QWidget, width: int, height: int) -> None:
    room = widget.screen().availableSize()
    widget.resize(min(width, room.width() - FRAME_PX), min(height, room.height() - FRAME_PX))
