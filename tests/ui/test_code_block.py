from __future__ import annotations

from time import thread_time

import pytest
from PySide6.QtGui import QColor, QGuiApplication
from PySide6.QtWidgets import QApplication, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from ui.markdown.blocks import Code
from ui.markdown.highlight import CodeLexer, LexRun
from ui.theme import Theme
from ui.transcript.code_block import CodeBlock
from ui.transcript.reply_body import ReplyBody


def colours(block: CodeBlock) -> list[list[tuple[str, str]]]:
    """(text, colour) of the coloured ranges, line by line."""
    result = []
    line = block._text.document().begin()
    while line.isValid():
        ranges = line.layout().formats()
        text = line.text()
        result.append([(text[r.start : r.start + r.length], r.format.foreground().color().name()) for r in ranges])
        line = line.next()
    return result


def test_code_is_coloured_in_the_colours_of_the_theme(qtbot: QtBot, theme: Theme) -> None:
    block = CodeBlock(theme, Code("def f():\n    return '한글' # note", "python"))
    qtbot.addWidget(block)
    syntax = theme.tokens.syntax
    first, second = colours(block)
    assert ("def", syntax["keyword"].lower()) in first
    assert ("f", syntax["function"].lower()) in first
    assert ("# note", syntax["comment"].lower()) in second
    assert "".join(text for text, colour in second if colour == syntax["string"].lower()) == "'한글'"
    theme.set_mode("dark")
    block.recolour()
    assert ("def", QColor(theme.tokens.syntax["keyword"]).name()) in colours(block)[0]


def test_an_unknown_language_is_plain_and_named(qtbot: QtBot, theme: Theme) -> None:
    block = CodeBlock(theme, Code("x = 1", "klingon"))
    qtbot.addWidget(block)
    assert colours(block) == [[]]
    assert block._language.text() == "klingon"


def test_copy_takes_the_code_and_nothing_else(qtbot: QtBot, theme: Theme) -> None:
    block = CodeBlock(theme, Code("line one\n\tline two", ""))
    qtbot.addWidget(block)
    block._copy.click()
    assert QGuiApplication.clipboard().text() == "line one\n\tline two"
    assert block._copy.text() == "Copied"


def test_growing_code_lexes_only_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    class CountedRun(LexRun):
        def __init__(self, lexer: object, lines: list[str]) -> None:
            lengths.append(len(lines))
            super().__init__(lexer, lines)

    monkeypatch.setattr("ui.markdown.highlight.LexRun", CountedRun)
    lexer = CodeLexer("python")
    lines: list[str] = []
    for number in range(600):
        lines.append(f"value_{number} = compute({number})")
        lexer.update(lines)
    assert max(lengths) <= 26
    assert len(lexer.lines) == 600
    assert all(len(line) > 0 for line in lexer.lines)


def test_the_last_pass_corrects_a_string_that_a_shortcut_cut() -> None:
    lines = ['text = """', *(f"a line of prose, number {n}" for n in range(200)), '"""', "x = 1"]
    lexer = CodeLexer("python")
    for end in range(1, len(lines) + 1):
        lexer.update(lines[:end])
    assert not lexer.is_exact
    run = lexer.whole_pass(lines)
    assert run is not None
    run.all_lines()
    assert len(lexer.lines) == len(lines)
    assert {part.kind for part in lexer.lines[150]} == {"string"}


def test_long_code_is_coloured_in_slices(qtbot: QtBot, theme: Theme) -> None:
    text = "\n".join(f"value_{number} = compute({number})  # {number}" for number in range(1500))
    body = ReplyBody(theme)
    qtbot.addWidget(body)
    body.show_text(f"```python\n{text}\n```")
    block = body.parts[0]
    assert isinstance(block, CodeBlock)
    assert colours(block)[0] == []  # not yet: the window was not held up
    qtbot.waitUntil(lambda: block._text._run is None)
    assert all(len(line) >= 2 for line in colours(block))


def test_a_code_block_that_closes_keeps_its_widget(qtbot: QtBot, theme: Theme) -> None:
    body = ReplyBody(theme)
    qtbot.addWidget(body)
    body.feed("Look:\n\n```python\nx = 1\n")
    code = [part for part in body.parts if isinstance(part, CodeBlock)]
    body.feed("y = 2\n```\n\nDone.")
    body.finish()
    assert [part for part in body.parts if isinstance(part, CodeBlock)] == code
    assert code[0].code == "x = 1\ny = 2"
    assert body.plain_text() == "Look:\nx = 1\ny = 2\nDone."


def test_streaming_code_costs_no_parse_and_draws_only_what_is_new(qtbot: QtBot, theme: Theme) -> None:
    body = ReplyBody(theme)
    qtbot.addWidget(body)
    body.feed("First paragraph.\n\n```python\n")
    parses = body.num_parses
    changed: list[tuple[int, int]] = []
    code = body.parts[-1]
    assert isinstance(code, CodeBlock)
    code._text.document().contentsChange.connect(lambda place, _removed, added: changed.append((place, added)))
    for number in range(300):
        body.feed(f"value_{number} = compute({number})\n")
    assert body.num_parses == parses
    assert code.code.count("\n") == 299
    inserted = [added for _, added in changed]
    assert max(inserted) < 200


def test_half_a_fence_is_taken_back(qtbot: QtBot, theme: Theme) -> None:
    body = ReplyBody(theme)
    qtbot.addWidget(body)
    body.feed("```text\nab\n`")
    body.feed("c` is not the end\n")
    body.finish()
    assert body.plain_text() == "ab\n`c` is not the end"


def test_a_flush_of_streaming_code_costs_the_same_at_the_end_as_at_the_start(qtbot: QtBot, theme: Theme) -> None:
    page = QWidget()
    qtbot.addWidget(page)
    body = ReplyBody(theme)
    column = QVBoxLayout(page)
    column.addWidget(body)
    column.addStretch(1)
    page.resize(700, 600)
    page.show()
    body.feed("```python\n")
    first = flush_costs(body)
    for _ in range(10):  # 20,000 tokens and more
        body.feed("".join(code_line(line) for line in range(250)))
        QApplication.sendPostedEvents()
    assert flush_costs(body) < 1.5 * first


def flush_costs(body: ReplyBody) -> float:
    """The median of the processor's time for a flush of a line and a half."""
    costs = []
    for number in range(61):
        began = thread_time()
        body.feed(code_line(number) + code_line(number)[:20] + "\n")
        QApplication.sendPostedEvents()
        costs.append(thread_time() - began)
    return sorted(costs[11:])[25]


def code_line(number: int) -> str:
    return f"value_{number} = compute({number}, other, 'text')  # {number}\n"
