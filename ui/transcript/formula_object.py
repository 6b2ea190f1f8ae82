"""A formula in a QTextDocument: one character, drawn from outlines, with its baseline on that of the text around it."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from PySide6.QtCore import QByteArray, QPointF, QRect, QRectF, QSizeF
from PySide6.QtGui import (
    QFont,
    QFontMetrics,
    QPainter,
    QPyTextObject,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
)
from PySide6.QtSvg import QSvgRenderer

from ui.theme import ui_font
from ui.tokens import LINE_HEIGHT_PX
from ui.transcript.typeset import Formula, typeset

FORMULA_TYPE = int(QTextFormat.ObjectTypes.UserObject) + 1
LATEX_PROPERTY = int(QTextFormat.Property.UserProperty) + 11  # how it was written
DISPLAY_PROPERTY = int(QTextFormat.Property.UserProperty) + 12  # stands alone, set larger
_EM_PROPERTY = int(QTextFormat.Property.UserProperty) + 13
_SHARE_PROPERTY = int(QTextFormat.Property.UserProperty) + 14
_RISE_PROPERTY = int(QTextFormat.Property.UserProperty) + 15  # at least so far above the baseline

_EM_SHARE = 1.14  # the formula's letters are small for their size
_UNEVEN_PX = 2  # how much nearer lines may come, which is not seen
_OBJECT = "\ufffc"


def insert_formula(
    cursor: QTextCursor, latex: str, is_display: bool, base: QTextCharFormat, share: float = 1.0
) -> bool:
    """Insert a formula in the size and colour of `base`; False where it cannot be set. It takes at most `share` of the
    document's width, and is drawn smaller where it would not fit."""
    formula = typeset(latex, is_display)
    if formula is None:
        return False
    em = base.font().pixelSize() * _EM_SHARE
    result = QTextCharFormat(base)
    result.setObjectType(FORMULA_TYPE)
    result.setFont(_font_reaching(ceil(formula.descent * em)))
    result.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignBaseline)
    result.setProperty(LATEX_PROPERTY, latex)
    result.setProperty(DISPLAY_PROPERTY, is_display)
    result.setProperty(_EM_PROPERTY, em)
    result.setProperty(_SHARE_PROPERTY, share)
    result.setProperty(_RISE_PROPERTY, 0 if is_display or share < 1.0 else _rise(formula, em, base.font()))
    cursor.insertText(_OBJECT, result)
    return True


def source_of(text_format: QTextFormat) -> str:
    """What a formula's character stands for, as it is written in Markdown; "" for other characters."""
    latex = str(text_format.property(LATEX_PROPERTY) or "")
    if not latex:
        return ""
    mark = "$$" if text_format.property(DISPLAY_PROPERTY) else "$"
    return f"{mark}{latex}{mark}"


class FormulaObject(QPyTextObject):
    """Measures and paints the formulas of one document, which owns it."""

    def __init__(self, document: QTextDocument) -> None:
        super().__init__(document)
        document.documentLayout().registerHandler(FORMULA_TYPE, self)

    def intrinsicSize(self, doc: QTextDocument, posInDocument: int, format: QTextFormat) -> QSizeF:  # noqa: A002, N803
        formula, em, below = _parts(format)
        if formula is None:
            return QSizeF(0, 0)
        em *= _fit(doc, posInDocument, format, formula.width * em)
        above = max(ceil(formula.ascent * em), int(format.property(_RISE_PROPERTY)))
        return QSizeF(ceil(formula.width * em), above + below)

    def drawObject(
        self,
        painter: QPainter,
        rect: QRectF | QRect,
        doc: QTextDocument,
        posInDocument: int,  # noqa: N803
        format: QTextFormat,  # noqa: A002
    ) -> None:
        formula, em, below = _parts(format)
        if formula is None:
            return
        em *= _fit(doc, posInDocument, format, formula.width * em)
        box = QRectF(rect)
        top = box.bottom() - below - formula.ascent * em
        size = QSizeF(formula.width * em, (formula.ascent + formula.descent) * em)
        colour = format.foreground().color().name().encode()
        _renderer(formula.svg, colour).render(painter, QRectF(QPointF(box.left(), top), size))


def _parts(text_format: QTextFormat) -> tuple[Formula | None, float, int]:
    """The formula, its em and how far below the baseline its box reaches, in pixels."""
    formula = typeset(str(text_format.property(LATEX_PROPERTY)), bool(text_format.property(DISPLAY_PROPERTY)))
    below = QFontMetrics(text_format.toCharFormat().font()).descent()  # what the layout takes for its descent
    return formula, float(text_format.property(_EM_PROPERTY)), below


def _fit(document: QTextDocument, position: int, text_format: QTextFormat, width: float) -> float:
    """The scale at which a formula `width` wide fits into its line."""
    block = document.findBlock(position).blockFormat()
    room = document.textWidth() * float(text_format.property(_SHARE_PROPERTY))
    room -= block.indent() * document.indentWidth() + block.leftMargin() + 1
    return min(1.0, max(20.0, room) / width) if document.textWidth() > 0 and width > 0 else 1.0


def _rise(formula: Formula, em: float, font: QFont) -> int:
    """A line has its free space above it. One that reaches far below its baseline keeps that space, so that lines stay
    evenly apart."""
    below = QFontMetrics(font).descent()
    return LINE_HEIGHT_PX - below if ceil(formula.descent * em) > below + _UNEVEN_PX else 0


@lru_cache(maxsize=64)
def _font_reaching(below: int) -> QFont:
    """A font whose letters reach at least `below` pixels under the baseline: Qt gives an object its font's descent."""
    pixels = 4
    while QFontMetrics(ui_font(pixels)).descent() < below:
        pixels += 1
    return ui_font(pixels)


@lru_cache(maxsize=256)
def _renderer(svg: bytes, colour: bytes) -> QSvgRenderer:
    return QSvgRenderer(QByteArray(svg.replace(b"#000000", colour, 1)))
