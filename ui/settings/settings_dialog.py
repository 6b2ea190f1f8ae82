"""The settings, made from their own definitions: groups at the left, a row for each at the right, found by its words.

Every change counts at once; there is nothing to confirm. Opened by Ctrl+, or the menu, never by itself.
"""

from __future__ import annotations

from dataclasses import fields

from PySide6.QtCore import QEvent, Qt, Slot
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QDialog,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QListWidget,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.errors import AppError
from app.model_library import ModelLibrary
from app.presets import Presets
from app.settings import Group, LoadedSettings, Settings
from ui.fit_screen import resize_within_screen
from ui.settings.dialog_notice import DialogNotice
from ui.settings.model_choices import model_choices, shown_model
from ui.settings.preferences import Preferences
from ui.settings.problem_words import loaded_words
from ui.settings.setting_row import SettingRow
from ui.settings.settings_files import SettingsFiles
from ui.settings.words import group_words
from ui.tokens import SPACE_L, SPACE_M, SPACE_S, SPACE_XL

_SIZE = (920, 640)
_LEAST_SIZE = (600, 340)
_SIDE_WIDTH = 190
_NARROW_PX = 800


class SettingsDialog(QDialog):
    """`loaded`: what was wrong with the settings file, to be told now; None where it was told before."""

    def __init__(
        self,
        preferences: Preferences,
        library: ModelLibrary,
        presets: Presets,
        loaded: LoadedSettings | None = None,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._preferences = preferences
        self._library = library
        self._loaded = loaded
        self.search = QLineEdit()
        self.search.setClearButtonEnabled(True)
        self.groups = QListWidget()
        self.groups.setObjectName("settingsGroups")
        self.notice = DialogNotice()
        self.rows: dict[str, SettingRow] = {}
        self._sections: dict[Group, QWidget] = {}
        self._headings: dict[Group, QLabel] = {}
        self._resets: dict[Group, QPushButton] = {}
        self._nothing = QLabel()
        self._nothing.setProperty("kind", "muted")
        self.import_button = _button()
        self.export_button = _button()
        self.close_button = _button()
        self.files = SettingsFiles(preferences, library, presets, self.notice, self)
        self._make_rows()
        self._lay_out()
        self.search.textChanged.connect(self._show_matching)
        self.groups.currentRowChanged.connect(self._on_group_chosen)
        self.groups.itemClicked.connect(self.search.clear)
        self.import_button.clicked.connect(self.files.ask_for_import)
        self.export_button.clicked.connect(self.files.ask_for_export)
        self.close_button.clicked.connect(self.accept)
        preferences.changed.connect(self._show_settings)
        preferences.save_failed.connect(self._on_save_failed)
        self._show_settings(preferences.settings)
        self._retranslate()
        self.groups.setCurrentRow(0)
        self._show_matching()
        if loaded is not None and (words := loaded_words(loaded)):
            self.notice.show_words(words)

    def reset_button(self, group: Group) -> QPushButton:
        return self._resets[group]

    # Qt overrides

    def done(self, result: int) -> None:
        for row in self.rows.values():
            row.control.finish()
        super().done(result)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        for row in self.rows.values():
            row.set_narrow(self.width() < _NARROW_PX)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.search.setFocus(Qt.FocusReason.OtherFocusReason)

    # slots

    @Slot(object)
    def _show_settings(self, settings: Settings) -> None:
        for name, row in self.rows.items():
            value = getattr(settings, name)
            row.show_value(shown_model(value, self._library) if name == "model" else value)

    @Slot(object)
    def _on_save_failed(self, error: AppError) -> None:
        self.notice.show_words(
            self.tr(
                "The settings could not be written to {path} and count only until Ember ends; free some space, or make "
                "the folder writable."
            ).format(path=error.params.get("path", ""))
        )

    @Slot(str, object)
    def _on_row_changed(self, name: str, value: object) -> None:
        self._preferences.set_value(name, value)

    @Slot(int)
    def _on_group_chosen(self, _row: int) -> None:
        if self.search.text():
            self.search.clear()  # shows the group by itself
        else:
            self._show_matching()

    @Slot()
    def _show_matching(self) -> None:
        """The group that is chosen or, while something is looked for, what is found in all of them."""
        query = self.search.text().strip()
        self.groups.clearSelection() if query else self.groups.setCurrentRow(max(0, self.groups.currentRow()))
        num_shown = 0
        for group, section in self._sections.items():
            rows = [row for row in self.rows.values() if row.group is group]
            shown = [row for row in rows if (row.matches(query) if query else group is self._chosen)]
            for row in rows:
                row.setVisible(row in shown)
            self._resets[group].setVisible(not query)
            section.setVisible(bool(shown))
            num_shown += len(shown)
        self._nothing.setVisible(num_shown == 0)
        self._scroll.verticalScrollBar().setValue(0)

    @property
    def _chosen(self) -> Group:
        return list(Group)[max(0, self.groups.currentRow())]

    def _retranslate(self) -> None:
        self.setWindowTitle(self.tr("Settings"))
        self.search.setPlaceholderText(self.tr("Search settings"))
        self.search.setAccessibleName(self.tr("Search settings"))
        self.groups.setAccessibleName(self.tr("Groups of settings"))
        self._scroll.setAccessibleName(self.tr("Settings"))
        for number, group in enumerate(Group):
            words = group_words(group)
            self.groups.item(number).setText(words)
            self._headings[group].setText(words)
            self._resets[group].setText(self.tr("Restore defaults"))
            self._resets[group].setAccessibleName(self.tr("Restore the defaults: {name}").format(name=words))
        self._nothing.setText(self.tr("No setting has these words."))
        self.import_button.setText(self.tr("Import…"))
        self.export_button.setText(self.tr("Export…"))
        self.close_button.setText(self.tr("Close"))
        if "model" in self.rows:
            self.rows["model"].set_choices(model_choices(self._library))
        for row in self.rows.values():
            row.retranslate()
        self._show_settings(self._preferences.settings)

    def _restore_defaults(self, group: Group) -> None:
        for row in self.rows.values():
            row.control.finish()
        self._preferences.restore_defaults(group)

    # layout

    def _make_rows(self) -> None:
        for setting in fields(Settings):
            if setting.metadata["is_hidden"]:
                continue
            choices = model_choices(self._library) if setting.name == "model" else None
            row = SettingRow(setting, choices)
            row.changed.connect(self._on_row_changed)
            self.rows[setting.name] = row

    def _make_section(self, group: Group) -> QWidget:
        section = QWidget()
        heading, reset = QLabel(), _button("flat")
        heading.setProperty("kind", "title")
        reset.clicked.connect(lambda: self._restore_defaults(group))
        self._sections[group], self._headings[group], self._resets[group] = section, heading, reset
        head = QHBoxLayout()
        head.addWidget(heading, 1)
        head.addWidget(reset)
        column = QVBoxLayout(section)
        column.setContentsMargins(0, 0, 0, SPACE_L)
        column.setSpacing(SPACE_S)
        column.addLayout(head)
        for row in self.rows.values():
            if row.group is group:
                column.addWidget(row)
        return section

    def _lay_out(self) -> None:
        content = QWidget()
        content.setObjectName("settingsContent")
        rows = QVBoxLayout(content)
        rows.setContentsMargins(SPACE_XL, SPACE_S, SPACE_XL, SPACE_L)
        rows.setSpacing(0)
        rows.addWidget(self._nothing)
        for group in Group:
            self.groups.addItem("")
            rows.addWidget(self._make_section(group))
        rows.addStretch(1)
        self._scroll = QScrollArea()
        self._scroll.setWidget(content)
        self._scroll.setWidgetResizable(True)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # what is in it has the keyboard
        self.search.setFixedHeight(36)
        side = QVBoxLayout()
        side.setSpacing(SPACE_M)
        side.addWidget(self.search)
        side.addWidget(self.groups, 1)
        side_widget = QWidget()
        side_widget.setFixedWidth(_SIDE_WIDTH)
        side_widget.setLayout(side)
        side.setContentsMargins(0, 0, 0, 0)
        upper = QHBoxLayout()
        upper.setSpacing(0)
        upper.addWidget(side_widget)
        upper.addWidget(self._scroll, 1)
        buttons = QHBoxLayout()
        buttons.setSpacing(SPACE_S)
        buttons.addWidget(self.import_button)
        buttons.addWidget(self.export_button)
        buttons.addStretch(1)
        buttons.addWidget(self.close_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_L, SPACE_L, SPACE_L, SPACE_L)
        column.setSpacing(SPACE_M)
        column.addWidget(self.notice)
        column.addLayout(upper, 1)
        column.addLayout(buttons)
        self.setMinimumSize(*_LEAST_SIZE)
        resize_within_screen(self, *_SIZE)


def _button(kind: str = "") -> QPushButton:
    button = QPushButton()
    button.setProperty("kind", kind)
    button.setAutoDefault(False)  # Enter in a field means the field
    return button
