"""A key's name at the right end inside of the control that it works."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget


def key_label(owner: QWidget) -> QLabel:
    label = QLabel(owner)
    label.setProperty("kind", "key")
    label.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
    row = QHBoxLayout(owner)
    row.setContentsMargins(0, 0, 10, 0)
    row.addStretch(1)
    row.addWidget(label, 0, Qt.AlignmentFlag.AlignVCenter)
    return label
