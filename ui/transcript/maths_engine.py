"""The libraries that set formulas, and the letters their font lacks. Imported only when the first formula is set."""

from __future__ import annotations

import warnings
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from latex2mathml import exceptions
from latex2mathml.converter import Converter
from PySide6.QtGui import QFontMetricsF, QPainterPath
from ziafont.fonttypes import BBox

from ui.theme import ui_font

with warnings.catch_warnings():
    # WORKAROUND ziamath 0.13: it finds its font by a function of importlib that is to go.
    warnings.simplefilter("ignore", DeprecationWarning)
    from ziamath import styles
    from ziamath.config import config
    from ziamath.nodes.mnumber import Midentifier, Mtext
    from ziamath.nodes.moperator import Moperator
    from ziamath.nodes.mrow import Mrow
    from ziamath.zmath import Math

LIBRARY_ERRORS: tuple[type[Exception], ...] = tuple(
    error for error in vars(exceptions).values() if isinstance(error, type) and issubclass(error, Exception)
)  # they have no ancestor of their own
_TAGS = frozenset(
    [
        *("math", "mrow", "mstyle", "mpadded", "mphantom", "menclose", "mfenced", "none"),
        *("mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "mtable", "mtr", "mtd"),
        *("msub", "msup", "msubsup", "munder", "mover", "munderover"),
    ]
)
_LETTER_SHARE = 0.86  # letters of the other font beside those of the formula's, which are small for their size

_STRETCHED = frozenset("()[]{}|‖/\\⟨⟩⌈⌉⌊⌋↑↓⇑⇓↕⇕∣∥⟮⟯⟦⟧⋃⋂⋁⋀")

config.svg2 = False  # plain paths: no element refers to another
# WORKAROUND ziamath 0.13: it copies its styles to the last leaf for each node, which takes half of its time.
styles.asdict = vars  # type: ignore[attr-defined, assignment]


def read(latex: str, is_display: bool) -> Element:
    """MathML. Raises whatever the library raises for a malformed formula."""
    root = Converter(display="block" if is_display else "inline").convert_to_element(latex)
    root.attrib.pop("xmlns", None)
    return root


class TooLongError(Exception):
    """A formula that takes more steps than it may."""


class Steps:
    """How much work is left: rows, words and signs that may still be set. Counted, not timed, so that a formula is set
    or not, however busy the machine is."""

    left = 0

    @classmethod
    def take(cls) -> None:
        cls.left -= 1
        if cls.left < 0:
            raise TooLongError


def draw(root: Element, pixels: float, most_steps: int) -> tuple[bytes, tuple[float, float, float, float]]:
    """SVG and (left, top, right, bottom) from the start of the baseline, y downwards, in pixels."""
    Steps.left = most_steps
    if any(element.tag not in _TAGS for element in root.iter()):
        raise ValueError("an element that is not drawn")
    maths = Math(root, size=pixels, margin=0)
    box = maths.node.bbox
    left, top, right, bottom = min(0.0, box.xmin), -box.ymax, box.xmax, -box.ymin
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "color": "#000000"})
    svg.set("viewBox", f"{left:.3f} {top:.3f} {right - left:.3f} {bottom - top:.3f}")
    maths.node.draw(0, 0, svg)
    return tostring(svg, encoding="utf-8"), (left, top, right, bottom)


class _Row(Mrow, tag="mrow"):
    def __init__(self, element: Element, parent: Any, **kwargs: Any) -> None:
        Steps.take()
        super().__init__(element, parent, **kwargs)

    def _get_height_nostretch(self, line: list[Element], **kwargs: Any) -> tuple[float, float]:
        """WORKAROUND ziamath 0.13: it sets each row twice, and so 2^n times what lies n rows deep. The first time is
        only to see how high brackets have to be, and for the rows inside it once is enough."""
        if not kwargs.get("nostretch") and any(_is_stretched(element) for child in line for element in child.iter()):
            return super()._get_height_nostretch(line, **kwargs)
        return 0.0, 0.0


class _Operator(Moperator, tag="mo"):
    def _setup(self, **kwargs: Any) -> None:
        Steps.take()
        super()._setup(**kwargs)  # type: ignore[no-untyped-call]


class _Letters:
    """Draws text that the formula's font has no glyphs for, such as Hangul, in the font of the window."""

    element: Element
    glyphsize: float
    style: Any
    string: str
    bbox: BBox

    def set_letters(self, text: str, is_phantom: bool) -> None:
        self.letters = text
        self.is_phantom = is_phantom
        self.font_px = ui_font()
        self.font_px.setPixelSize(max(1, round(self.glyphsize * _LETTER_SHARE)))
        metrics = QFontMetricsF(self.font_px)
        bounds = metrics.boundingRect(text)
        self.bbox = BBox(0, metrics.horizontalAdvance(text), -bounds.bottom(), -bounds.top())

    def draw_letters(self, x: float, y: float, svg: Element) -> tuple[float, float]:
        path = QPainterPath()
        path.addText(x, y, self.font_px, self.letters)
        if not self.is_phantom:
            SubElement(svg, "path", {"d": _outline(path), "fill": str(self.style.mathcolor)})
        return x + self.bbox.xmax, y


class _Text(_Letters, Mtext, tag="mtext"):
    def _setup(self, **kwargs: Any) -> None:
        Steps.take()
        if _is_foreign(self):
            self.set_letters(self.string, bool(kwargs.get("phantom")))
        else:
            super()._setup(**kwargs)

    def draw(self, x: float, y: float, svg: Element) -> tuple[float, float]:
        return self.draw_letters(x, y, svg) if _is_foreign(self) else super().draw(x, y, svg)


class _Identifier(_Letters, Midentifier, tag="mi"):
    def _setup(self, **kwargs: Any) -> None:
        Steps.take()
        if _is_foreign(self):
            self.set_letters(self.string.strip("\u2009"), bool(kwargs.get("phantom")))
        else:
            super()._setup(**kwargs)

    def draw(self, x: float, y: float, svg: Element) -> tuple[float, float]:
        return self.draw_letters(x, y, svg) if _is_foreign(self) else super().draw(x, y, svg)


def _is_stretched(element: Element) -> bool:
    text = (element.text or "").strip()
    if element.tag not in ("mo", "mi"):
        return element.tag == "mfenced"
    return text in _STRETCHED and element.get("stretchy") != "false"


def _is_foreign(node: Mtext | Midentifier) -> bool:
    return any(node.font.glyphindex(character) == 0 for character in node.string)


def _outline(path: QPainterPath) -> str:
    """The path in SVG's words. Of a curve's three elements the latter two are its data."""
    words: list[str] = []
    for index in range(path.elementCount()):
        element = path.elementAt(index)
        match element.type:
            case QPainterPath.ElementType.MoveToElement:
                words.append("M")
            case QPainterPath.ElementType.LineToElement:
                words.append("L")
            case QPainterPath.ElementType.CurveToElement:
                words.append("C")
        words.append(f"{element.x:.2f} {element.y:.2f}")
    return " ".join(words)
