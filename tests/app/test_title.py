from __future__ import annotations

import unicodedata

import pytest

from app.title import MAX_TITLE, title_from


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello", "Hello"),
        ("\n\n  first   line \nsecond", "first line"),
        ("a" * 60, "a" * 60),
        ("a" * 61, "a" * 59 + "…"),
        ("word " * 20, "word word word word word word word word word word word word…"[:60]),
        ("x " + "y" * 100, "x " + "y" * 57 + "…"),
        ("가나다 " * 30, ("가나다 " * 14).rstrip() + " 가나다…"),
        ("", ""),
    ],
)
def test_a_title_is_the_first_line_that_says_something(text: str, title: str) -> None:
    assert title_from(text) == title
    assert len(title_from(text)) <= MAX_TITLE


def test_a_title_never_ends_in_half_a_syllable() -> None:
    decomposed = unicodedata.normalize("NFD", "각" * 100)
    assert title_from(decomposed) == "각" * 59 + "…"
