"""The cache lab: what one asks for is measured, what is measured is shown, and nothing else is."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QComboBox, QLabel, QSlider, QWidget

from engine.protocol.commands import BenchName, RunBench
from engine.protocol.config import Weights
from engine.protocol.events import BenchFinished, BenchProgress, Failed, LoadStage, ModelLoading
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import model_info
from tests.ui.lab_bench import NAMES, RESULTS, LabDesk, lab_fixture  # noqa: F401 - pytest finds it here
from ui.lab.experiment_page import ExperimentPage
from ui.lab.loop_steps import LoopSteps
from ui.lab.replies import Replies


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
    assert page.command.command.text() == "ember bench use-cache --context 256 --json"


def test_the_usual_length_is_chosen_at_first_and_a_loop_has_none(lab: LabDesk) -> None:
    for name in NAMES:
        page = lab.window.show_page(name)
        assert page.chosen_context == page.view.usual
        assert page.context.isVisible() is (page.view.usual is not None)
        assert page.view.usual in (*page.view.contexts, None)
    assert lab.start(BenchName.LOOP).command.command.text() == "ember bench loop --json"
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
            {"prompt_tokens": "1024", "context_length": "512"},
            "This length does not fit: the model reads 512 tokens, and the measurement needs some of them; choose "
            "another length.",
        ),
        ("out_of_memory", "Memory ran out.", {}, "Memory ran out while measuring; choose a shorter length, or close"),
        ("bench", "tiny keeps no cache.", {}, "This cannot be measured with the model that is loaded; choose another"),
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
    lab.desk.engine.load("other", model_info("another"))
    lab.desk.settle()
    assert lab.desk.engine.cancelled == [lab.asked[-1].request_id]
    assert lab.lab.runs.running is None


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
    table = {page.tables[0].item(row, 0).text(): page.tables[0].item(row, 2).text() for row in range(7)}
    assert table["Tokens read for a new one"] == "1"
    assert table["Memory of the cache"] == "2.9 MB"
    assert table["Growth with length"].endswith(f"(r² {result['fits']['with']['r2']:.3f})")


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
    table = page.tables[0]
    notes = {table.item(row, 0).text(): table.item(row, 6).text() for row in range(table.rowCount())}
    assert notes["cuDNN"] == "not on this machine"
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
    assert "43 tokens" in steps.about.text()


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


def test_the_saved_table_has_the_engines_numbers(lab: LabDesk, tmp_path: Path) -> None:
    page = lab.measure(BenchName.USE_CACHE)
    run = lab.lab.runs.measurement(BenchName.USE_CACHE)
    assert run is not None
    lab.window.files.save_table_to(tmp_path / "table.csv", run)
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["without_ms"]) for row in rows] == [one["without_ms"] for one in RESULTS["use-cache"]["rows"]]
    assert page.notice.words.text() == f"Saved as {tmp_path / 'table.csv'}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_saved_picture_is_large_and_has_the_plots(lab: LabDesk, tmp_path: Path, theme: str) -> None:
    lab.desk.window.theme.set_mode(theme)
    page = lab.measure(BenchName.PREFILL_DECODE)
    run = lab.lab.runs.measurement(BenchName.PREFILL_DECODE)
    assert run is not None
    lab.window.files.save_picture_to(tmp_path / "plot.png", page.view, run)
    image = QImage(str(tmp_path / "plot.png"))
    assert image.width() == 1920
    colours = {image.pixelColor(x, y).name() for x in range(0, image.width(), 7) for y in range(0, image.height(), 7)}
    tokens = lab.desk.window.theme.tokens
    assert {tokens.surface.lower(), tokens.precision["16bit"].lower()} <= colours


def test_a_file_that_cannot_be_written_is_one_sentence(lab: LabDesk, tmp_path: Path) -> None:
    page = lab.measure(BenchName.LOOP)
    run = lab.lab.runs.measurement(BenchName.LOOP)
    assert run is not None
    for save in (
        lambda path: lab.window.files.save_table_to(path, run),
        lambda path: lab.window.files.save_picture_to(path, page.view, run),
    ):
        save(tmp_path / "nowhere" / "file")
        assert page.notice.words.text() == (
            f"{tmp_path / 'nowhere' / 'file'} cannot be written; choose another place for it."
        )
        assert list(tmp_path.glob("*nowhere*")) == []


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
    assert page.chosen_context == 512
    lab.start(BenchName.USE_CACHE)
    assert lab.asked[-1].context == 512
    lab.finish()
    assert lab.window.show_page(BenchName.HEADS).chosen_context == 4096, "its models are its own"


def test_others_can_ask_whether_it_is_at_work_and_stop_it(lab: LabDesk) -> None:
    assert not lab.lab.is_at_work
    lab.start(BenchName.LOOP)
    assert lab.lab.is_at_work
    lab.lab.stop()
    stop(lab)
    assert not lab.lab.is_at_work


def test_opening_again_shows_the_same_window(desk: Desk, lab: LabDesk) -> None:
    lab.measure(BenchName.LOOP)
    first = lab.window
    lab.lab.open()
    assert lab.window is first
    assert lab.lab.runs.measurement(BenchName.LOOP) is not None
