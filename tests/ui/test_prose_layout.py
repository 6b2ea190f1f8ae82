"""A reply that streamed in any pieces, at any width, lies as one that was shown at once: no line over another."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from ui.theme import Theme
from ui.transcript.flow_text import FlowText
from ui.transcript.prose_document import write_plain
from ui.transcript.prose_part import ProsePart
from ui.transcript.reply_body import ReplyBody

SENTENCE = "The **quick** brown fox, 그리고 `code` 한글 $x^2$ over $\\frac{a}{b}$ [a link](https://x.org) dog, 🙂 end."
WORDS = SENTENCE.split()


def some_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(3, 9)):
        words = " ".join(rng.choices(WORDS, k=rng.randint(3, 40)))
        short = " ".join(rng.choices(WORDS[:3], k=4))
        forms = [
            words,
            words,
            f"- {words}\n- [x] {short}\n  1. {words}",
            f"> {words}",
            f"# {short}",
            "```python\nx = 1\n```",
            f"| a | b |\n|---|---|\n| 1 | {short} |",
            "$$\n\\sum_i x_i\n$$",
            f"Note[^n].\n\n[^n]: {words}",
        ]
        parts.append(rng.choice(forms))
    return "\n\n".join(parts)


def lines_of(part: FlowText) -> list[tuple[float, float, str]]:
    """(top, bottom, text) of each line outside of tables, from the top of the document."""
    result = []
    block = part.document().begin()
    while block.isValid():
        top = part.document().documentLayout().blockBoundingRect(block).top() - block.layout().boundingRect().top()
        for number in range(block.layout().lineCount()):
            line = block.layout().lineAt(number)
            text = block.text()[line.textStart() : line.textStart() + line.textLength()]
            if block.text():
                result.append((top + line.y(), top + line.y() + line.height(), text))
        block = block.next()
    return result


def settle(body: ReplyBody, width: int) -> None:
    body.window().resize(width, 20_000)
    for _ in range(3):
        QApplication.sendPostedEvents()
        QApplication.processEvents()


@pytest.mark.parametrize("width", [220, 480, 740])
def test_however_it_streams_it_lies_the_same(qtbot: QtBot, theme: Theme, width: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(2):
        text = some_text(rng)
        streamed, whole = ReplyBody(theme), ReplyBody(theme)
        pages = [QWidget(), QWidget()]
        for page, body in zip(pages, (streamed, whole), strict=True):
            qtbot.addWidget(page)
            column = QVBoxLayout(page)
            column.setContentsMargins(0, 0, 0, 0)
            column.addWidget(body)
            column.addStretch(1)
            page.show()
        place = 0
        while place < len(text):
            size = rng.randint(1, 30)
            streamed.feed(text[place : place + size])
            place += size
            if rng.random() < 0.3:
                settle(streamed, rng.choice([width, width, 300]))
            check_lines(streamed)
        streamed.finish()
        whole.show_text(text)
        for body in (streamed, whole):
            settle(body, width)
            check_lines(body)
        assert streamed.plain_text() == whole.plain_text()
        assert [part.size() for part in streamed.parts] == [part.size() for part in whole.parts], repr(text)
        for one, other in zip(prose(streamed), prose(whole), strict=True):
            assert lines_of(one) == lines_of(other), repr(text)
            assert one.height() == pytest.approx(one.document().size().height(), abs=1)
        assert streamed.height() >= sum(part.height() for part in streamed.parts)


def check_lines(body: ReplyBody) -> None:
    """Lines go down the page, none into the one above it but where they are cells side by side."""
    for part in prose(body):
        assert part.verticalScrollBar().value() == 0
        bottom = 0.0
        block = part.document().begin()
        while block.isValid():
            rect = part.document().documentLayout().blockBoundingRect(block)
            in_table = part.document().findBlock(block.position()).document().frameAt(block.position()).parentFrame()
            if in_table is None and block.text():
                assert rect.top() >= bottom - 0.5, block.text()
                bottom = rect.bottom()
            block = block.next()


def prose(body: ReplyBody) -> list[ProsePart]:
    return [part for part in body.parts if isinstance(part, ProsePart)]


def test_a_selection_dragged_out_of_it_scrolls_nothing(qtbot: QtBot, theme: Theme) -> None:
    text = FlowText(theme)
    qtbot.addWidget(text)
    text.resize(200, 40)
    text.show()
    text.setPlainText("line\n" * 30)
    text.verticalScrollBar().setValue(100)
    assert text.verticalScrollBar().value() == 0


def test_lines_with_formulas_are_as_far_apart_as_others(qtbot: QtBot, theme: Theme) -> None:
    body = ReplyBody(theme)
    qtbot.addWidget(body)
    body.show_text("a\\\nb $x_i$ and $\\frac{a}{b}$\\\nc")
    part = prose(body)[0]
    part.document().setTextWidth(600)
    layout = part.document().begin().layout()
    baselines = [layout.lineAt(n).y() + layout.lineAt(n).ascent() for n in range(layout.lineCount())]
    distances = [after - before for before, after in pairwise(baselines)]
    assert min(distances) >= 20


def test_a_named_footnote_gets_its_number_when_its_definition_arrives(qtbot: QtBot, theme: Theme) -> None:
    body = ReplyBody(theme)
    qtbot.addWidget(body)
    body.feed("One[^1], two[^why].\n\nMore text.\n\n")
    assert body.plain_text().startswith("One1, two[^why].\n")
    before = body.num_parses
    body.feed("[^1]: The first.\n[^why]: So.\n")
    assert body.num_parses <= before + 2  # what is finished is drawn again, not parsed
    assert body.plain_text().startswith("One1, two2.\n")
    body.feed("\nThe end.")
    body.finish()
    assert body.plain_text() == "One1, two2.\nMore text.\n1.\tThe first.\n2.\tSo.\nThe end."


def test_the_markers_of_lists_are_where_the_text_is(qtbot: QtBot, theme: Theme) -> None:
    """The number of an item with three digits has room, and so has the box of a task in an inner list."""
    body = ReplyBody(theme)
    qtbot.addWidget(body)
    body.resize(400, 200)
    body.show_text("100. hundred\n\nx\n\n- a\n  - [x] done")
    image = prose(body)[0].grab().toImage()
    paper = image.pixelColor(image.width() - 1, image.height() - 1)
    inked = [x for x in range(30) for y in range(20) if image.pixelColor(x, y) != paper]
    assert min(inked) > 0  # not cut off at the left
    accent = QColor(theme.tokens.accent)
    boxes = [x for x in range(80) for y in range(image.height()) if image.pixelColor(x, y) == accent]
    assert 24 < min(boxes) < max(boxes) < 48


def places(text: FlowText) -> list[tuple[float, int]]:
    """Where each block lies and how many lines it has, as it is now: nothing is laid out for the asking."""
    result = []
    block = text.document().begin()
    while block.isValid():
        result.append((block.layout().position().y(), block.layout().lineCount()))
        block = block.next()
    return result


def test_no_line_stays_as_it_was_for_another_width(qtbot: QtBot, theme: Theme) -> None:
    text = FlowText(theme)
    qtbot.addWidget(text)
    lines = [f"words that wrap where it is narrow, number {n}" for n in range(300)]
    write_plain(text.document(), "\n".join(lines), theme.tokens)
    text.resize(600, 400)
    text.show()
    text.document().size()
    wide = places(text)
    text.heightForWidth(150)
    assert places(text) == wide
    text.resize(150, 400)
    narrow = places(text)
    text.document().size()
    assert places(text) == narrow != wide
