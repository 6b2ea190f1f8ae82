"""Replies made to stop the window: none holds its thread for long, none loses its text, none brings it down."""

from __future__ import annotations

from time import thread_time

import pytest
from pytestqt.qtbot import QtBot

from ui.markdown import limits, plain
from ui.markdown.blocks import Code, Maths, Table, block_spans
from ui.markdown.stream import MarkdownStream, parse_markdown
from ui.theme import Theme
from ui.transcript.flow_text import FlowText
from ui.transcript.reply_body import ReplyBody

BOMBS = {
    "brackets": "[" * 100_000,
    "open links": "[" * 20_000 + "](x)",
    "nested links": "[" * 20_000 + "]" * 20_000 + "(x)",
    "addresses": "[a](<" * 20_000,
    "braces": "$" + "{" * 100_000 + "}" * 100_000 + "$",
    "long formula": "$$" + "x^2+" * 20_000 + "1$$",
    "matrix": r"$$\begin{matrix}" + ("1&" * 200 + r"1\\") * 200 + r"\end{matrix}$$",
    "fractions": "$" + r"\frac{" * 3000 + "1" + "}{2}" * 3000 + "$",
    "fences of formulas": r"$$" + r"\left(" * 2000 + r"\right)" * 2000 + "$$",
    "stars": "*" * 50_000 + "a" + "*" * 50_000,
    "emphasis": "*a_ " * 25_000,
    "ticks": "".join("`" * n + " " for n in range(1, 600)),
    "entities": "&amp;" * 50_000,
    "tildes": "~" * 60_000 + "a",
    "quotes": ">" * 20_000 + " a",
    "rows": "|a|b|\n|-|-|\n" + "|x|y|\n" * 5000,
    "columns": "|" + "a|" * 2000 + "\n|" + "-|" * 2000 + "\n|" + "b|" * 2000,
    "tables": "|a|b|\n|-|-|\n|x|y|\n\n" * 1500,
    "code blocks": "```\na\n```\n" * 3000,
    "one line": "a" * 300_000,
    "one line of Hangul": "가" * 200_000,
    "html": "<div onclick=x><img src=file:///x>" * 2000,
    "thoughts": "```\n" + "</think>\n" * 20_000,
    "line of code": "```json\n" + "[" * 100_000 + "\n```",
}
MOST_S = 1.5  # of processor time, by a machine several times slower than one today; without limits it is far more
PROSE = "Some **words** with `code`, *stress* and [a link](https://example.org) that run over a line or two. "
ORDINARY = "\n\n".join(
    [
        "# Title",
        PROSE * 4,
        "- one\n- two\n  - three\n\n> quoted",
        r"so $x_1^2$, \(y\), $z$ and $\frac{a}{b}$:",
        "```python\n" + "value = compute(1)  # a note\n" * 30 + "```",
        "| a | b | c |\n|---|---|--:|\n" + "| one | `two` | 3 |\n" * 30,
    ]
    * 10
    + [PROSE * 3] * 100
)


def letters(text: str) -> str:
    return "".join(character for character in text if character.isalnum())


@pytest.mark.parametrize("name", BOMBS)
def test_no_reply_holds_the_window_up(qtbot: QtBot, theme: Theme, name: str) -> None:
    text = BOMBS[name]
    body = ReplyBody(theme)
    qtbot.addWidget(body)
    body.resize(700, 500)
    body.show()
    slowest = 0.0

    def timed(work: object, *words: object) -> None:
        nonlocal slowest
        before = thread_time()
        assert callable(work)
        work(*words)
        slowest = max(slowest, thread_time() - before)

    third = len(text) // 3
    for piece in (text[:third], text[third : 2 * third], text[2 * third :]):
        timed(body.feed, piece)
    timed(body.finish)
    timed(body.heightForWidth, 500)
    assert body.plain_text().strip()

    again = ReplyBody(theme)
    qtbot.addWidget(again)
    again.resize(700, 500)
    again.show()
    timed(again.show_text, text)
    timed(again.heightForWidth, 500)
    assert slowest < MOST_S
    assert again.markdown() == text


