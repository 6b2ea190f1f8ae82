"""Formulas: set from LaTeX that nobody vouches for, drawn on the line of the text, and copied as they were written."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from time import thread_time

import pytest
from PySide6.QtCore import QRectF, QUrl
from PySide6.QtGui import QColor, QImage, QPainter, QTextCharFormat, QTextCursor, QTextDocument
from PySide6.QtNetwork import QNetworkAccessManager
from pytestqt.qtbot import QtBot

from ui.theme import Theme, ui_font
from ui.transcript.flow_text import FlowText
from ui.transcript.formula_object import FormulaObject, insert_formula
from ui.transcript.prose_part import ProsePart
from ui.transcript.reply_body import ReplyBody
from ui.transcript.typeset import typeset

KNOWN = [
    r"E=mc^2",
    r"x = \frac{-b\pm\sqrt{b^2-4ac}}{2a}",
    r"\int_0^\infty e^{-x^2}\,dx=\frac{\sqrt\pi}{2}",
    r"\begin{pmatrix}a&b\\c&d\end{pmatrix}",
    r"\sum_{i=1}^n i^2 = \text{합계} + x",
    r"\begin{aligned}a&=b+c\\&=d\end{aligned}",
    r"\binom{n}{k}=\mathrm{d}x\,\mathbb{R} \in \mathcal{L}",
    r"f(x)=\begin{cases}1&\text{if } x>0\\0&x<0\end{cases}",
    r"속도 = \frac{거리}{시간}",
    r"\operatorname{softmax}(z)_i=\frac{e^{z_i}}{\sum_j e^{z_j}}",
    r"\color{red}{x}+\underset{x}{\operatorname{arg\,max}}",
    r"\frac{\left(\frac{\left(\frac{\left(x\right)}{y}\right)}{y}\right)}{y}",
    r"\begin{equation}y=1\tag{1}\end{equation}",
    "a<b>c",
]

MALICIOUS = [
    "{" * 1000,
    "{" * 10_000 + "}" * 10_000,
    r"\frac{" * 30 + "1" + "}{2}" * 30,
    r"\sqrt{" * 22 + "x" + "}" * 22,
    r"\left(" * 23 + "x" + r"\right)" * 23,
    r"\input{/etc/passwd}",
    r"\include{a}",
    r"\includegraphics{file:///etc/passwd}",
    r"\href{https://example.org}{x}",
    r"\def\x{\x\x}\x",
    r"\newcommand{\x}{\x}\x",
    r"\let\a\b\a",
    "\ud800",
    "\\text{\udfff}",
    "x\x00",
    r"\text{한글 🙂}",
    r"\color{url(file:///etc/passwd)}{x}",
    "^",
    "x^^2",
    r"\frac{1}",
    r"\begin{pmatrix}",
    r"\end{pmatrix}",
    r"\right)",
    "&" * 100,
    r"\\" * 500,
    r"\sum" * 400,
    "'" * 1000,
    "1" * 2000,
    r"\text{" + "가" * 1000 + "}",
    r"\begin{array}{" + "c" * 900 + "}a" + "&b" * 300 + r"\end{array}",
    r"\hspace{99999em}",
    "x^" * 500 + "2",
    r"\unknowncommand",
    "<svg><image href='file:///etc/passwd'/></svg>",
]

PIECES = [
    *("x", "1", "2.5", "+", "-", "=", "{", "}", "{", "}", "^", "_", "&", r"\\", "(", ")", "[", "]", "'", "|", "<"),
    *(r"\frac", r"\sqrt", r"\left", r"\right", r"\begin{pmatrix}", r"\end{pmatrix}", r"\begin{cases}", r"\end{cases}"),
    *(r"\text", "한글", " ", r"\sum", r"\int", r"\alpha", r"\mathbf", r"\overline", r"\hat", r"\binom", r"\limits"),
    *("&amp;", "\ud83d", "\n", r"\,", r"\color{red}", r"\big", r"\not", r"\xrightarrow", r"\middle", r"\substack"),
    *(r"\hline", r"\pmod", r"\boxed", r"\phantom", "#1", "%", "~", r"\begin{array}{cc}", r"\end{array}", r"\over"),
]


@pytest.mark.parametrize("latex", KNOWN)
def test_what_people_write_is_set(qtbot: QtBot, latex: str) -> None:
    formula = typeset(latex, True)
    assert formula is not None
    assert 0 < formula.width < 40
    assert 0 < formula.ascent + formula.descent < 8


def test_nothing_a_model_writes_raises_or_takes_long(qtbot: QtBot) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for warm in KNOWN:
        typeset(warm, True)
    for latex in MALICIOUS + ["".join(rng.choices(PIECES, k=rng.randint(1, 60))) for _ in range(500)]:
        began = thread_time()
        formula = typeset(latex, rng.random() < 0.5)
        assert thread_time() - began < 0.4, repr(latex)  # about 0.1 on a quiet machine
        assert formula is None or (b"<image" not in formula.svg and b"href" not in formula.svg), repr(latex)


@pytest.mark.parametrize("latex", [*MALICIOUS[5:13], r"\unknowncommand", "^", r"\frac{1}"])
def test_what_is_refused_or_broken_is_no_formula(qtbot: QtBot, latex: str) -> None:
    assert typeset(latex, False) is None


def test_the_libraries_are_not_imported_before_the_first_formula() -> None:
    code = "import sys, ui.main_window; print([m for m in ('ziamath', 'latex2mathml') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_formula_stands_on_the_baseline_of_its_line(qtbot: QtBot) -> None:
    """The lowest ink of "x" and of $x$ is on the same row of pixels, whatever hangs below the line."""
    for latex in ("x", r"x\phantom{g}", r"x\phantom{\frac{a}{b}}"):
        document = QTextDocument()
        document.setDocumentMargin(0)
        FormulaObject(document)
        base = QTextCharFormat()
        base.setFont(ui_font(28))
        base.setForeground(QColor("black"))
        cursor = QTextCursor(document)
        cursor.insertText("x    ", base)
        assert insert_formula(cursor, latex, False, base)
        image = QImage(200, 80, QImage.Format.Format_RGB32)
        image.fill(QColor("white"))
        painter = QPainter(image)
        document.drawContents(painter, QRectF(0, 0, 200, 80))
        painter.end()
        letter, formula = lowest_ink(image, 0, 18), lowest_ink(image, 40, 200)
        assert letter > 0
        assert abs(letter - formula) <= 1


def lowest_ink(image: QImage, left: int, right: int) -> int:
    rows = [y for y in range(image.height()) for x in range(left, right) if image.pixelColor(x, y).lightness() < 128]
    return max(rows, default=-1)


@pytest.fixture
def body(qtbot: QtBot, theme: Theme) -> ReplyBody:
    result = ReplyBody(theme)
    qtbot.addWidget(result)
    result.resize(600, 400)
    return result


def test_formulas_are_drawn_and_read_as_their_source(body: ReplyBody) -> None:
    body.show_text("So $x^2$ and\n\n$$\n\\frac{a}{b}\n$$\n\nbut $\\frac{1}{$ fails.")
    (part,) = body.parts
    assert isinstance(part, ProsePart)
    assert part.toPlainText().count("\ufffc") == 2
    assert body.plain_text() == "So $x^2$ and\n$$\\frac{a}{b}$$\nbut \\frac{1}{ fails."
    assert "x^2; " in part.accessibleDescription()
    assert "\\frac{a}{b}" in part.accessibleDescription()


def test_copying_a_selection_takes_the_source(body: ReplyBody) -> None:
    body.show_text("a $x^2$ b\n\n1. one\n2. two\n\n- [x] done\n\n| p | q |\n|---|---|\n| 1 | $y$ |")
    part = body.parts[0]
    assert isinstance(part, ProsePart)
    part.selectAll()
    wanted = "a $x^2$ b\n1. one\n2. two\n☑ done\np\tq\n1\t$y$"
    assert part.createMimeDataFromSelection().text() == wanted
    cursor = part.textCursor()
    cursor.setPosition(2)
    cursor.setPosition(5, QTextCursor.MoveMode.KeepAnchor)
    part.setTextCursor(cursor)
    assert part.createMimeDataFromSelection().text() == "$x^2$ b"
    assert not part.createMimeDataFromSelection().hasHtml()


def test_a_formula_has_the_colour_of_the_theme(body: ReplyBody, theme: Theme) -> None:
    body.show_text("$$\\frac{M}{M}$$")
    for mode in ("light", "dark"):
        theme.set_mode(mode)
        body.recolour()
        image = body.grab().toImage()
        wanted = QColor(theme.tokens.text)
        colours = {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(60)}
        assert wanted.name() in colours, mode


def test_a_wide_formula_is_drawn_smaller_not_cut(body: ReplyBody) -> None:
    body.show_text("$$" + "+".join(f"\\frac{{a}}{{{n}}}" for n in range(10, 32)) + "$$")
    part = body.parts[0]
    assert isinstance(part, ProsePart)
    heights = []
    for width in (600, 300):
        part.document().setTextWidth(width)
        assert 0.8 * width < part.document().idealWidth() <= width
        heights.append(part.document().size().height())
    assert heights[1] < heights[0]


def test_while_it_streams_an_unfinished_formula_is_text(body: ReplyBody) -> None:
    body.feed("Look:\n\n$$\nx^2\n")
    assert body.plain_text() == "Look:\n$$\nx^2▍"
    body.feed("$$\n\nDone.")
    body.finish()
    assert body.plain_text() == "Look:\n$$x^2$$\nDone."


def test_drawing_again_leaves_nothing_behind(body: ReplyBody) -> None:
    for _ in range(5):
        body.feed("so $x^2$ ")
    (part,) = body.parts
    assert isinstance(part, ProsePart)
    assert len(part.document().findChildren(FormulaObject)) == 1


def test_nothing_is_ever_loaded(body: ReplyBody, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def load(_self: FlowText, kind: int, name: QUrl | str) -> object:
        asked.append((kind, name))
        return None

    monkeypatch.setattr(FlowText, "loadResource", load)
    body.show_text(
        "![a](file:///etc/passwd) ![b](https://example.org/p.png) ![c](p.png)\n\n"
        '<img src="https://example.org/p.png"><style>@import url(https://example.org)</style>\n\n'
        "<iframe src='https://example.org'></iframe> $\\includegraphics{p.png}$"
    )
    body.grab()
    assert asked == []
    assert "<img src=" in body.plain_text()
    assert body.findChildren(QNetworkAccessManager) == []


def test_no_part_of_the_window_reads_html_or_the_net() -> None:
    ways = ("QNetworkAccessManager", "QNetworkRequest", ".setHtml(", ".insertHtml(", ".setMarkdown(", ".setSource(")
    sources = list(Path(__file__, "../../../ui").resolve().rglob("*.py"))
    assert len(sources) > 50
    found = [(path.name, way) for path in sources for way in ways if way in path.read_text(encoding="utf-8")]
    assert found == []
