"""Choosing a preset, and keeping what is chosen as one: saving under a name, renaming, deleting with undo."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal, Slot
from PySide6.QtGui import QAction, QKeySequence, QShortcut
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QLineEdit, QMenu, QPushButton, QVBoxLayout, QWidget

from app.errors import AppError
from app.presets import Preset, Presets
from ui.error_words import error_words
from ui.settings.controls import QuietCombo
from ui.settings.dialog_notice import DialogNotice
from ui.settings.preset_words import preset_name
from ui.tokens import SPACE_S


class PresetBar(QWidget):
    chosen = Signal(object)  # Preset
    save_requested = Signal(str)  # under this name

    def __init__(self, presets: Presets, notice: DialogNotice, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._presets = presets
        self._notice = notice
        self._renamed: str | None = None  # the preset whose new name is asked for; None while saving one
        self._deleted: Preset | None = None
        self._label = QLabel()
        self.combo = QuietCombo()
        self.save_button = QPushButton()
        self.manage_button = QPushButton("⋯")
        self.manage_menu = QMenu(self)
        self.rename_action = QAction(self)
        self.delete_action = QAction(self)
        self.name_edit = QLineEdit()
        self.name_save_button = QPushButton()
        self._name_cancel_button = QPushButton()
        self._name_row = QWidget()
        self._lay_out()
        self.combo.activated.connect(self._on_activated)
        self.combo.currentIndexChanged.connect(self._show_what_can_be_done)
        self.save_button.clicked.connect(self._on_save_clicked)
        self.rename_action.triggered.connect(self._on_rename_triggered)
        self.delete_action.triggered.connect(self._on_delete_triggered)
        self.name_edit.returnPressed.connect(self._on_name_given)
        self.name_save_button.clicked.connect(self._on_name_given)
        self._name_cancel_button.clicked.connect(self._close_name_row)
        notice.undo_requested.connect(self._on_undo_requested)
        escape = QShortcut(QKeySequence(Qt.Key.Key_Escape), self._name_row)
        escape.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)  # before the dialog hears of it
        escape.activated.connect(self._close_name_row)
        self._retranslate()

    def show_match(self, preset: Preset | None) -> None:
        """The preset that is just what is chosen; None where no one is."""
        index = self.combo.findData(preset.name) if preset else 0
        self.combo.setCurrentIndex(max(0, index))

    def save(self, preset: Preset) -> None:
        """Keep what `save_requested` asked for."""
        try:
            kept = self._presets.save(preset)
        except AppError as error:
            self._notice.show_words(error_words(error))
            return
        self._close_name_row()
        self._fill()
        self.show_match(kept)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @property
    def _preset(self) -> Preset | None:
        name = self.combo.currentData()
        return next((one for one in self._presets.all() if one.name == name), None)

    @Slot()
    def _on_activated(self) -> None:
        if (preset := self._preset) is not None:
            self.chosen.emit(preset)

    @Slot()
    def _on_save_clicked(self) -> None:
        preset = self._preset
        self._ask_for_name(None, preset.name if preset and not preset.is_built_in else "")

    @Slot()
    def _on_rename_triggered(self) -> None:
        if (preset := self._preset) is not None:
            self._ask_for_name(preset.name, preset.name)

    @Slot()
    def _on_delete_triggered(self) -> None:
        if (preset := self._preset) is None:
            return
        try:
            self._deleted = self._presets.delete(preset.name)
        except AppError as error:
            self._notice.show_words(error_words(error))
            return
        self._fill()
        self.show_match(None)
        self._notice.show_words(self.tr("“{name}” was deleted.").format(name=preset.name), can_undo=True)

    @Slot()
    def _on_undo_requested(self) -> None:
        if self._deleted is not None:
            self.save(self._deleted)
            self._deleted = None

    @Slot()
    def _on_name_given(self) -> None:
        name = self.name_edit.text()
        if self._renamed is None:
            self.save_requested.emit(name)
            return
        try:
            preset = self._presets.rename(self._renamed, name)
        except AppError as error:
            self._notice.show_words(error_words(error))
            return
        self._close_name_row()
        self._fill()
        self.show_match(preset)

    @Slot()
    def _close_name_row(self) -> None:
        self.combo.setFocus(Qt.FocusReason.OtherFocusReason)
        self._name_row.hide()
        self._notice.hide()

    @Slot()
    def _show_what_can_be_done(self) -> None:
        preset = self._preset
        is_own = preset is not None and not preset.is_built_in
        self.rename_action.setEnabled(is_own)
        self.delete_action.setEnabled(is_own)
        self.manage_button.setEnabled(is_own)

    def _ask_for_name(self, renamed: str | None, name: str) -> None:
        self._renamed = renamed
        self.name_edit.setText(name)
        self._name_row.show()
        self.name_edit.setFocus(Qt.FocusReason.OtherFocusReason)
        self.name_edit.selectAll()

    def _fill(self) -> None:
        name = self.combo.currentData()
        self.combo.clear()
        self.combo.addItem(self.tr("Own values"), "")
        for preset in self._presets.all():
            self.combo.addItem(preset_name(preset), preset.name)
        self.combo.setCurrentIndex(max(0, self.combo.findData(name)))
        self._show_what_can_be_done()

    def _retranslate(self) -> None:
        self._label.setText(self.tr("Preset"))
        self.combo.setAccessibleName(self.tr("Preset"))
        self.save_button.setText(self.tr("Save as preset…"))
        self.manage_button.setAccessibleName(self.tr("Rename or delete this preset"))
        self.manage_button.setToolTip(self.tr("Rename or delete this preset"))
        self.rename_action.setText(self.tr("Rename…"))
        self.delete_action.setText(self.tr("Delete"))
        self.name_edit.setPlaceholderText(self.tr("Name of the preset"))
        self.name_edit.setAccessibleName(self.tr("Name of the preset"))
        self.name_save_button.setText(self.tr("Save name"))
        self._name_cancel_button.setText(self.tr("Cancel"))
        self._name_cancel_button.setAccessibleName(self.tr("Keep the name as it is"))
        self._fill()

    def _lay_out(self) -> None:
        self.combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.combo.setMinimumContentsLength(10)
        for button in (self.save_button, self.manage_button, self.name_save_button, self._name_cancel_button):
            button.setAutoDefault(False)
        self.manage_menu.addActions([self.rename_action, self.delete_action])
        self.manage_button.setProperty("kind", "menu")
        self.manage_button.setMenu(self.manage_menu)
        self.name_edit.setFixedHeight(32)
        row = QHBoxLayout()
        row.setSpacing(SPACE_S)
        row.addWidget(self._label)
        row.addWidget(self.combo, 1)
        row.addWidget(self.save_button)
        row.addWidget(self.manage_button)
        name_row = QHBoxLayout(self._name_row)
        name_row.setContentsMargins(0, 0, 0, 0)
        name_row.setSpacing(SPACE_S)
        name_row.addWidget(self.name_edit, 1)
        name_row.addWidget(self._name_cancel_button)
        name_row.addWidget(self.name_save_button)
        self._name_row.hide()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_S)
        column.addLayout(row)
        column.addWidget(self._name_row)
