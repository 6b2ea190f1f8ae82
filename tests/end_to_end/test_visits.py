"""Chats of the real model in a budget that holds two of three: `make visits`, small."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.benchmarks.visits import Options, as_json, lines, measure

OPTIONS = Options(chats=3, tokens=300, visits=10, budget_mb=15, reply_tokens=4)


@pytest.mark.timeout(300)
def test_random_visits_in_a_small_budget_answer_as_if_nothing_was_ever_put_away(
    tmp_path: Path, default_model: Path
) -> None:
    outcome = measure(OPTIONS, default_model, tmp_path)
    assert outcome.problems == [], "\n".join(lines(outcome))
    assert outcome.num_compared_bits > OPTIONS.chats, "no visit was computed as the reference was"
    sources = Counter(one.source for one in outcome.within.visits)
    assert sources["disk"], "no chat was ever put away"
    assert outcome.within.pressure, "the budget was never short"
    assert {one.source for one in outcome.reference.visits} == {"memory"}
    assert as_json(OPTIONS, outcome)["problems"] == []
