"""One way of drawing replies in a chat: as in the settings, or a value of the chat's own."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtWidgets import QCheckBox, QGridLayout, QLabel

from ui.settings.controls import NumberControl
from ui.settings.words import field_words

_CONTROL_WIDTH = 220


class OptionRow(QObject):
    """Three widgets in a row of a grid. While it follows the settings, their value is shown and cannot be changed."""

    changed = Signal()

    def __init__(self, setting: Field[Any], settings_value: float, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.name = setting.name
        self._settings_value = settings_value
        self.label = QLabel()
        self.control = NumberControl(setting)
        self.control.setFixedWidth(_CONTROL_WIDTH)
        self.follows = QCheckBox()
        self.follows.toggled.connect(self._on_follows_toggled)
        self.control.changed.connect(self.changed)
        self.show_value(None)

    @property
    def value(self) -> float | None:
        """None follows the settings."""
        return None if self.follows.isChecked() else self.control.value()

    def show_value(self, value: float | None) -> None:
        self.follows.setChecked(value is None)
        self.control.setEnabled(value is not None)
        self.control.show_value(self._settings_value if value is None else value)

    def add_to(self, grid: QGridLayout, row: int) -> None:
        grid.addWidget(self.label, row, 0)
        grid.addWidget(self.control, row, 1)
        grid.addWidget(self.follows, row, 2)

    def retranslate(self) -> None:
        words = field_words(self.name)
        self.label.setText(words.label)
        self.label.setToolTip(words.help)
        self.control.retranslate()
        self.control.set_name(words.label, words.help)
        self.follows.setText(self.tr("As in the settings"))
        self.follows.setAccessibleName(self.tr("{name}: as in the settings").format(name=words.label))

    @Slot(bool)
    def _on_follows_toggled(self, follows: bool) -> None:
        self.control.setEnabled(not follows)
        if follows:
            self.control.show_value(self._settings_value)
        self.changed.emit()
