"""The cache lab: what one asks for is measured, what is measured is shown, and nothing else is."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QComboBox, QLabel, QSlider, QWidget

from app.experiments_file import write_tables
from engine.protocol.commands import BenchName, RunBench
from engine.protocol.config import Weights
from engine.protocol.events import (
    BenchFinished,
    BenchProgress,
    Compressed,
    EngineStopped,
    Failed,
    LoadStage,
    ModelLoading,
    Phase,
    PhaseChanged,
)
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import model_info
from tests.ui.lab_bench import NAMES, RESULTS, LabDesk, lab_fixture  # noqa: F401 - pytest finds it here
from ui.lab.experiment_page import ExperimentPage
from ui.lab.figures import milliseconds
from ui.lab.lab_runs import RunState
from ui.lab.loop_steps import LoopSteps
from ui.lab.replies import Replies
from ui.lab.result_files import Shown, shown_of
from ui.lab.run_words import failure_words


def stop(lab: LabDesk, message: str = "The measurement was stopped.", code: str = "bench", **params: str) -> None:
    lab.desk.engine.tell(Failed(lab.asked[-1].request_id, None, code, message, params))
    lab.desk.settle()


def texts(page: ExperimentPage) -> str:
    return "\n".join(label.text() for label in page.findChildren(QLabel) if label.isVisible())


# asking


def test_run_asks_for_the_experiment_at_the_length_chosen(lab: LabDesk) -> None:
    page = lab.window.show_page(BenchName.USE_CACHE)
    page.choose_context(256)
    page.run_button.click()
    asked = lab.asked[-1]
    assert (asked.name, asked.context) == (BenchName.USE_CACHE, 256)
    assert page.command.command.text() == "ember bench use-cache --context 256 --model SmolLM2-135M-Instruct"


def test_the_usual_length_is_chosen_at_first_and_a_loop_has_none(lab: LabDesk) -> None:
    for name in NAMES:
        page = lab.window.show_page(name)
        assert page.chosen_context == page.view.usual
        assert page.context.isVisible() is (page.view.usual is not None)
        assert page.view.usual in (*page.view.contexts, None)
    assert lab.start(BenchName.LOOP).command.command.text() == "ember bench loop --model SmolLM2-135M-Instruct"
    assert lab.asked[-1].context is None


def test_one_runs_at_a_time(lab: LabDesk) -> None:
    lab.start(BenchName.LOOP)
    other = lab.window.show_page(BenchName.MEMORY)
    assert not other.run_button.isEnabled()
    assert other.state.text() == "Another measurement is running; stop it, or wait until it is done."
    other.run_requested.emit(BenchName.MEMORY, None)
    assert len(lab.asked) == 1
    lab.finish()
    assert other.run_button.isEnabled()
    assert not other.state.isVisible()


def test_without_a_model_there_is_a_sentence_in_place_of_a_measurement(open_desk: OpenDesk) -> None:
    desk = open_desk(loaded=False)
    from ui.lab.lab_window import CacheLab

    built = CacheLab(desk.engine, desk.session, desk.library, desk.window.theme, desk.window)
    desk.bridge.event_arrived.connect(built.take)
    built.open()
    assert built.window is not None
    page = built.window.show_page(BenchName.USE_CACHE)
    assert not page.run_button.isEnabled()
    assert page.state.text() == "No model is loaded; choose one at the top of the main window."
    desk.load()
    assert page.run_button.isEnabled()
    desk.engine.tell(ModelLoading("second", LoadStage.WEIGHTS, 0.1))
    desk.settle()
    assert not page.run_button.isEnabled()
    assert page.state.text() == "A model is being loaded; it can be measured when it is there."
    built.close()


def test_a_measurement_waits_for_a_reply_and_says_so(lab: LabDesk) -> None:
    request = lab.desk.send("hello")
    lab.desk.engine.begin(request, "hi")
    lab.desk.settle()
    page = lab.start(BenchName.LOOP)
    assert len(lab.asked) == 1
    assert page.state.text() == "A reply is being written; the measurement begins when it is done."
    lab.desk.engine.finish(request, "hi")
    lab.desk.settle()
    lab.desk.qtbot.waitUntil(lambda: page.state.text() == "Waiting for the engine…")
    lab.progress(2)
    lab.desk.qtbot.waitUntil(lambda: page.state.text() == "Step 2 of 5")


def test_a_compression_that_ended_is_not_taken_for_a_reply(lab: LabDesk) -> None:
    ended = Compressed("chat", "compression", 100, 0.5, "kvzip", 2_000, 1_000, 1.0)
    lab.desk.engine.tell(PhaseChanged("chat", "compression", Phase.COMPRESSING))
    lab.desk.settle()
    assert lab.lab.runs.is_reply_running
    lab.desk.engine.tell(ended)
    lab.desk.settle()
    assert not lab.lab.runs.is_reply_running


@pytest.mark.parametrize("name", ["①", "²", "2024"])
def test_a_models_name_may_be_made_of_digits(name: str) -> None:
    failed = Failed("bench", None, "cannot_measure", "", {"model": name, "why": "no_cache"})
    assert name in failure_words(failed)


# growing, stopping, failing


def test_plots_and_tables_grow_by_the_rows_that_arrive(lab: LabDesk) -> None:
    page = lab.start(BenchName.USE_CACHE)
    lab.progress(2)
    view = page.plots.views[0]
    lab.desk.qtbot.waitUntil(lambda: view.plot is not None and len(view.plot.places) == 2)
    assert page.tables[0].rowCount() == 2
    assert page.progress.isVisible()
    assert (page.progress.value(), page.progress.maximum()) == (2, 5)
    assert page.stop_button.isVisible()
    assert not page.run_button.isVisible()
    assert not page.found_words.isVisible()
    assert view.plot is not None
    assert view.plot.x_range == (0.0, 1024.0), "the axis stands still"
    lab.finish()
    assert len(view.plot.places) == 5
    assert not page.progress.isVisible()
    assert page.found_words.isVisible()
    assert page.run_button.text() == "Measure again"


def test_many_steps_are_drawn_at_most_ten_times_a_second(lab: LabDesk) -> None:
    page = lab.start(BenchName.MEMORY)
    painted = page.plots.views[0].num_paints
    command = lab.asked[-1]
    rows = RESULTS["memory"]["rows"]
    for number in range(300):
        row = rows[number // 50] if number % 50 == 0 else None
        lab.desk.engine.tell(BenchProgress(command.request_id, number, 300, row))
    lab.desk.settle()
    assert page.plots.views[0].num_paints - painted <= 2
    lab.desk.qtbot.waitUntil(lambda: bool(page.tables) and page.tables[0].rowCount() == 6)


def test_a_hidden_lab_draws_nothing(lab: LabDesk) -> None:
    page = lab.start(BenchName.MEMORY)
    lab.window.hide()
    painted = page.plots.views[0].num_paints
    lab.finish()
    assert page.plots.views[0].num_paints == painted
    assert page.tables == []
    lab.window.show()
    lab.desk.settle()
    assert page.tables[0].rowCount() == 7, "and shows all of it when it is seen again"


def test_stop_cancels_and_what_was_measured_stays(lab: LabDesk) -> None:
    page = lab.start(BenchName.USE_CACHE)
    lab.progress(3)
    page.stop_button.click()
    assert lab.desk.engine.cancelled == [lab.asked[-1].request_id]
    assert page.state.text() == "Stopping…"
    assert not page.stop_button.isEnabled()
    stop(lab)
    assert page.state.text().endswith("The measurement was stopped.")
    assert page.tables[0].rowCount() == 3
    assert page.table_button.isEnabled()
    assert page.run_button.isEnabled()
    assert not page.found_words.isVisible(), "a part of a measurement says nothing about the whole"


def test_escape_stops_first_and_then_closes(lab: LabDesk) -> None:
    lab.start(BenchName.USE_CACHE)
    QTest.keyClick(lab.window, Qt.Key.Key_Escape)
    assert lab.desk.engine.cancelled == [lab.asked[-1].request_id]
    assert lab.window.isVisible()
    stop(lab)
    QTest.keyClick(lab.window, Qt.Key.Key_Escape)
    assert not lab.window.isVisible()


def test_closing_cancels_and_forgets(lab: LabDesk) -> None:
    page = lab.measure(BenchName.LOOP)
    lab.start(BenchName.MEMORY)
    lab.window.close()
    assert lab.desk.engine.cancelled == [lab.asked[-1].request_id]
    late = lab.asked[-1].request_id
    lab.lab.open()
    lab.desk.engine.tell(BenchProgress(late, 1, 7, RESULTS["memory"]["rows"][0]))
    lab.desk.engine.tell(Failed(late, None, "bench", "The measurement was stopped.", {}))
    lab.desk.settle()
    assert lab.lab.runs.measurement(BenchName.MEMORY) is None, "what comes late belongs to nobody"
    lab.window.show_page(BenchName.LOOP)
    assert page.run_button.text() == "Measure"
    assert not page.table_button.isEnabled()


@pytest.mark.parametrize(
    ("code", "message", "params", "words"),
    [
        (
            "context_overflow",
            "--context must be between 16 and 500 for tiny.",
            {"prompt_tokens": "1024", "context_length": "5120", "least": "16", "most": "5000"},
            "This length does not fit: it can be 16 to 5,000 tokens here; choose another length.",
        ),
        ("out_of_memory", "Memory ran out.", {}, "Memory ran out while measuring; choose a shorter length, or close"),
        (
            "cannot_measure",
            "tiny reads 64 tokens, too few for this experiment; choose another model.",
            {"model": "tiny", "why": "short_context", "context_length": "64"},
            "tiny reads 64 tokens, too few for this; choose another model.",
        ),
        (
            "cannot_measure",
            "tiny keeps no cache.",
            {"model": "tiny", "why": "something new"},
            "This cannot be measured with the model that is loaded; choose another",
        ),
        (
            "no_scratch",
            "Ember cannot write to /data/kv (No space left on device), which this measurement needs.",
            {"path": "/data/kv", "reason": "No space left on device"},
            "Ember cannot write to /data/kv (No space left on device), which this measurement needs; free some space,",
        ),
        ("bug", "", {}, "Something went wrong in Ember that should not; it is in the log. Measure again."),
    ],
)
def test_a_failure_is_one_sentence(lab: LabDesk, code: str, message: str, params: dict[str, str], words: str) -> None:
    page = lab.start(BenchName.KVZIP)
    stop(lab, message, code, **params)
    assert page.state.text().startswith(words)
    assert page.state.text().endswith(".")
    assert page.run_button.isEnabled()
    assert not page.progress.isVisible()


def test_results_stay_while_one_looks_at_other_pages_and_go_with_their_model(lab: LabDesk) -> None:
    page = lab.measure(BenchName.HEADS)
    lab.measure(BenchName.LOOP)
    lab.window.show_calculator()
    lab.window.show_page(BenchName.HEADS)
    assert page.tables[0].rowCount() == 3
    lab.desk.engine.load("again")
    lab.desk.settle()
    assert page.tables[0].rowCount() == 3, "the same model is there"
    lab.desk.engine.load("other", model_info(weights=Weights.BITS_4))
    lab.desk.settle()
    assert page.run_button.text() == "Measure"
    assert not page.tables[0].isVisible()


def test_a_measurement_of_a_model_that_is_replaced_is_cancelled(lab: LabDesk) -> None:
    lab.start(BenchName.HEADS)
    lab.progress(1)
    page = lab.window.show_page(BenchName.HEADS)
    lab.desk.engine.load("other", model_info("another"))
    lab.desk.settle()
    assert lab.desk.engine.cancelled == [lab.asked[-1].request_id]
    assert lab.lab.runs.running is None
    assert page.state.text() == "The model was changed while measuring; measure again with the new one."
    assert not page.table_button.isEnabled(), "its rows are another model's"
    assert page.run_button.isEnabled()
    lab.measure(BenchName.HEADS)
    assert "changed" not in page.state.text()


def test_a_measurement_that_ends_with_the_engine_is_one_that_was_stopped(lab: LabDesk) -> None:
    page = lab.start(BenchName.MEMORY)
    lab.progress(2)
    lab.desk.engine.tell(EngineStopped())
    lab.desk.settle()
    run = lab.lab.runs.measurement(BenchName.MEMORY)
    assert run is not None
    assert run.state is RunState.STOPPED
    assert lab.lab.runs.running is None
    assert not page.progress.isVisible()
    assert not page.stop_button.isVisible()
    assert page.tables[0].rowCount() == 2, "what there is can still be saved"


def test_one_that_is_cancelled_elsewhere_was_stopped_and_did_not_fail(lab: LabDesk) -> None:
    page = lab.start(BenchName.LOOP)
    stop(lab)
    assert page.state.text() == "The measurement was stopped."


def test_only_what_is_the_labs_own_is_kept_from_others(lab: LabDesk) -> None:
    lab.start(BenchName.LOOP)
    request_id = lab.asked[-1].request_id
    assert lab.lab.take(BenchProgress(request_id, 0, 1))
    assert not lab.lab.take(Failed("other", None, "bench", "", {}))
    assert not lab.lab.take(BenchFinished("other", {}))
    assert lab.lab.take(BenchFinished(request_id, RESULTS["loop"]))


# what is shown


@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_page_shows_its_result_in_words_plots_and_tables(lab: LabDesk, language: str) -> None:
    lab.desk.window.language.set_mode(language)
    for name in NAMES:
        shows_its_result(lab.measure(name), language)
    lab.desk.window.language.set_mode("en")


def shows_its_result(page: ExperimentPage, language: str) -> None:
    assert page.plots.views
    assert all(view.plot is not None and not view.plot.is_empty for view in page.plots.views)
    for view in page.plots.views:
        assert view.accessibleName()
        assert len(view.accessibleDescription()) > len(view.accessibleName())
    assert page.tables[0].rowCount() >= 3
    shown = texts(page) + "".join(
        page.tables[0].item(row, column).text()
        for row in range(page.tables[0].rowCount())
        for column in range(page.tables[0].columnCount())
    )
    assert not re.search(r"\b(nan|inf|None)\b|{", shown), shown
    assert len(page.found_words.text()) > 40
    has_hangul = bool(re.search("[가-힣]", page.found_words.text() + page.words.text()))
    assert has_hangul is (language == "ko")


def test_the_numbers_of_cache_on_and_off_are_those_of_the_engine(lab: LabDesk) -> None:
    page = lab.measure(BenchName.USE_CACHE)
    result = RESULTS["use-cache"]
    plot = page.plots.views[0].plot
    assert plot is not None
    assert plot.xs == tuple(row["length"] for row in result["rows"])
    by_name = {series.name: series for series in plot.series}
    assert by_name["without a cache"].values == tuple(row["without_ms"] for row in result["rows"])
    assert by_name["with the cache"].values == tuple(row["with_ms"] for row in result["rows"])
    assert by_name["as replies run"].values == tuple(row["as_replies_run_ms"] for row in result["rows"])
    fit = result["fits"]["without"]
    assert by_name["fit, without"].values[-1] == fit["intercept"] + fit["slope"] * 128
    assert plot.note == f"{result['factor']:.2f}×"
    assert f"{result['factor']:.2f}×" in page.found_words.text()
    rows = range(page.tables[0].rowCount())
    table = {page.tables[0].item(row, 0).text(): page.tables[0].item(row, 2).text() for row in rows}
    bare = {page.tables[0].item(row, 0).text(): page.tables[0].item(row, 1).text() for row in rows}
    assert table["Tokens read for a new one"] == "1"
    assert table["Memory of the cache"] == "2.9 MB"
    assert table["Growth with length, a fit"].endswith(f"(r² {result['fits']['with']['r2']:.3f})")
    assert bare["Growth with length, a fit"] == f"+{fit['slope']:.2f} ms a token (r² {fit['r2']:.3f})"
    assert bare["From 16 to 128 tokens"] == f"grows {fit['growth']:.2f}×"
    assert "From 16 to 128 tokens, 8× the length" in page.found_words.text()


def test_a_time_that_hardly_grows_with_the_length_is_called_nearly_flat(lab: LabDesk) -> None:
    page = lab.start(BenchName.USE_CACHE)
    result = json.loads(json.dumps(RESULTS["use-cache"]))
    for growth, words in ((1.2, "nearly flat, 1.20×"), (0.97, "nearly flat, 0.970×"), (1.8, "grows 1.80×")):
        result["fits"]["with"]["growth"] = growth
        lab.desk.engine.tell(BenchFinished(lab.asked[-1].request_id, result))
        lab.desk.settle()
        assert page.tables[0].item(page.tables[0].rowCount() - 1, 2).text() == words
        lab.start(BenchName.USE_CACHE)


def test_numbers_that_are_missing_are_dashes(lab: LabDesk) -> None:
    page = lab.start(BenchName.USE_CACHE)
    command = lab.asked[-1]
    result = json.loads(json.dumps(RESULTS["use-cache"]))
    for row in result["rows"]:
        row |= {"as_replies_run_ms": None, "factor": None, "without_ms": None}
    result |= {"factor": None, "fits": {"without": None, "with": None, "as_replies_run": None}}
    for entry in result["table"]:
        entry["without"] = None
    lab.desk.engine.tell(BenchFinished(command.request_id, result))
    lab.desk.settle()
    for number in range(page.tables[0].rowCount()):
        assert page.tables[0].item(number, 1).text() == "–"
    assert page.tables[1].item(0, 3).text() == "–"
    plot = page.plots.views[0].plot
    assert plot is not None
    assert [series.name for series in plot.series] == ["without a cache", "with the cache"]
    assert not re.search(r"\b(nan|inf|None)\b", texts(page) + plot.words())
    page.plots.grab()  # it can be drawn


def test_a_way_that_does_not_run_here_says_why_and_has_no_bar(lab: LabDesk) -> None:
    page = lab.measure(BenchName.ATTENTION)
    for phase, table in zip(("prefill", "decode"), page.tables, strict=True):
        rows = [row for row in RESULTS["attention"]["rows"] if row["phase"] == phase]
        assert table.rowCount() == len({row["backend"] for row in rows}), "a line a way"
        last = table.columnCount() - 1
        notes = {table.item(row, 0).text(): table.item(row, last).text() for row in range(table.rowCount())}
        assert notes["cuDNN"] == notes["memory-efficient"] == "needs an NVIDIA card"
        times = [row["ms"] for row in rows if row["backend"] == "ember"]
        assert [table.item(5, column).text() for column in range(1, last - 1)] == [milliseconds(one) for one in times]
        assert {table.item(3, column).text() for column in range(1, last)} == {"–"}
    plot = page.plots.views[0].plot
    assert plot is not None
    assert "cuDNN" not in plot.places


def test_the_loop_is_stepped_through(lab: LabDesk) -> None:
    page = lab.measure(BenchName.LOOP)
    rows = RESULTS["loop"]["rows"]
    steps = page.extra
    assert isinstance(steps, LoopSteps)
    assert steps.heading.text() == "Step 5 of 5"
    assert not steps.forward.isEnabled()
    for _ in range(4):
        steps.back.click()
    assert steps.heading.text() == "Step 1 of 5"
    assert not steps.back.isEnabled()
    assert "Read 42 tokens" in steps.about.text()
    assert [line.split(":")[0] for line in steps.best.lines()] == [
        one["text"].replace(" ", "·") for one in rows[0]["best"]
    ]
    steps.slider.setFocus()
    QTest.keyClick(steps.slider, Qt.Key.Key_Right)
    assert steps.heading.text() == "Step 2 of 5"
    assert "Read 1 token in" in steps.about.text()
    assert "the cache grew by 23 kB to 43 tokens" in steps.about.text()
    assert page.found_words.text().startswith("Asked was: “What does a lighthouse keeper do?")


def test_two_replies_stand_side_by_side_with_their_difference_marked(lab: LabDesk) -> None:
    page = lab.measure(BenchName.PRECISIONS)
    replies = page.extra
    assert isinstance(replies, Replies)
    assert replies.choice.currentText() == "bnb-nf4", "the first that differs"
    row = next(row for row in RESULTS["precisions"]["rows"] if row["scheme"] == "bnb-nf4")
    assert replies.where.text() == f"They part at token {row['first_difference'] + 1}."
    assert "<span" in replies.other.text()
    assert row["same_text"] in replies.other.text()
    replies.choice.setCurrentText("int8")
    assert replies.where.text() == "Both replies are the same."
    assert "<span" not in replies.other.text()


# files


def shown(lab: LabDesk, name: BenchName) -> tuple[ExperimentPage, Shown]:
    page = lab.measure(name)
    run = lab.lab.runs.measurement(name)
    assert run is not None
    return page, shown_of(page.view, run)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_the_saved_table_has_the_engines_numbers_and_what_they_depend_on(lab: LabDesk, tmp_path: Path) -> None:
    page = lab.window.show_page(BenchName.USE_CACHE)
    page.choose_context(128)
    page, saved = shown(lab, BenchName.USE_CACHE)
    result = RESULTS["use-cache"]
    lab.window.files.save_table_to(tmp_path / "table.csv", saved)
    rows = read(tmp_path / "table.csv")
    for name, value in result["rows"][0].items():
        assert [float(row[name]) for row in rows] == [one[name] for one in result["rows"]], (name, value)
    head = {name: {row[name] for row in rows} for name in rows[0].keys() - result["rows"][0].keys()}
    measured_at = head.pop("measured_at")
    assert {datetime.fromisoformat(one).date() for one in measured_at} == {datetime.now().astimezone().date()}
    assert head == {
        "experiment": {"use-cache"},
        "model": {"SmolLM2-135M-Instruct"},
        "weights": {"16bit"},
        "dtype": {"bfloat16"},
        "device": {"cpu"},
        "threads": {"1"},
        "context": {"128"},
        "command": {"ember bench use-cache --context 128 --model SmolLM2-135M-Instruct"},
        "is_whole": {"True"},
    }
    differences = {row["what"]: row for row in read(tmp_path / "table-differences.csv")}
    for one in result["table"]:
        assert float(differences[one["what"]]["without"]) == one["without"]
        assert float(differences[one["what"]]["with"]) == one["with"]
    for name in ("slope", "intercept", "r2", "spread", "growth"):
        for way in ("without", "with", "as_replies_run"):
            assert float(differences[f"fit_{name}"][way]) == result["fits"][way][name]
    assert page.notice.words.text() == (f"Saved as {tmp_path / 'table.csv'}, and beside it table-differences.csv")


def test_every_page_is_saved_as_it_is_shown(lab: LabDesk, tmp_path: Path) -> None:
    """The second tables too: the five best of a loop, totals, and the facts that were found."""
    for name in NAMES:
        lab.window.files.save_table_to(tmp_path / f"{name}.csv", shown(lab, name)[1])
        rows, expected = read(tmp_path / f"{name}.csv"), RESULTS[name]["rows"]
        assert len(rows) == len(expected)
        for row, one in zip(rows, expected, strict=True):
            for key, value in one.items():
                if key != "best":
                    assert row[key] == ("" if value is None else as_text(value)), (name, key)
    best = read(tmp_path / "loop-best.csv")
    assert [row["text"] for row in best[:5]] == [one["text"] for one in RESULTS["loop"]["rows"][0]["best"]]
    assert [row["rank"] for row in best[:5]] == ["1", "2", "3", "4", "5"]
    totals = {row["what"]: row for row in read(tmp_path / "shared-prefix-totals.csv")}
    expected = RESULTS["shared-prefix"]["totals"]
    assert {what: (int(row["apart"]), int(row["shared"])) for what, row in totals.items() if "_s" not in what} == {
        what: (expected["apart"][what], expected["shared"][what]) for what in ("tokens_fed", "memory_bytes")
    }
    facts = read(tmp_path / "kvzip-facts.csv")
    assert [row["fact"] for row in facts] == RESULTS["kvzip"]["facts"]
    last = RESULTS["kvzip"]["rows"][-1]
    assert [row[f"kept_{last['keep_percent']}"] for row in facts] == [str(one) for one in last["facts_recalled"]]


def as_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def test_a_part_of_a_measurement_is_saved_as_one(lab: LabDesk, tmp_path: Path) -> None:
    lab.start(BenchName.USE_CACHE)
    lab.progress(2)
    lab.lab.stop()
    stop(lab)
    run = lab.lab.runs.measurement(BenchName.USE_CACHE)
    assert run is not None
    lab.window.files.save_table_to(tmp_path / "table.csv", shown_of(lab.window.views[BenchName.USE_CACHE], run))
    rows = read(tmp_path / "table.csv")
    assert [row["is_whole"] for row in rows] == ["False", "False"]
    assert {row["model"] for row in rows} == {"SmolLM2-135M-Instruct"}
    assert [path.name for path in tmp_path.glob("*.csv")] == ["table.csv"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_saved_picture_is_large_and_has_the_plots(lab: LabDesk, tmp_path: Path, theme: str) -> None:
    lab.desk.window.theme.set_mode(theme)
    saved = shown(lab, BenchName.PREFILL_DECODE)[1]
    assert saved.about.startswith("Ember · ")
    assert "SmolLM2-135M-Instruct · 16bit · bfloat16 · cpu · 1 thread · " in saved.about
    lab.window.files.save_picture_to(tmp_path / "plot.png", saved)
    image = QImage(str(tmp_path / "plot.png"))
    assert image.width() == 1920
    seen = np.frombuffer(image.convertToFormat(QImage.Format.Format_RGB32).constBits(), np.uint32)
    colours = {QColor(int(one)).name() for one in np.unique(seen.reshape(image.height(), -1)[::5, ::5])}
    tokens = lab.desk.window.theme.tokens
    assert {tokens.surface.lower(), tokens.precision["16bit"].lower()} <= colours


def test_a_file_that_cannot_be_written_is_one_sentence(lab: LabDesk, tmp_path: Path) -> None:
    page, saved = shown(lab, BenchName.LOOP)
    for save in (lab.window.files.save_table_to, lab.window.files.save_picture_to):
        save(tmp_path / "nowhere" / "file", saved)
        assert page.notice.words.text() == (
            f"{tmp_path / 'nowhere' / 'file'} cannot be written; choose another place for it."
        )
        assert list(tmp_path.glob("*nowhere*")) == []


def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(lab: LabDesk, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    page, saved = shown(lab, BenchName.LOOP)
    (tmp_path / "file").write_text("from yesterday")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for save in (lab.window.files.save_table_to, lab.window.files.save_picture_to):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            save(tmp_path / "file", saved)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert page.notice.words.text() == (
            f"No space is left for {tmp_path / 'file'}; free some or choose another place."
        )
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file"]
        assert (tmp_path / "file").read_text() == "from yesterday"


def test_what_is_more_than_ascii_is_marked_so_that_spreadsheets_read_it(tmp_path: Path) -> None:
    write_tables(tmp_path / "a.csv", {"": [{"reply": "안녕"}]})
    assert (tmp_path / "a.csv").read_bytes() == b"\xef\xbb\xbfreply\r\n" + "안녕".encode() + b"\r\n"
    write_tables(tmp_path / "a.csv", {"": [{"reply": "hello", "count": None}]})
    assert (tmp_path / "a.csv").read_bytes() == b"reply,count\r\nhello,\r\n"


# looks, keyboard, screen readers


def test_the_language_changes_with_results_shown(lab: LabDesk) -> None:
    page = lab.measure(BenchName.MEMORY)
    lab.desk.window.language.set_mode("ko")
    lab.desk.settle()
    assert page.title.text() == "블록과 낭비"
    assert lab.window.list.item(0).text() == "캐시 켜기와 끄기"
    assert page.tables[0].horizontalHeaderItem(0).text() == "배치"
    plot = page.plots.views[0].plot
    assert plot is not None
    assert plot.title == "잡은 메모리"
    lab.desk.window.language.set_mode("en")
    lab.desk.settle()
    assert page.title.text() == "Blocks and waste"


def test_a_small_window_scrolls_up_and_down_only(lab: LabDesk) -> None:
    lab.window.resize(600, 340)
    for name in NAMES:
        page = lab.measure(name)
        lab.desk.settle()
        is_not_cut_off(page)


def is_not_cut_off(page: ExperimentPage) -> None:
    content = page.widget()
    assert content is not None
    assert content.width() <= page.viewport().width()
    assert page.verticalScrollBar().maximum() > 0
    for part in content.findChildren(QWidget):
        if part.isVisible() and isinstance(part, QAbstractButton | QComboBox | QSlider):
            right = part.mapTo(content, part.rect().topRight()).x()
            assert right <= page.viewport().width(), f"{part} is cut off"


def test_everything_that_takes_the_keyboard_has_a_name_and_its_place(lab: LabDesk) -> None:
    lab.window.activateWindow()
    lab.desk.qtbot.waitActive(lab.window)
    for name in NAMES:
        walk_by_tab(lab, lab.measure(name))


def walk_by_tab(lab: LabDesk, page: ExperimentPage) -> None:
    lab.window.list.setFocus()
    seen: list[QWidget] = []
    for _ in range(40):
        focus = lab.window.focusWidget()
        assert focus is not None
        if focus in seen:
            break
        seen.append(focus)
        assert focus.accessibleName() or getattr(focus, "text", str)(), focus
        QTest.keyClick(focus, Qt.Key.Key_Tab)
    assert seen[0] is lab.window.list
    assert {page.run_button, page.picture_button, page.table_button, page.tables[0], page.command.copy_button} <= {
        *seen
    }
    heights = [one.mapTo(page.widget(), one.rect().center()).y() for one in seen[1:]]
    assert all(before <= after + 8 for before, after in pairwise(heights)), "from top to bottom"


def test_the_list_shows_where_the_keyboard_is_but_after_a_click(lab: LabDesk) -> None:
    pages = lab.window.list
    lab.window.activateWindow()
    lab.desk.qtbot.waitActive(lab.window)
    pages.setFocus()
    item = pages.visualItemRect(pages.item(1))

    def accent() -> int:
        """Of the second item's frame."""
        lab.desk.settle()
        image = pages.viewport().grab(item).toImage().convertToFormat(QImage.Format.Format_RGB32)
        seen = np.frombuffer(image.constBits(), np.uint32)
        return int((seen == np.uint32(QColor(lab.desk.window.theme.tokens.accent).rgb())).sum())

    QTest.mouseClick(pages.viewport(), Qt.MouseButton.LeftButton, pos=item.center())
    assert pages.currentRow() == 1
    assert accent() == 0, "a click needs no frame"
    QTest.keyClick(pages, Qt.Key.Key_Down)
    QTest.keyClick(pages, Qt.Key.Key_Up)
    assert accent() > item.width()
    lab.window.page.setFocus()
    QTest.keyClick(pages, Qt.Key.Key_Tab)
    assert accent() == 0, "it goes with the keyboard"
    pages.setFocus(Qt.FocusReason.TabFocusReason)
    assert accent() > item.width()


