from __future__ import annotations

import random

import pytest

from ui.markdown.blocks import Block, Code, Maths, Paragraph, Rule, Span, Table, block_spans, plain_text
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

RICH = r"""Claims[^1] and more[^why] cost $5 or $10; $x^2$ does not.

$$
a
- b
$$
right after it \(c\), `$no$`

- [ ] to do
- [x] done
  > quoted
  1. mixed

     \[
     d
     \]

\begin{align}
a &= b \\
- c &= d
\end{align}

```math
e = f
```

See https://example.org/a_b_c and ![a picture](http://example.org/p.png).

$$
never closed

[^1]: The first.
[^why]: Because

    of this.

The end.
"""


def streamed(text: str, size: int) -> tuple[list[Block], MarkdownStream]:
    stream = MarkdownStream()
    blocks: list[Block] = []
    for start in range(0, len(text), size):
        blocks += stream.feed(text[start : start + size]).finished
    return blocks + list(stream.finish().finished), stream


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("text", [SAMPLE, RICH])
def test_a_streamed_reply_has_the_blocks_of_the_whole_one(text: str, size: int) -> None:
    blocks, _ = streamed(text, size)
    assert tuple(blocks) == parse_markdown(text)


def test_the_blocks_of_a_reply() -> None:
    kinds = [type(block) for block in parse_markdown(SAMPLE)]
    lists = [Paragraph, Paragraph, Paragraph, Code, Paragraph]
    assert kinds == [Paragraph, Paragraph, *lists, Code, Paragraph, Table, Paragraph, Rule, Paragraph, Paragraph]
    code = [block for block in parse_markdown(SAMPLE) if isinstance(block, Code)]
    assert code == [Code("z = 1", "py", 2), Code('def f():\n\n    return "```"', "python")]
    assert parse_markdown(SAMPLE)[-1] == Paragraph((Span("eight"),), depth=1, marker=8, is_tight=True)


@pytest.mark.parametrize(
    "html",
    [
        "<script>x</script>",
        "<img src=http://example.org/x.png onerror=y>",
        '<iframe src="https://example.org"></iframe>',
        "<style>p { color: red }</style>",
        "<!-- unseen? -->",
        "a <b>bold</b> word",
    ],
)
def test_html_is_text(html: str) -> None:
    assert plain_text(spans_of(html)) == html
    assert all(not span.bold for span in spans_of(html))


def test_an_entity_is_its_character_and_nothing_more() -> None:
    assert plain_text(spans_of("&lt;b&gt; &amp; &copy;")) == "<b> & ©"


def spans_of(text: str) -> tuple[Span, ...]:
    (block,) = parse_markdown(text)
    assert isinstance(block, Paragraph)
    return block.spans


def maths_in(text: str) -> list[str]:
    blocks = parse_markdown(text)
    inside = [span.text for block in blocks for span in block_spans(block) if span.maths]
    return inside + [block.latex for block in blocks if isinstance(block, Maths)]


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "US$5, then $20 or $30",
        "I have $20, you have 30$.",
        "from $1,000–$2,000 a month",
        "a lone $ sign, a $ b $ c",
        r"escaped \$x\$",
        "`$x$` and `\\(y\\)`",
        "```\n$$\nx\n$$\n```",
        "$$\nx\n\ny\n$$",  # a blank line is never part of a formula
        "$" + "x" * 2001 + "$",
        "$ $ and $$ $$ and \\(\\)",
    ],
)
def test_no_formula(text: str) -> None:
    assert maths_in(text) == []


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("$x$ is 5", ["x"]),
        ("값은 $x$이고, \\( y \\)는", ["x", "y"]),
        (r"the $n$th, $a\$b$.", ["n", r"a\$b"]),
        ("$$x$$", ["x"]),
        ("so $$x$$ here and \\[y\\]", ["x", "y"]),
        ("text\n$$\nx\n- y\n= z\n$$\nmore", ["x\n- y\n= z"]),
        ("\\[\nx\n\\]", ["x"]),
        ("\\begin{cases}\n1 \\\\ 2\n\\end{cases}", ["\\begin{cases}\n1 \\\\ 2\n\\end{cases}"]),
        ("```math\nx\n```", ["x"]),
        ("> $$x$$", ["x"]),
        ("- item\n  $$\n  x\n  $$", ["x"]),
    ],
)
def test_formulas(text: str, latex: list[str]) -> None:
    assert maths_in(text) == latex


def test_an_unfinished_formula_is_text_while_it_streams() -> None:
    stream = MarkdownStream()
    shown = stream.feed("So:\n\n$$\na\n- b\n").open
    assert [plain_text(block_spans(block)) for block in shown] == ["$$\u2028a\u2028- b"]
    assert stream.feed("$$\n").open == (Maths("a\n- b"),)


def test_tasks_lists_in_lists_and_quotes_in_them() -> None:
    blocks = parse_markdown("- [ ] to do\n- [x] done\n  1. one\n     > quoted\n- [ ]none")
    seen = [(b.task, b.marker, b.depth, b.quotes) for b in blocks if isinstance(b, Paragraph)]
    assert seen == [(False, 0, 1, ()), (True, 0, 1, ()), (None, 1, 2, ()), (None, None, 2, (2,)), (None, 0, 1, ())]
    assert plain_text(block_spans(blocks[0])) == "to do"


def test_footnotes_are_known_before_they_are_defined() -> None:
    blocks = parse_markdown("One[^1] and `[^2]`.\n\nTwo.\n\n[^1]: What it *means*.\n\n    More of it.")
    assert [span.note for span in block_spans(blocks[0])] == [None, "1", None, None, None]
    notes = [(block.note, block.starts_note) for block in blocks if isinstance(block, Paragraph)]
    assert notes == [(None, False), (None, False), ("1", True), ("1", False)]


def test_bare_addresses_are_links_and_particles_are_not_part_of_them() -> None:
    text = "see https://ex.com/a_b?x=1. 또 https://ko.wikipedia.org/wiki/제주 (www.foo.org/x) https://ex.com에서"
    text += " `https://no.org` x.y"
    assert [span.href for span in spans_of(text) if span.href] == [
        "https://ex.com/a_b?x=1",
        "https://ko.wikipedia.org/wiki/제주",
        "https://www.foo.org/x",
        "https://ex.com",
    ]
    assert plain_text(spans_of(text)) == text.replace("`", "")


def test_an_image_is_its_description_with_its_address() -> None:
    assert spans_of("![a cat](http://example.org/cat.png)") == (Span("a cat", href="http://example.org/cat.png"),)
    assert spans_of("![](https://example.org/cat.png)")[0].text == "https://example.org/cat.png"
    assert [span.href for span in spans_of("![x](file:///etc/passwd)")] == [None]


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
        "$",
        "$$",
        "\\[",
        "[^1]: ",
        "- [ ] ",
        "\\",
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
        case Maths():
            return block.latex
        case Table():
            return "".join(plain_text(cell) for row in block.rows for cell in row)
    return ""
