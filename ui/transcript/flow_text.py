"""Read-only text as tall as its content: the bubbles and the prose of replies. It scrolls nothing and loads nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QMimeData, QSize, Qt, QUrl, Slot
from PySide6.QtGui import (
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QTextDocument,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser, QWidget

from ui.theme import Theme
from ui.tokens import Tokens
from ui.transcript.block_marks import paint_marks
from ui.transcript.link_question import LinkQuestion
from ui.transcript.plain_text import document_text

_UNPLACED_PX = 120  # a text this narrow has no place yet: laying it out would take its many lines, for nothing


class FlowText(QTextBrowser):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._heights: dict[int, int] = {}  # by width, for the text as it is
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setOpenLinks(False)
        self.setOpenExternalLinks(False)
        self.setUndoRedoEnabled(False)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.document().setDocumentMargin(0)
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self.anchorClicked.connect(self._on_anchor_clicked)
        self.document().contentsChanged.connect(self._on_contents_changed)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)

    def natural_width(self, at_most: int) -> int:
        """The width the text takes when it may be `at_most` wide."""
        return min(at_most, math.ceil(self._measured(at_most, QTextDocument.idealWidth)) + 1)

    def plain_text(self) -> str:
        return document_text(self.document())

    # Qt overrides

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        if width not in self._heights:
            self._heights[width] = math.ceil(self._measured(width, lambda document: document.size().height()))
        return self._heights[width]

    def sizeHint(self) -> QSize:
        width = max(1, self.width())
        return QSize(width, self.heightForWidth(width))

    def minimumSizeHint(self) -> QSize:
        return QSize(1, 1)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._lay_out_whole()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def loadResource(self, type: int, name: QUrl | str) -> Any:  # noqa: A002  # Qt's name
        """Nothing is loaded, neither from the net nor from the disk."""
        return None

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter = QPainter(self.viewport())
        paint_marks(painter, self.document(), self._tokens(), event.rect(), self.width())
        painter.end()

    def createMimeDataFromSelection(self) -> QMimeData:
        """Plain text only, with formulas as they are written."""
        cursor = self.textCursor()
        result = QMimeData()
        result.setText(document_text(self.document(), cursor.selectionStart(), cursor.selectionEnd()))
        return result

    def _tokens(self) -> Tokens:
        return self._theme.tokens

    @Slot()
    def _on_contents_changed(self) -> None:
        """Only another text asks for another layout: another width comes from one, and would ask for ever."""
        self._heights.clear()
        self.updateGeometry()

    @Slot(int)
    def _on_scrolled(self, value: int) -> None:
        """Between a new text and the height for it, a selection or a key could scroll; lines would be out of place."""
        if value:
            self.verticalScrollBar().setValue(0)

    @Slot(QUrl)
    def _on_anchor_clicked(self, url: QUrl) -> None:
        if not url.isEmpty():
            LinkQuestion(self._theme, url, self._texts_of(url), self.window()).open()

    def _texts_of(self, url: QUrl) -> list[str]:
        """What the links to `url` are shown as."""
        texts: list[str] = []
        block = self.document().begin()
        while block.isValid():
            iterator, text = block.begin(), ""
            while not iterator.atEnd():
                fragment = iterator.fragment()
                if fragment.charFormat().isAnchor() and QUrl(fragment.charFormat().anchorHref()) == url:
                    text += fragment.text()
                elif text:
                    texts.append(text)
                    text = ""
                iterator += 1
            if text:
                texts.append(text)
            block = block.next()
        return texts

    def _measured(self, width: int, measure: Callable[[QTextDocument], float]) -> float:
        """Measure the document at another width, and leave it as it is drawn."""
        document, drawn = self.document(), self.document().textWidth()
        if drawn == width:
            return measure(document)
        document.setTextWidth(width)
        result = measure(document)
        document.setTextWidth(drawn)
        if drawn > _UNPLACED_PX:
            self._lay_out_whole()
        return result

    def _lay_out_whole(self) -> None:
        """Qt lays a document out down to where it is seen, and the rest when there is time; until then lines that were
        broken for another width lie over those below. Asking for its size lays out all of it."""
        self.document().size()
