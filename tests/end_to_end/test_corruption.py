"""Forty of the thousand rounds of `make corruption`, with tiny models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.kv.store import reader
from tests.benchmarks.corruption import Reuse, World, lines, run_rounds, scratch_folder, tiny_worlds
from tests.benchmarks.damage import KINDS

ROUNDS = 40


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def worlds(folder: Path) -> list[World]:
    return tiny_worlds(folder)


@pytest.mark.timeout(300)
def test_damaged_folders_never_change_a_reply_and_are_whole_after_it(worlds: list[World], folder: Path) -> None:
    rounds = run_rounds(worlds, range(ROUNDS), seed=7, scratch=folder)
    failures = [(one.number, one.world, one.kind, one.what, one.problems) for one in rounds if one.problems]
    assert failures == []
    assert lines(rounds)[-1].startswith("all")
    assert {one.kind for one in rounds} == set(KINDS)
    assert {reuse for one in rounds for reuse in one.reuse} == set(Reuse)


class AnyChecksums(list[str]):
    """What a reader gets that does not care."""

    def __ne__(self, other: object) -> bool:
        return False


def test_what_gets_past_the_checksums_is_noticed(
    worlds: list[World], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the run can fail."""
    read = reader._read_tensors
    monkeypatch.setattr(reader, "_read_tensors", lambda *arguments: AnyChecksums(read(*arguments)))
    rounds = run_rounds(worlds[:1], range(6), seed=7, scratch=folder, kinds=["flip in the body"])
    assert any("logits differ" in problem for one in rounds for problem in one.problems)