def test_a_crowded_paragraph_is_shown_as_written() -> None:
    text = "before *a*\n\n" + "[" * 3000 + "*a*\nb\n\nafter *b*"
    first, *crowded, last = parse_markdown(text)
    assert all(any(span.italic for span in block_spans(block)) for block in (first, last))
    assert not any(span.italic for block in crowded for span in block_spans(block))
    shown = "".join(span.text for block in crowded for span in block_spans(block))
    assert shown == "[" * 3000 + "*a*\u2028b"


def test_a_large_table_is_shown_as_written() -> None:
    source = "|a|b|\n|-|-|\n" + "|x|y|\n" * 400
    assert parse_markdown(source + "\nafter")[0] == Code(source.removesuffix("\n"), "")
    assert isinstance(parse_markdown("|a|b|\n|-|-|\n" + "|x|y|\n" * 200)[0], Table)


def test_formulas_after_many_stay_as_written() -> None:
    formulas = [f"x_{{{n}}}" for n in range(300)]
    blocks = parse_markdown("\n\n".join(f"${formula}$" for formula in formulas) + "\n\n$$\ny\n$$\n")
    spans = [span for block in blocks for span in block_spans(block)]
    assert [span.text for span in spans] == [*formulas, "y"]
    assert [bool(span.maths) for span in spans] == [True] * 200 + [False] * 101
    assert not any(isinstance(block, Maths) for block in blocks)


@pytest.mark.parametrize("step", [7000, 10**9])
def test_what_follows_too_much_is_plain_and_whole(step: int) -> None:
    text = "".join(f"line *{n}*\n\n" for n in range(20_000))
    stream = MarkdownStream()
    blocks = [
        block for place in range(0, len(text), step) for block in stream.feed(text[place : place + step]).finished
    ]
    blocks += stream.finish().finished
    assert any(span.italic for span in block_spans(blocks[0]))
    assert not any(span.italic for span in block_spans(blocks[-1]))
    shown = "".join(span.text for block in blocks for span in block_spans(block))
    assert letters(shown) == letters(text)


def test_an_ordinary_long_reply_is_read_as_without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = parse_markdown(ORDINARY)
    for module, names in (
        (limits, ["_MOST_WORK", "_LONGEST_INLINE", "_MOST_MARKS", "_MOST_EMPHASIS", "_MOST_BRACKETS"]),
        (limits, ["_DEEPEST_BRACKETS", "_MOST_LINK_WORK", "_MOST_ROWS", "_MOST_CELLS", "_MOST_CELLS_IN_ALL"]),
        (plain, ["_LONGEST_PARAGRAPH", "_MOST_FORMULAS", "_MOST_LATEX", "_MOST_CODES"]),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 10**12)
    assert parse_markdown(ORDINARY) == limited
    assert sum(isinstance(block, Table) for block in limited) == 10
    assert sum(bool(span.maths) for block in limited for span in block_spans(block)) == 40


def test_a_reply_that_cannot_be_read_is_shown_as_written(
    qtbot: QtBot, theme: Theme, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("this reply is odd")

    monkeypatch.setattr(MarkdownStream, "_parse", refuse)
    for is_streaming in (True, False):
        body = ReplyBody(theme)
        qtbot.addWidget(body)
        body.resize(500, 300)
        body.show()
        if is_streaming:
            body.feed("A *reply*\n")
            body.feed("of two lines")
            body.finish()
        else:
            body.show_text("A *reply*\nof two lines")
        assert body.plain_text() == "A *reply*\nof two lines"
        assert body.markdown() == "A *reply*\nof two lines"
        assert body.heightForWidth(400) > 0


def test_a_reply_that_cannot_be_drawn_is_shown_as_written(
    qtbot: QtBot, theme: Theme, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("this table is odd")

    monkeypatch.setattr("ui.transcript.prose_document.ProseWriter._write_table", refuse)
    body = ReplyBody(theme)
    qtbot.addWidget(body)
    body.show_text("before\n\n|a|\n|-|\n|b|\n")
    assert body.plain_text() == "before\n\n|a|\n|-|\n|b|\n"
    assert all(isinstance(part, FlowText) for part in body.parts)
