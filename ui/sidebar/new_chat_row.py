"""New chat, and beside it what else can be made: an incognito chat, a folder."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Signal, Slot
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPushButton, QWidget

from ui.icons import icon
from ui.shortcuts import show_key
from ui.sidebar.key_label import key_label
from ui.theme import Theme

_HEIGHT = 38


class NewChatRow(QWidget):
    new_requested = Signal()
    new_incognito_requested = Signal()
    new_folder_requested = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.button = QPushButton()
        self.button.setFixedHeight(_HEIGHT)
        self.button.setProperty("kind", "new")
        self.button.clicked.connect(self.new_requested)
        self._key = key_label(self.button)
        self._key.setText("Ctrl N")
        self.more_button = QPushButton()
        self.more_button.setFixedSize(_HEIGHT, _HEIGHT)
        self.more_button.setProperty("kind", "more")
        self.menu = QMenu(self)
        self.more_button.clicked.connect(self._on_more_clicked)
        self.incognito = QAction(self)
        self.incognito.triggered.connect(self.new_incognito_requested)
        show_key(self.incognito, "new_incognito")
        self._folder = self.menu.addAction("")
        self._folder.triggered.connect(self.new_folder_requested)
        self.menu.insertAction(self._folder, self.incognito)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(6)
        row.addWidget(self.button, 1)
        row.addWidget(self.more_button)
        theme.changed.connect(self._on_theme_changed)
        self._on_theme_changed()
        self._retranslate()

    def set_narrow(self, is_narrow: bool) -> None:
        """The words take the room of the key's name."""
        self._key.setVisible(not is_narrow)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    @Slot()
    def _on_more_clicked(self) -> None:
        self.menu.popup(self.more_button.mapToGlobal(self.more_button.rect().bottomLeft()))

    @Slot()
    def _on_theme_changed(self) -> None:
        colour = self._theme.tokens.text
        self.button.setIcon(icon("plus", colour))
        self.more_button.setIcon(icon("chevron_down", self._theme.tokens.muted))
        self.incognito.setIcon(icon("incognito", colour))

    def _retranslate(self) -> None:
        self.button.setText(self.tr("New chat"))
        self.button.setAccessibleName(self.tr("New chat"))
        self.more_button.setAccessibleName(self.tr("New incognito chat or folder"))
        self.more_button.setToolTip(self.tr("New incognito chat or folder"))
        self.incognito.setText(self.tr("New incognito chat"))
        self._folder.setText(self.tr("New folder"))
