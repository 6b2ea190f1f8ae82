"""The measuring itself is measured: what is fed to an engine, what a report makes of it, and where it is written."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.benchmarks import fidelity, peer_measures
from tests.benchmarks.peer_job import MESSAGE_TOKENS, Job, num_token_ids
from tests.benchmarks.peer_process import last_result, measure
from tests.benchmarks.peer_report import EngineResult, Report, Row, Take, Unit, ratio
from tests.benchmarks.peer_table import greedy_lines, lines, readme_lines
from tests.benchmarks.readme_block import BlockMissingError, replace_block

PROMPTS, CONTEXTS, STEPS = (20, 50), (8, 50), 4
SPEED = Row("decode at 8", Unit.TOKENS_A_SECOND, ("decode", "8", "tps"))
LOAD = Row("loading the model", Unit.SECONDS, ("load_s",))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    ids = tuple(range(num_token_ids(PROMPTS, CONTEXTS, STEPS)))
    return Job("plain", ids, PROMPTS, CONTEXTS, STEPS, 1, 16, True, tmp_path, tmp_path, tmp_path)


class CountingPeer:
    """Its next token is the number of cached ones, so that what was measured where can be read off."""

    def __init__(self, job: Job) -> None:
        self.cached: list[int] = []
        self.largest_feed = 0
        self.is_closed = False

    def feed(self, token_ids: Sequence[int]) -> None:
        self.cached += token_ids
        assert self.cached == list(range(len(self.cached))), "ids that do not follow each other"
        self.largest_feed = max(self.largest_feed, len(token_ids))

    def greedy(self) -> int:
        return len(self.cached)

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens <= len(self.cached), "a cache does not grow by being cut"
        del self.cached[num_tokens:]

    def kv_bytes_per_token(self) -> float:
        return 8.0 if self.cached else 0.0

    def restart(self, job: Job) -> dict[str, float] | None:
        assert len(self.cached) == job.longest
        self.feed(job.message)
        return {"resumed_ttft_s": 0.5}

    def note(self) -> str:
        return "counts only"

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch, job: Job) -> CountingPeer:
    monkeypatch.setattr(sys, "stdin", io.StringIO(job.to_json()))
    return CountingPeer(job)


def test_every_engine_is_measured_at_the_lengths_that_were_asked_for(
    peer: CountingPeer, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    peer_measures.run(lambda given: peer)
    found = last_result(capsys.readouterr().out)
    assert {name: found["prefill"][name]["greedy"] for name in ("20", "50")} == {"20": 20, "50": 50}
    assert {name: one["greedy"] for name, one in found["decode"].items()} == {
        "50": [51, 52, 53, 54],
        "8": [9, 10, 11, 12],
    }
    assert found["restart"]["resumed_ttft_s"] == 0.5
    assert found["kv_bytes_per_token"] == 8.0
    assert peer.largest_feed == job.chunk
    assert found["note"] == "counts only"
    assert peer.is_closed


def test_what_cannot_be_saved_reads_everything_again(
    peer: CountingPeer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peer, "restart", lambda job: None)
    peer_measures.run(lambda given: peer)
    restart = last_result(capsys.readouterr().out)["restart"]
    assert restart["resumed_ttft_s"] == restart["cold_ttft_s"] > 0


def test_an_engine_that_fails_while_saving_keeps_its_other_figures(
    peer: CountingPeer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(job: Job) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(peer, "restart", fail)
    peer_measures.run(lambda given: peer)
    found = last_result(capsys.readouterr().out)
    assert found["restart"]["error"] == "RuntimeError: no room"
    assert set(found["decode"]) == {"50", "8"}


def test_a_job_survives_the_way_to_another_process(job: Job) -> None:
    assert Job.from_json(job.to_json()) == job
    assert len(job.message) == MESSAGE_TOKENS


def test_an_engine_that_is_not_there_is_an_error_and_no_result(job: Job) -> None:
    found, error = measure("peer_of_nobody", job, 60)
    assert found == {}
    assert error is not None
    assert "peer_of_nobody" in error


def test_the_last_line_that_is_an_object_counts() -> None:
    assert last_result('noise\n{"a": 1}\n{"a": 2}\n[3]\n{"a": 3') == {"a": 2}


def result(speed: float, token: int = 7, note: str = "") -> dict[str, object]:
    decode = {"8": {"tps": speed, "ms": 1e3 / speed, "greedy": [token, 1]}}
    prefill = {"20": {"tps": 5.0, "greedy": token}, "whole_s": 4.0}
    return {"load_s": 2.0, "decode": decode, "prefill": prefill, "note": note}


@pytest.fixture
def report() -> Report:
    engines = [
        EngineResult("ember-16bit", "Ember 16bit", [result(10.0), result(30.0), result(20.0)]),
        EngineResult("ember-4bit", "Ember 4bit", [], ["round 1: it does not load"]),
        EngineResult("transformers-bf16", "transformers bf16", [result(10.0, note="slowly")]),
        EngineResult("llama-f16", "llama.cpp f16", [result(40.0, token=9)]),
    ]
    machine = {"cores": 2, "cpu": "a processor", "threads": 2, "versions": {"torch": "2"}}
    return Report(machine, (8,), (20,), 2, 3, engines)


def test_figures_are_taken_over_the_rounds(report: Report) -> None:
    ember = report.engines[0]
    assert ember.figure(SPEED, Take.MEDIAN) == 20.0
    assert ember.figure(SPEED, Take.BEST) == 30.0
    assert report.engines[1].figure(SPEED, Take.MEDIAN) is None
    assert report.spread() == 1.0


@pytest.mark.parametrize(
    ("mine", "theirs", "row", "better"), [(20.0, 10.0, SPEED, 2.0), (1.0, 4.0, LOAD, 4.0), (None, 1.0, LOAD, None)]
)
def test_a_ratio_says_how_many_times_better(
    mine: float | None, theirs: float | None, row: Row, better: float | None
) -> None:
    assert ratio(mine, theirs, row) == better


def test_the_table_has_a_dash_for_what_failed_and_says_why(report: Report) -> None:
    text = lines(report, Take.MEDIAN)
    speed = next(line for line in text if line.startswith("decode at 8, tok/s"))
    assert speed.split()[-4:] == ["20.0", "-", "10.0", "40.0"]
    assert "Ember 4bit: round 1: it does not load" in text
    assert "transformers bf16: slowly" in text
    assert any(line.split()[-2:] == ["2.00", "0.50"] for line in text if line.startswith("decode at 8 "))


def test_greedy_tokens_are_compared_with_those_of_transformers(report: Report) -> None:
    ember, llama = greedy_lines(report)
    assert ember.endswith("equals that of transformers after every prompt, and after 2 of 2 decode steps")
    assert llama.endswith("differs after 20, and after 1 of 2 decode steps")


def test_a_report_can_be_read_back(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report
    figures = json.loads(report.to_json())["figures"]
    assert figures["ember-16bit"]["decode at 8, tok/s"] == {"median": 20.0, "best": 30.0}


def test_the_readme_keeps_what_is_not_generated(report: Report) -> None:
    text = "# Ember\n<!-- BENCHMARKS: begin. -->\nby hand\n<!-- BENCHMARKS: end -->\nafter\n"
    once = replace_block(text, "PEERS", readme_lines(report, Take.MEDIAN))
    assert "| decode at 8, tok/s | 20.0 | 10.0 | 40.0 |" in once
    assert once.index("by hand") < once.index("PEERS: begin") < once.index("BENCHMARKS: end") < once.index("after")
    changed = dataclasses.replace(report, engines=report.engines[:1])
    twice = replace_block(once, "PEERS", readme_lines(changed, Take.MEDIAN))
    assert twice.count("PEERS: begin") == 1
    assert "llama" not in twice
    assert replace_block(twice, "PEERS", readme_lines(report, Take.MEDIAN)) == once


def test_a_file_without_the_place_is_left_alone() -> None:
    with pytest.raises(BlockMissingError):
        replace_block("# Ember\n", "PEERS", ["x"])


def test_the_readme_shows_what_schemes_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that could not be measured are told on the terminal only."""
    measured = {
        "scheme": "int8",
        "ratio": 0.53125,
        "ratio_whole": 0.55,
        "kl": 3e-5,
        "top1": 0.996,
        "ppl_delta": -0.0123,
        "recall": 0.8,
        "recalled": 4,
        "asked": 5,
        "decode_tps": 81.25,
        "decode_ratio": 1.5,
        "steady_bytes": 50_000_000,
        "active_bytes": 51_000_000,
        "peak_bytes": 95_000_000,
        "recall_by_context": [{"recalled": 4, "asked": 5, "left_out": 0}],
    }
    result = {
        "rows": [measured, {"scheme": "bnb-nf4", "error": "no such kernel"}],
        "model": "tiny",
        "context": 1000,
        "scored_tokens": 250,
        "decode_context": 4000,
        "recall_contexts": [1100],
        "texts": ["prose-en", "code-ko"],
        "noise_floor_kl": 1e-3,
        "machine": {"cores": 2, "cpu": "a processor", "threads": 2},
    }
    (tmp_path / "found.json").write_text(json.dumps(result), encoding="utf-8")
    readme = tmp_path / "README.md"
    readme.write_text("# Ember\n<!-- BENCHMARKS: end -->\n", encoding="utf-8")
    for _ in range(2):
        assert fidelity.main(["--from", str(tmp_path / "found.json"), "--readme", str(readme)]) == 0
    text = readme.read_text(encoding="utf-8")
    assert text.count("| int8 | 0.531 | 0.550 | 3.0e-05 | 99.6% | -0.012 | 4/5 | 81.2 | 1.50 |") == 1
    assert "bnb-nf4" not in text
    assert "bnb-nf4: no such kernel" in capsys.readouterr().out
