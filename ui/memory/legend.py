"""What the colours and patterns of the page map mean; each is a button that opens a paragraph about it."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QPushButton, QWidget

from ui.composer.wrap_layout import WrapLayout
from ui.memory.cells import CELL, GAP, CellTiles, Look
from ui.memory.technique_words import Topic
from ui.theme import Theme
from ui.tokens import SPACE_XS

_SCALES = (1.0, 1.25, 1.5, 1.75, 2.0, 3.0)
LOOKS = {
    Look("16bit"): Topic.FULL,
    Look("int8"): Topic.INT8,
    Look("balanced"): Topic.BALANCED,
    Look("compact"): Topic.COMPACT,
    Look("kvzip"): Topic.KVZIP,
    Look("on_disk", is_hollow=True): Topic.ON_DISK,
    Look("on_disk", is_shared=True, is_hollow=True): Topic.SHARED,
}


class TopicButton(QPushButton):
    """Opens the help on `topic`, and closes it again; down while it is open."""

    def __init__(self, topic: Topic, kind: str = "flat", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.topic = topic
        self.setProperty("kind", kind)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setCheckable(True)
        self.setAutoDefault(False)

    def set_words(self, words: str, question: str) -> None:
        """`question`: what a click answers; screen readers hear it too."""
        self.setText(words)
        self.setToolTip(question)
        self.setAccessibleName(question)

    def show_open(self, paragraph: str | None) -> None:
        """The answer that is shown, which belongs to the button for screen readers; None: none is."""
        self.setChecked(paragraph is not None)
        self.setAccessibleDescription(paragraph or "")


class Legend(QWidget):
    asked = Signal(object)  # the Topic

    def __init__(self, theme: Theme, tiles: CellTiles, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tiles = tiles
        self._row = layout = WrapLayout(self, spacing=SPACE_XS)
        self.buttons = {look: TopicButton(topic) for look, topic in LOOKS.items()}
        for button in self.buttons.values():
            button.setIconSize(QSize(CELL + GAP, CELL + GAP))
            button.clicked.connect(lambda _, one=button.topic: self.asked.emit(one))
            layout.addWidget(button)
        theme.changed.connect(self._draw)
        self._draw()
        self.retranslate()

    def retranslate(self) -> None:
        words = (
            self.tr("16 bit"),
            self.tr("8 bit (int8)"),
            self.tr("balanced"),
            self.tr("compact"),
            self.tr("compressed (KVzip)"),
            self.tr("on disk"),
            self.tr("shared"),
        )
        for button, word in zip(self.buttons.values(), words, strict=True):
            button.set_words(word, self.tr("What is this: {words}?").format(words=word))
        self.setMaximumWidth(self._row.sizeHint().width())  # it stands at the right end

    def _draw(self) -> None:
        for look, button in self.buttons.items():
            icon = QIcon()
            for scale in _SCALES:
                icon.addPixmap(self._tiles.tile(look, scale))
            button.setIcon(icon)
