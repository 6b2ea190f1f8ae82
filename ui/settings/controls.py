"""The controls settings are changed with, one for each kind of value, made from a field's own definition.

Each tells a value once it is whole: a number when it was typed to its end, a text when the typing rests. What cannot
be a value cannot be entered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from PySide6.QtCore import QLocale, QSignalBlocker, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QGuiApplication, QWheelEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QHBoxLayout,
    QPlainTextEdit,
    QSlider,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from ui.settings.words import choice_words, unit_words
from ui.tokens import SPACE_M

CONTROL_WIDTH = 290
_NUMBER_WIDTH = 124
_NUMBER_MARGIN = 8  # the style sheet's padding does not reach the number
_TEXT_HEIGHT = 108
_REST_MS = 600  # after which typing counts as rested
_DECIMALS = 2


class Control(QWidget):
    """One value of a setting. `changed` is told of what the user does, never of what `show_value` shows."""

    changed = Signal(object)

    def __init__(self, focus: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.focus = focus  # what takes the keyboard
        self.setFocusProxy(focus)

    def value(self) -> Any:
        raise NotImplementedError

    def show_value(self, value: Any) -> None:
        raise NotImplementedError

    def set_name(self, name: str, text: str) -> None:
        """For screen readers: the setting and its help."""
        self.focus.setAccessibleName(name)
        self.focus.setAccessibleDescription(text)

    def retranslate(self) -> None:
        """The language has changed."""

    def finish(self) -> None:
        """Tell what was typed and not told yet."""


class NumberControl(Control):
    """A number within its bounds, perhaps with a slider, which is for the mouse alone: the keyboard has the number."""

    def __init__(self, setting: Field[Any], parent: QWidget | None = None) -> None:
        self._meta: Mapping[str, Any] = setting.metadata
        self._is_whole = isinstance(setting.default, int)
        self.spin: QSpinBox | QDoubleSpinBox = _WholeSpin() if self._is_whole else _Spin()
        super().__init__(self.spin, parent)
        self.slider: QSlider | None = None
        if isinstance(self.spin, QSpinBox):
            self.spin.setRange(int(self._meta["minimum"]), int(self._meta["maximum"]))
            self.spin.setSingleStep(int(self._meta["step"]))
        else:
            self.spin.setDecimals(_DECIMALS)
            self.spin.setRange(self._meta["minimum"], self._meta["maximum"])
            self.spin.setSingleStep(self._meta["step"])
        self.spin.setKeyboardTracking(False)
        self.spin.setGroupSeparatorShown(True)
        self.spin.setFixedWidth(_NUMBER_WIDTH)
        self.spin.lineEdit().setTextMargins(_NUMBER_MARGIN, 0, 0, 0)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_M)
        if self._meta["slider_end"] is not None:
            self.slider = self._make_slider()
            row.addWidget(self.slider, 1)
        else:
            row.addStretch(1)
        row.addWidget(self.spin)
        self.spin.valueChanged.connect(self._on_spin_changed)
        self.retranslate()

    def value(self) -> int | float:
        return self.spin.value()

    def show_value(self, value: float) -> None:
        if value != self.value():  # else what is being typed stays
            with QSignalBlocker(self.spin):
                self.spin.setValue(int(value) if self._is_whole else value)  # type: ignore[arg-type]
        self._show_on_slider(value)

    def retranslate(self) -> None:
        self.spin.setLocale(QLocale())
        self.spin.setSuffix(unit_words(self._meta["unit"]))

    def finish(self) -> None:
        self.spin.interpretText()

    @Slot()
    def _on_spin_changed(self) -> None:
        self._show_on_slider(self.value())
        self.changed.emit(self.value())

    @Slot(int)
    def _on_slider_moved(self, position: int) -> None:
        value = self._meta["minimum"] + position * self._meta["step"]
        self.show_value(round(value, _DECIMALS))
        assert self.slider is not None
        if not self.slider.isSliderDown():
            self.changed.emit(self.value())

    @Slot()
    def _on_slider_released(self) -> None:
        self.changed.emit(self.value())

    def _show_on_slider(self, value: float) -> None:
        if self.slider is not None:
            with QSignalBlocker(self.slider):
                self.slider.setValue(round((value - self._meta["minimum"]) / self._meta["step"]))

    def _make_slider(self) -> QSlider:
        slider = _Slider(Qt.Orientation.Horizontal)
        slider.setRange(0, math.ceil((self._meta["slider_end"] - self._meta["minimum"]) / self._meta["step"] - 1e-9))
        slider.setMinimumHeight(20)
        slider.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        slider.valueChanged.connect(self._on_slider_moved)
        slider.sliderReleased.connect(self._on_slider_released)
        return slider

    def set_name(self, name: str, text: str) -> None:
        super().set_name(name, text)
        if self.slider is not None:
            self.slider.setAccessibleName(name)


class ChoiceControl(Control):
    """One of several. A value that is none of them is shown as it is."""

    def __init__(self, name: str, choices: Mapping[str, str] | None = None, parent: QWidget | None = None) -> None:
        """`choices`: value -> words; None takes the words of the field `name`."""
        self.combo = QuietCombo()
        super().__init__(self.combo, parent)
        self._name = name
        self._choices = choices
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self.combo, 1)
        self.combo.setMinimumContentsLength(8)
        self.combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.retranslate()
        self.combo.activated.connect(self._on_activated)

    def value(self) -> str:
        return str(self.combo.currentData())

    def show_value(self, value: str) -> None:
        index = self.combo.findData(str(value))
        if index < 0:
            self.combo.addItem(str(value), str(value))
            index = self.combo.count() - 1
        self.combo.setCurrentIndex(index)
        self.combo.setToolTip(self.combo.currentText())

    def set_choices(self, choices: Mapping[str, str]) -> None:
        self._choices = choices
        self.retranslate()

    def retranslate(self) -> None:
        chosen = self.combo.currentData()
        choices = choice_words(self._name) if self._choices is None else self._choices
        self.combo.clear()
        for value, words in choices.items():
            self.combo.addItem(words, str(value))
        widest = max((self.combo.fontMetrics().horizontalAdvance(words) for words in choices.values()), default=0)
        self.combo.view().setMinimumWidth(min(widest + 40, 480))  # the list is as wide as its words, the field is not
        if chosen is not None:
            self.show_value(chosen)

    @Slot()
    def _on_activated(self) -> None:
        self.combo.setToolTip(self.combo.currentText())
        self.changed.emit(self.value())


class SwitchControl(Control):
    def __init__(self, parent: QWidget | None = None) -> None:
        self.box = QCheckBox()
        super().__init__(self.box, parent)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.addStretch(1)
        row.addWidget(self.box)
        self.box.clicked.connect(self._on_clicked)

    def value(self) -> bool:
        return self.box.isChecked()

    def show_value(self, value: bool) -> None:
        self.box.setChecked(value)

    @Slot(bool)
    def _on_clicked(self, is_checked: bool) -> None:
        self.changed.emit(is_checked)


class TextControl(Control):
    """Several lines. Hangul that is still being composed is kept whole."""

    def __init__(self, parent: QWidget | None = None) -> None:
        self.edit = QPlainTextEdit()
        super().__init__(self.edit, parent)
        self.edit.setProperty("kind", "field")
        self.edit.setTabChangesFocus(True)
        self.edit.setMinimumHeight(_TEXT_HEIGHT)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.edit)
        self._told = ""
        self._rest = QTimer(self)
        self._rest.setSingleShot(True)
        self._rest.setInterval(_REST_MS)
        self._rest.timeout.connect(self._tell)
        self.edit.textChanged.connect(self._rest.start)

    def value(self) -> str:
        return self.edit.toPlainText()

    def show_value(self, value: str) -> None:
        if value == self._told:
            return  # what is being typed, and told soon, stays; so does the cursor
        self._told = value
        with QSignalBlocker(self.edit):
            self.edit.setPlainText(value)
        self._rest.stop()

    def finish(self) -> None:
        if self.edit.hasFocus():
            QGuiApplication.inputMethod().commit()
        self._rest.stop()
        self._tell()

    @Slot()
    def _tell(self) -> None:
        if self.value() != self._told:
            self._told = self.value()
            self.changed.emit(self._told)


def control_for(setting: Field[Any], choices: Mapping[str, str] | None = None) -> Control:
    """The control for a field of the settings; `choices` for one that is chosen from what there is."""
    meta = setting.metadata
    if isinstance(setting.default, bool):
        return SwitchControl()
    if choices is not None or meta["choices"]:
        return ChoiceControl(setting.name, choices)
    if isinstance(setting.default, str):
        return TextControl()
    return NumberControl(setting)


# A wheel turned over a list of settings scrolls the list; it never changes what happens to be under the pointer.


class _WholeSpin(QSpinBox):
    def wheelEvent(self, event: QWheelEvent) -> None:
        super().wheelEvent(event) if self.hasFocus() else event.ignore()


class _Spin(QDoubleSpinBox):
    def wheelEvent(self, event: QWheelEvent) -> None:
        super().wheelEvent(event) if self.hasFocus() else event.ignore()


class QuietCombo(QComboBox):
    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


class _Slider(QSlider):
    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()
