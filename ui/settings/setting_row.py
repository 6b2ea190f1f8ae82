"""One setting in the dialog: its name, its control, the way back to its default, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.settings import Group
from ui.settings.controls import CONTROL_WIDTH, ChoiceControl, Control, TextControl, control_for
from ui.settings.words import choice_words, effect_words, field_words
from ui.tokens import SPACE_L, SPACE_S

_RESET_SIZE = 26
_TEXT_HEIGHT = 108


class SettingRow(QWidget):
    changed = Signal(str, object)  # name, value

    def __init__(
        self, setting: Field[Any], choices: Mapping[str, str] | None = None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.name = setting.name
        self.group: Group = setting.metadata["group"]
        self._setting = setting
        self.control: Control = control_for(setting, choices)
        self.label = QLabel()
        self._help = QLabel()
        self._help.setProperty("kind", "muted")
        self._help.setWordWrap(True)
        self.reset_button = QPushButton("↺")
        self.reset_button.setProperty("kind", "flat")
        self.reset_button.setAutoDefault(False)
        self.reset_button.setFixedSize(_RESET_SIZE, _RESET_SIZE)
        policy = self.reset_button.sizePolicy()
        policy.setRetainSizeWhenHidden(True)
        self.reset_button.setSizePolicy(policy)
        self._lay_out()
        self.control.changed.connect(self._on_control_changed)
        self.reset_button.clicked.connect(self._on_reset_clicked)
        self.retranslate()

    @property
    def is_default(self) -> bool:
        return bool(self.control.value() == self._setting.default)

    def show_value(self, value: object) -> None:
        self.control.show_value(value)
        self._show_reset()

    def reset(self) -> None:
        self.control.finish()
        if not self.is_default:
            self.show_value(self._setting.default)
            self.changed.emit(self.name, self._setting.default)

    def matches(self, query: str) -> bool:
        """Whether its words, or those it can be chosen from, hold all words of `query`."""
        words = field_words(self.name)
        choices = choice_words(self.name).values() if self._setting.metadata["choices"] else ()
        text = " ".join((words.label, words.help, self.name.replace("_", " "), *choices)).casefold()
        return all(part in text for part in query.casefold().split())

    def set_choices(self, choices: Mapping[str, str]) -> None:
        """For a field that is chosen from what there is."""
        assert isinstance(self.control, ChoiceControl)
        self.control.set_choices(choices)

    def retranslate(self) -> None:
        words = field_words(self.name)
        text = " ".join(filter(None, (words.help, effect_words(self._setting.metadata["effect"]))))
        self.label.setText(words.label)
        self._help.setText(text)
        self.control.retranslate()
        self.control.set_name(words.label, text)
        self.reset_button.setAccessibleName(self.tr("Restore the default: {name}").format(name=words.label))
        self.reset_button.setToolTip(self.tr("Restore the default"))

    @Slot(object)
    def _on_control_changed(self, value: object) -> None:
        self._show_reset()
        self.changed.emit(self.name, value)

    @Slot()
    def _on_reset_clicked(self) -> None:
        self.control.focus.setFocus(Qt.FocusReason.OtherFocusReason)  # the button goes
        self.reset()

    def _show_reset(self) -> None:
        self.reset_button.setVisible(not self.is_default)

    def set_narrow(self, is_narrow: bool) -> None:
        """Where there is little room, the control stands under the words."""
        self._row.setDirection(QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight)

    def _lay_out(self) -> None:
        words = QVBoxLayout()
        words.setSpacing(1)
        words.addWidget(self.label)
        words.addWidget(self._help)
        changing = QHBoxLayout()
        changing.setSpacing(SPACE_S)
        changing.addWidget(self.control)
        changing.addWidget(self.reset_button)
        self._row = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._row.setSpacing(SPACE_S)
        self._row.addLayout(words, 1)
        self._row.addLayout(changing)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, SPACE_S, 0, SPACE_S)
        column.setSpacing(SPACE_S)
        column.addLayout(self._row)
        if isinstance(self.control, TextControl):
            self._row.removeItem(changing)
            column.addLayout(changing)
            self.control.setFixedHeight(_TEXT_HEIGHT)
        else:
            words.setContentsMargins(0, 0, SPACE_L, 0)
            changing.addStretch(1)
            self.control.setFixedWidth(CONTROL_WIDTH)
