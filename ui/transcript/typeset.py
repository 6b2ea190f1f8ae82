"""LaTeX -> a picture made of outlines, by latex2mathml and ziamath. Reads no file but ziamath's font, and never raises.

A formula comes from a model, so it is not trusted: its length, nesting and commands are limited, and setting one is
given up after so many steps. What cannot be set is None, and is shown as its source.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ui.markdown.maths import LONGEST_FORMULA

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_MOST_STEPS = 500  # 0.05 to 0.1 s
_DEEPEST = 24  # groups in one another
_MOST_ELEMENTS = 500
_LONGEST_WORD = 100
_LARGEST = 200  # ems
_SET_PX = 16.0  # the size it is set at; it is scaled when it is painted
_ROW_SPACING = "6pt"  # at that size
# What defines macros, names files or addresses, or reaches into a page.
_REFUSED = re.compile(
    r"\\(?:[gex]?def|let|(?:re|provide)?newcommand|(?:re)?newenvironment|DeclareMathOperator|input|include(?:graphics)?"
    r"|require|href|url|class|style|cssId|data|html\w*|write|read|open\w*|catcode|csname|loop|immediate|special)"
    r"(?![a-zA-Z])|'{5}"
)
_REPLACED = (
    (
        re.compile(r"\\(begin|end)\{(?:aligned|split|gathered|gather|multline|eqnarray|align|alignat)\*?\}"),
        r"\\\1{align*}",
    ),
    (re.compile(r"(\\begin\{align\*\})\{\d+\}"), r"\1"),  # alignat says how many columns
    (re.compile(r"\\(?:begin|end)\{equation\*?\}"), ""),
    (re.compile(r"\\(?:label|tag)\*?\{[^{}]*\}|\\(?:nonumber|notag)(?![a-zA-Z])"), ""),
    (re.compile(r"\|\|"), "‖"),
    (re.compile(r"\\not\s*="), r"\\ne "),
    (re.compile(r"\\operatorname\*?\s*\{arg\\[,;: ]\s*(max|min)\}"), r"\\arg\1 "),
    (
        re.compile(r"\\mathrm\{"),
        r"\\mathrm {",
    ),  # WORKAROUND latex2mathml 3.81: one letter stays italic without the space
)
_KEPT_ATTRIBUTES = frozenset(
    [
        *("display", "displaystyle", "scriptlevel", "mathvariant", "mathsize", "linethickness", "notation"),
        *("stretchy", "minsize", "maxsize", "fence", "form", "separator", "separators", "open", "close", "symmetric"),
        *("accent", "movablelimits", "lspace", "rspace", "width", "height", "depth", "voffset", "linebreak"),
        *("columnalign", "columnlines", "columnspacing", "frame", "rowlines", "rowspacing"),
    ]
)
# The libraries raise whatever a malformed formula leads them into; their own errors are added when they are imported.
_FAILURES: tuple[type[Exception], ...] = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, StopIteration, SyntaxError, TypeError,
    ValueError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Formula:
    """Sizes in ems. `svg` is drawn in the current colour; its baseline lies `ascent` below its top."""

    svg: bytes
    width: float
    ascent: float
    descent: float


@lru_cache(maxsize=1024)
def typeset(latex: str, is_display: bool) -> Formula | None:
    """The formula as a picture, or None where it cannot be set."""
    if not latex.strip() or len(latex) > LONGEST_FORMULA or _REFUSED.search(latex) or _nesting(latex) > _DEEPEST:
        return None
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in latex if not character.isspace()):
        return None
    # Imported with the first formula: it takes 0.2 s, which the start of the program does without.
    from ui.transcript.maths_engine import LIBRARY_ERRORS, TooLongError  # noqa: PLC0415

    try:
        return _set(latex, is_display)
    except TooLongError:
        return None
    except _FAILURES + LIBRARY_ERRORS:
        return None


def _set(latex: str, is_display: bool) -> Formula | None:
    from ui.transcript.maths_engine import draw, read  # noqa: PLC0415  # as above

    for pattern, replacement in _REPLACED:
        latex = pattern.sub(replacement, latex)
    root = read(latex, is_display)
    elements = list(root.iter())
    if len(elements) > _MOST_ELEMENTS or any(_is_unknown(element.text or "") for element in elements):
        return None
    for element in elements:
        _clean(element)
    root.set("mathcolor", "currentColor")
    svg, box = draw(root, _SET_PX, _MOST_STEPS)
    left, top, right, bottom = (side / _SET_PX for side in box)
    if not 0 < right - left < _LARGEST or not 0 <= bottom - top < _LARGEST:
        return None
    return Formula(svg, right - left, -top, bottom)


def _is_unknown(text: str) -> bool:
    """A command that is not known comes back as it was; and no word is this long."""
    return len(text) > _LONGEST_WORD or (text.startswith("\\") and len(text) > 1)


def _clean(element: Element) -> None:
    """Keep the attributes that are looks, but colours: those of the theme are sure to be seen. latex2mathml writes
    entities, which are taken as the characters they are."""
    for name in list(element.attrib):
        if name not in _KEPT_ATTRIBUTES:
            del element.attrib[name]
    if element.get("rowspacing"):
        element.set("rowspacing", _ROW_SPACING)
    if element.tag == "mstyle" and not element.attrib:
        element.tag = "mrow"
    if element.text:
        element.text = html.unescape(element.text)
        if element.tag in ("mo", "mn"):
            element.text = element.text.replace("-", "−")


def _nesting(latex: str) -> int:
    """How deep groups lie in one another, at most."""
    depth = deepest = 0
    for mark in re.findall(r"\\.|\\?[{}]|[{}]|\\left|\\begin", latex):
        if mark == "{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark == "}":
            depth -= 1
    return max(deepest, latex.count(r"\left"), latex.count(r"\begin"), latex.count(r"\sqrt") - 20)
