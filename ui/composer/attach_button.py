"""The button that chooses files, with its key."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QSize, Qt, Signal, Slot
from PySide6.QtGui import QKeySequence, QPalette, QShortcut
from PySide6.QtWidgets import QFileDialog, QPushButton, QWidget

from ui.icons import icon

ATTACH_KEY = "Ctrl+Shift+A"


class AttachButton(QPushButton):
    """`about_to_ask`: the dialog is about to take the focus."""

    about_to_ask = Signal()
    chosen = Signal(object)  # list[Path]

    def __init__(self, window_part: QWidget) -> None:
        """The key works in the whole window of `window_part`."""
        super().__init__()
        self.setProperty("kind", "attach")
        self.setIconSize(QSize(16, 16))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click must not take the focus: it would end composing
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.clicked.connect(self._on_pressed)
        QShortcut(QKeySequence(ATTACH_KEY), window_part, self._on_pressed)
        self._retranslate()
        self._paint_icon()

    @Slot()
    def _on_pressed(self) -> None:
        self.about_to_ask.emit()
        dialog = QFileDialog(self, self.tr("Attach files"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.filesSelected.connect(self._on_files_selected)
        dialog.open()

    @Slot(list)
    def _on_files_selected(self, names: list[str]) -> None:
        self.chosen.emit([Path(name) for name in names])

    # Qt overrides

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        elif event.type() in (QEvent.Type.PaletteChange, QEvent.Type.StyleChange):
            self._paint_icon()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        self.setText(self.tr("File"))
        self.setAccessibleName(self.tr("Attach files"))
        self.setToolTip(self.tr("Attach text, code or PDFs ({key}); or drop them here").format(key=ATTACH_KEY))
        self.setAccessibleDescription(self.toolTip())

    def _paint_icon(self) -> None:
        self.setIcon(icon("paper_clip", self.palette().color(QPalette.ColorRole.PlaceholderText).name()))
