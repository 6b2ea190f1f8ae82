"""What a chat is guessed to say next, against a plain search through all of it."""

from __future__ import annotations

import random

import pytest

from engine.generation.prompt_lookup import LONGEST_RUN, SHORTEST_RUN, PromptLookup


def latest_place(ids: list[int]) -> tuple[int, int | None]:
    """The length of the longest run at the end that occurred before, and what follows its most recent occurrence."""
    for size in range(LONGEST_RUN, SHORTEST_RUN - 1, -1):
        for end in range(len(ids) - 1, size - 1, -1):
            if ids[end - size : end] == ids[-size:]:
                return size, end
    return 0, None


def test_a_chat_that_repeats_nothing_suggests_nothing() -> None:
    for ids in ([], [1], [1, 2], [1, 1], list(range(100))):
        lookup = PromptLookup(ids)
        assert lookup.match_length == 0
        assert lookup.draft(5) == []


def test_what_followed_the_most_recent_occurrence_follows_again() -> None:
    lookup = PromptLookup([7, 8, 1, 2, 9, 7, 8, 3, 4, 9, 7, 8])
    assert lookup.match_length == 3
    assert lookup.draft(4) == [3, 4, 9, 7]
    assert lookup.draft(0) == []


def test_a_longer_run_is_worth_more_than_a_recent_one() -> None:
    lookup = PromptLookup([5, 6, 7, 8, 1, 0, 7, 8, 2, 0, 5, 6, 7, 8])
    assert lookup.match_length == 4
    assert lookup.draft(1) == [1]


def test_a_place_that_was_right_is_kept_while_it_stays_right() -> None:
    lookup = PromptLookup([1, 2, 3, 4, 5, 6, 7, 0, 2, 3, 4, 5, 9, 0, 1, 2, 3, 4])
    lookup.append(5)
    assert lookup.match_length == 5
    assert lookup.draft(2) == [6, 7]
    lookup.append(9)
    assert lookup.match_length == 4
    assert lookup.draft(1) == [0]
    lookup.append(10)
    assert lookup.match_length == 0


def test_a_loop_is_drafted_past_the_end_of_the_chat() -> None:
    assert PromptLookup([3, 3, 3]).draft(4) == [3, 3, 3, 3]
    assert PromptLookup([0, 1, 2, 1, 2]).draft(5) == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("num_known", [0, 1, 3, 200])
def test_grown_token_by_token_it_finds_what_a_search_finds(num_known: int) -> None:
    draw = random.Random(5)
    ids = draw.choices(range(6), k=400)
    lookup = PromptLookup(ids[:num_known])
    for end in range(num_known, len(ids)):
        lookup.append(ids[end])
        known = ids[: end + 1]
        size, place = latest_place(known)
        if lookup.match_length <= LONGEST_RUN:
            assert lookup.match_length == size
        source = end + 1 - lookup._source if lookup.match_length else 0
        if lookup.match_length > LONGEST_RUN:
            length = lookup.match_length
            assert known[-length:] == known[-length - source : -source]
        elif place is not None:
            assert known[place - size : place] == known[-size:]
            assert lookup.draft(1) == [known[end + 1 - source]]


def test_a_long_chat_is_remembered_from_its_end() -> None:
    chat = [1, 2, 3, 4, *range(100, 40_000), 50, 60, 70, 1, 2, 3, 4]
    assert PromptLookup(chat).match_length == 0
    assert PromptLookup([*chat, 50, 60]).draft(5) == [70, 1, 2, 3, 4]