def test_the_focus_stays_on_the_button_that_takes_the_place(lab: LabDesk) -> None:
    page = lab.window.show_page(BenchName.LOOP)
    lab.window.activateWindow()
    lab.desk.qtbot.waitActive(lab.window)
    page.run_button.setFocus()
    QTest.keyClick(page.run_button, Qt.Key.Key_Space)
    assert page.stop_button.hasFocus()
    lab.finish()
    assert page.run_button.hasFocus()


def test_the_table_is_copied_as_spreadsheets_take_it(lab: LabDesk) -> None:
    from PySide6.QtWidgets import QApplication

    page = lab.measure(BenchName.HEADS)
    table = page.tables[0]
    table.selectRow(0)
    table.selectAll()
    QTest.keyClick(table, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    lines = QApplication.clipboard().text().split("\n")
    assert len(lines) == 3
    assert lines[0].split("\t")[:2] == ["MHA", "8"]


def test_a_request_is_a_plain_measurement(lab: LabDesk) -> None:
    lab.start(BenchName.HEADS)
    assert lab.asked == [RunBench(lab.asked[0].request_id, BenchName.HEADS, 4096)]


def test_lengths_that_the_model_does_not_read_cannot_be_chosen(lab: LabDesk) -> None:
    lab.desk.engine.load("short", replace(model_info("short"), context_length=600))
    lab.desk.settle()
    page = lab.window.show_page(BenchName.USE_CACHE)
    assert page.chosen_context == 256, "512 and what is measured beyond it are more than 600"
    lab.start(BenchName.USE_CACHE)
    assert lab.asked[-1].context == 256
    lab.finish()
    assert lab.window.show_page(BenchName.HEADS).chosen_context == 4096, "its models are its own"


def test_others_see_what_runs_and_can_stop_it(lab: LabDesk) -> None:
    assert lab.lab.runs.running is None
    lab.start(BenchName.LOOP)
    assert lab.lab.runs.running is not None
    lab.lab.stop()
    stop(lab)
    assert lab.lab.runs.running is None


def test_opening_again_shows_the_same_window(desk: Desk, lab: LabDesk) -> None:
    lab.measure(BenchName.LOOP)
    first = lab.window
    lab.lab.open()
    assert lab.window is first
    assert lab.lab.runs.measurement(BenchName.LOOP) is not None
