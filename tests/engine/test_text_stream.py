"""Detokenizer and stop strings."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.generation.detokenizer import Detokenizer
from engine.generation.stop_strings import StopStrings


@pytest.mark.parametrize("text", ["안녕하세요 반가워요", "쭉 👩‍👩‍👧 끝", "naïve café — ok", "the quick brown fox"])
def test_pieces_join_to_the_text_and_never_show_half_a_character(tiny_model: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(i) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert "".join(pieces) + detokenizer.flush() == text
    assert not any("�" in piece for piece in pieces)


def test_a_reply_cut_inside_a_syllable_shows_what_is_whole(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    ids = tokenizer.encode("가나다", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.add(i) for i in ids[:-1]) + detokenizer.flush()
    assert text == "가나"


def test_special_tokens_are_not_shown(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.add(i) for i in tokenizer.encode("a<|start|>b", add_special_tokens=False)) == "ab"


@pytest.mark.parametrize("seed", range(30))
def test_stop_strings_cut_at_the_first_match_whatever_the_pieces(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("abc") for _ in range(60))
    stops = ["".join(rng.choice("abc") for _ in range(rng.randrange(1, 6))) for _ in range(rng.randrange(1, 3))]
    stream, shown, stopped, at = StopStrings(stops), "", False, 0
    while at < len(text) and not stopped:
        size = rng.randrange(1, 5)
        part, stopped = stream.add(text[at : at + size])
        shown += part
        at += size
    if not stopped:
        shown += stream.flush()
    ends = [text.find(stop) for stop in stops if stop in text]
    assert stopped == bool(ends)
    if ends:
        assert not any(stop in shown for stop in stops)
        assert text.startswith(shown)
        assert any(text.startswith(stop, len(shown)) for stop in stops)
    else:
        assert shown == text
