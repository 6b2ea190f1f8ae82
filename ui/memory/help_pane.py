"""One paragraph about a technique, under the legend, with the numbers of now. One at a time; it closes again."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from engine.protocol.events import BlocksReported
from ui.announce import announce
from ui.icons import icon
from ui.memory.technique_words import Topic, topic_heading, topic_words
from ui.theme import Theme
from ui.tokens import READING_WIDTH, SPACE_M, SPACE_S, SPACE_XS

_CROSS_PX = 14


class HelpPane(QFrame):
    changed = Signal(object)  # the Topic that is open, or None; its words may have changed, too

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("notice")
        self._theme = theme
        self._report: BlocksReported | None = None
        self._bytes_per_token: int | None = None
        self.topic: Topic | None = None
        self.heading = QLabel()
        self.heading.setProperty("kind", "value")
        self.words = QLabel()
        self.words.setProperty("kind", "line")
        self.words.setWordWrap(True)
        self.words.setMaximumWidth(READING_WIDTH)
        self.close_button = QPushButton()
        self.close_button.setProperty("kind", "flat")
        self.close_button.setIconSize(QSize(_CROSS_PX, _CROSS_PX))
        self.close_button.clicked.connect(self.dismiss)
        column = QVBoxLayout()
        column.setSpacing(SPACE_XS)
        column.addWidget(self.heading)
        column.addWidget(self.words)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_M, SPACE_S, SPACE_S, SPACE_S)
        row.addLayout(column, 100)
        row.addStretch(1)
        row.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignTop)
        theme.changed.connect(self._draw_cross)
        self._draw_cross()
        self.retranslate()
        self.hide()

    @Slot(object)
    def toggle(self, topic: Topic) -> None:
        """Open it on `topic`, or close it where that is open."""
        self._set_topic(None if topic is self.topic else topic)
        if self.topic is not None:
            announce(self, f"{self.heading.text()}. {self.words.text()}")

    @Slot()
    def dismiss(self) -> None:
        self._set_topic(None)

    def show_report(self, report: BlocksReported, bytes_per_token: int | None) -> None:
        """`bytes_per_token` of the model in full precision, where one is known."""
        self._report, self._bytes_per_token = report, bytes_per_token
        self._show()

    def retranslate(self) -> None:
        self.close_button.setToolTip(self.tr("Close"))
        self.close_button.setAccessibleName(self.tr("Close this explanation"))
        self._show()

    def _set_topic(self, topic: Topic | None) -> None:
        self.topic = topic
        if topic is None:
            self.changed.emit(None)  # while it still has the focus, perhaps
        self.setVisible(topic is not None)
        self._show()

    def _show(self) -> None:
        if self.topic is not None:
            self.heading.setText(topic_heading(self.topic))
            self.words.setText(topic_words(self.topic, self._report, self._bytes_per_token))
            self.changed.emit(self.topic)

    @Slot()
    def _draw_cross(self) -> None:
        self.close_button.setIcon(icon("cross", self._theme.tokens.muted, _CROSS_PX))
