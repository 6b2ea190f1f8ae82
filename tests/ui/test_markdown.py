from __future__ import annotations

import random

import pytest

from ui.markdown.blocks import Block, Code, Paragraph, Rule, Span, Table, plain_text
from ui.markdown.stream import MarkdownStream, Update, parse_markdown

SAMPLE = """# Title

Hello **bold** <b>html</b> and a [link](https://example.org).
A second line.

- one
- two
  1. inner

     ```py
     z = 1
     ```
- three

```python
def f():

    return "```"
```
After it.

| a | b |
|---|--:|
| 1 | 2 |

> quoted

---

7. seven
8. eight
"""


def streamed(text: str, size: int) -> tuple[list[Block], MarkdownStream]:
    stream = MarkdownStream()
    blocks: list[Block] = []
    for start in range(0, len(text), size):
        blocks += stream.feed(text[start : start + size]).finished
    return blocks + list(stream.finish().finished), stream


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_a_streamed_reply_has_the_blocks_of_the_whole_one(size: int) -> None:
    blocks, _ = streamed(SAMPLE, size)
    assert tuple(blocks) == parse_markdown(SAMPLE)


def test_the_blocks_of_a_reply() -> None:
    kinds = [type(block) for block in parse_markdown(SAMPLE)]
    lists = [Paragraph, Paragraph, Paragraph, Code, Paragraph]
    assert kinds == [Paragraph, Paragraph, *lists, Code, Paragraph, Table, Paragraph, Rule, Paragraph, Paragraph]
    code = [block for block in parse_markdown(SAMPLE) if isinstance(block, Code)]
    assert code == [Code("z = 1", "py", 2), Code('def f():\n\n    return "```"', "python")]
    assert parse_markdown(SAMPLE)[-1] == Paragraph((Span("eight"),), depth=1, marker=8, is_tight=True)


def test_html_is_text() -> None:
    assert plain_text(parse_markdown("<script>x</script>")[0].spans) == "<script>x</script>"  # type: ignore[union-attr]


def test_finished_blocks_are_never_parsed_again() -> None:
    paragraph = "Some words that make a paragraph of an ordinary length, with *emphasis*.\n\n"
    short, long = streamed(paragraph * 10, 9)[1], streamed(paragraph * 400, 9)[1]
    assert long.num_parses / short.num_parses == pytest.approx(40, rel=0.1)
    assert long.parsed_characters / short.parsed_characters == pytest.approx(40, rel=0.1)


def test_the_lines_of_an_open_code_block_are_not_parsed_at_all() -> None:
    stream = MarkdownStream()
    stream.feed("Look:\n\n```python\n")
    before = stream.num_parses
    update = Update((), ())
    for number in range(2000):
        update = stream.feed(f"value_{number} = compute({number})\n")
    assert stream.num_parses == before
    assert isinstance(update.open[0], Code)
    assert update.open[0].text.count("\n") == 1999
    closed = stream.feed("```\nDone.")
    assert [type(block) for block in closed.finished] == [Code]


def test_one_endless_paragraph_costs_the_same_for_each_flush() -> None:
    stream = MarkdownStream()
    costs = []
    for _ in range(5000):
        before = stream.parsed_characters
        stream.feed("words and words ")
        costs.append(stream.parsed_characters - before)
    assert max(costs) < 20_000


def test_half_a_closing_fence_is_not_shown_as_code() -> None:
    stream = MarkdownStream()
    stream.feed("```\ncode\n")
    assert stream.feed("``").open == (Code("code"),)


def test_a_number_becoming_a_list_item_does_not_break_the_list() -> None:
    blocks, _ = streamed("1. one\n\n2. two\n\n3. three", 1)
    assert [block.marker for block in blocks if isinstance(block, Paragraph)] == [1, 2, 3]


def test_any_text_in_any_pieces_is_never_lost(request: pytest.FixtureRequest) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    alphabet = [
        "word ",
        "한글 ",
        "\n",
        "\n\n",
        "- ",
        "1. ",
        "```",
        "`",
        "#",
        " # ",
        "> ",
        "---",
        "**",
        "_",
        "    ",
        "~~~",
        "🙂",
    ]
    for _ in range(150):
        text = "".join(rng.choices(alphabet, k=60))
        blocks, _ = streamed(text, rng.randint(1, 9))
        shown = "".join(_words(block) for block in blocks)
        assert shown.count("한글") == text.count("한글"), repr(text)
        assert shown.count("🙂") == text.count("🙂"), repr(text)


def _words(block: Block) -> str:
    match block:
        case Paragraph():
            return plain_text(block.spans)
        case Code():
            return f"{block.info} {block.text}"
        case Table():
            return "".join(plain_text(cell) for row in block.rows for cell in row)
    return ""
