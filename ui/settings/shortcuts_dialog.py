"""The keys of the window, made from their table."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

from ui.fit_screen import resize_within_screen
from ui.shortcuts import SHORTCUTS, Place, key_texts, place_words, shortcut_words
from ui.tokens import SPACE_L, SPACE_M, SPACE_S, SPACE_XL, SPACE_XS

_SIZE = (560, 640)
_LEAST_SIZE = (520, 320)


class ShortcutsDialog(QDialog):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._headings = {place: QLabel() for place in Place}
        self._words = {shortcut.name: QLabel() for shortcut in SHORTCUTS}
        self._keys = {shortcut.name: [QLabel() for _ in shortcut.keys] for shortcut in SHORTCUTS}
        self.close_button = QPushButton()
        self.close_button.clicked.connect(self.accept)
        self._lay_out()
        self._retranslate()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        self.setWindowTitle(self.tr("Keyboard shortcuts"))
        self.close_button.setText(self.tr("Close"))
        self._scroll.setAccessibleName(self.tr("Keyboard shortcuts"))
        for place, heading in self._headings.items():
            heading.setText(place_words(place))
        for name, label in self._words.items():
            texts = key_texts(name)
            label.setText(shortcut_words(name))
            label.setAccessibleName(f"{shortcut_words(name)}: {', '.join(texts)}")
            for key, text in zip(self._keys[name], texts, strict=True):
                key.setText(text)

    def _lay_out(self) -> None:
        content = QWidget()
        content.setObjectName("settingsContent")
        rows = QVBoxLayout(content)
        rows.setContentsMargins(SPACE_XL, 0, SPACE_XL, SPACE_L)
        rows.setSpacing(SPACE_S)
        for place, heading in self._headings.items():
            heading.setProperty("kind", "strong")
            rows.addWidget(heading)
            rows.addLayout(self._grid(place))
            rows.addSpacing(SPACE_M)
        rows.addStretch(1)
        self._scroll = QScrollArea()
        self._scroll.setProperty("kind", "pane")
        self._scroll.setWidget(content)
        self._scroll.setWidgetResizable(True)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        buttons = QHBoxLayout()
        buttons.setContentsMargins(SPACE_XL, 0, SPACE_XL, 0)
        buttons.addStretch(1)
        buttons.addWidget(self.close_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, SPACE_XL, 0, SPACE_L)
        column.setSpacing(SPACE_M)
        column.addWidget(self._scroll, 1)
        column.addLayout(buttons)
        self.setMinimumSize(*_LEAST_SIZE)
        resize_within_screen(self, *_SIZE)

    def _grid(self, place: Place) -> QGridLayout:
        grid = QGridLayout()
        grid.setColumnStretch(0, 1)
        grid.setVerticalSpacing(6)
        for number, shortcut in enumerate(one for one in SHORTCUTS if one.place is place):
            words = self._words[shortcut.name]
            keys = QHBoxLayout()
            keys.setSpacing(SPACE_XS)
            keys.addStretch(1)
            for key in self._keys[shortcut.name]:
                key.setProperty("kind", "key")
                keys.addWidget(key)
            grid.addWidget(words, number, 0)
            grid.addLayout(keys, number, 1)
        return grid
