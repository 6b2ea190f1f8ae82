"""The calculator of the lab: known models to the byte, models on disk, and refusals in a sentence."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.machine_memory import MachineMemory
from app.model_library import ModelLibrary
from engine.protocol.events import ModelInfo
from ui.lab.calculator_page import CalculatorPage
from ui.lab.figures import binary_size
from ui.lab.result_files import ResultFiles
from ui.theme import Theme

GIB = 2**30
Open = Callable[..., CalculatorPage]


@pytest.fixture
def library(tmp_path: Path) -> ModelLibrary:
    return ModelLibrary(tmp_path / "resources", tmp_path / "data")


@pytest.fixture
def open_page(qtbot: QtBot, theme: Theme, library: ModelLibrary) -> Iterator[Open]:
    pages: list[CalculatorPage] = []
    window = QWidget()

    def opened(loaded: ModelInfo | None = None) -> CalculatorPage:
        files = ResultFiles(theme, window)
        page = CalculatorPage(library, theme, lambda: loaded, files, lambda: MachineMemory(3 * GIB, 8 * GIB))
        pages.append(page)
        page.resize(900, 700)
        page.show()
        return page

    yield opened
    for page in pages:
        page.close()
        page.deleteLater()
    window.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)  # a change of theme asks every widget there is


@pytest.fixture
def page(open_page: Open) -> CalculatorPage:
    return open_page()


def type_in(page: CalculatorPage, **numbers: object) -> None:
    for name, number in numbers.items():
        page.form.fields[name].setText(str(number))


def add_model(library: ModelLibrary, folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    library.add(str(folder))
    return folder


def cells(page: CalculatorPage, number: int) -> list[list[str]]:
    table = page.tables[number]
    return [
        [table.item(row, column).text() for column in range(table.columnCount())] for row in range(table.rowCount())
    ]


@pytest.mark.parametrize(
    ("numbers", "total", "token", "kind"),
    [
        (
            {"layers": 32, "heads": 32, "kv_heads": 32, "head_dim": 128, "tokens": 2048},
            "1.00 GiB for 2,048 tokens",
            "524,288 B a token · 1,073,741,824 B in all",
            "MHA: each of the 32 query heads keeps keys and values of its own.",
        ),
        (
            {"layers": 80, "heads": 64, "kv_heads": 8, "head_dim": 128, "tokens": "131,072"},
            "40.00 GiB for 131,072 tokens",
            "327,680 B a token",
            "GQA: 64 query heads share 8 KV heads, 8 to one.",
        ),
        (
            {"layers": 32, "heads": 71, "kv_heads": 1, "head_dim": 64, "tokens": 1},
            "8.00 KiB for 1 token",
            "8,192 B a token",
            "MQA: all query heads share one KV head.",
        ),
    ],
    ids=["llama-2-7b", "70b", "falcon-7b"],
)
def test_known_models_can_be_typed_in(
    page: CalculatorPage, numbers: dict[str, object], total: str, token: str, kind: str
) -> None:
    type_in(page, **numbers)
    assert page.total.text() == total
    assert page.detail.text().startswith(token)
    assert page.detail.text().splitlines()[1] == kind
    typed = {name: str(value).replace(",", "") for name, value in numbers.items()}
    assert page.command.command.text() == (
        f"ember size --layers {typed['layers']} --heads {typed['heads']} --kv-heads {typed['kv_heads']}"
        f" --head-dim {typed['head_dim']} --tokens {typed['tokens']} --precision 16bit"
    )


def test_what_fits_is_computed_from_the_free_memory(page: CalculatorPage) -> None:
    type_in(page, layers=32, heads="", kv_heads=32, head_dim=128, tokens=2048)
    assert page.fits.text() == "3.00 GiB of 8.00 GiB are free on this machine. The weights are not taken off."
    by_name = {row[0]: row for row in cells(page, 0)}
    assert by_name["16bit"] == ["16bit", "524,288 B", "1.00 GiB", "100 %", "6,144"]
    assert by_name["float32"][1:4] == ["1,048,576 B", "2.00 GiB", "200 %"]
    assert by_name["int8"][1].startswith("≈ ")
    assert not page.tables[1].isVisible(), "without query heads nothing is compared"


def test_precision_and_batch_count(page: CalculatorPage) -> None:
    type_in(page, layers=30, heads=9, kv_heads=3, head_dim=64, tokens=1000, batch=7)
    page.form.precision.setCurrentIndex(page.form.precision.findText("int8"))
    assert page.answer is not None
    assert page.answer.asked.total_bytes == 7 * (960 * 12_240 + 40 * 23_040)
    assert page.detail.text().startswith("12,240 B a token on average")
    assert "7 chats of 1,000 tokens" in page.total.text()
    assert page.command.command.text().endswith("--tokens 1000 --batch 7 --precision int8")


def test_heads_are_compared_at_the_same_width(page: CalculatorPage) -> None:
    type_in(page, layers=80, heads=64, kv_heads=8, head_dim=128, tokens=1)
    assert [[row[0], row[1], row[3]] for row in cells(page, 1)] == [
        ["MHA", "64", "64×"],
        ["GQA", "8", "8×"],
        ["MQA", "1", "1×"],
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("layers", "", "Layers: give a whole number from 1 to 10,000."),
        ("layers", "0", "Layers: give a whole number from 1 to 10,000."),
        ("kv_heads", "-3", "KV heads: give a whole number from 1 to 65,536."),
        ("head_dim", "1.5", "Numbers of a head: give a whole number from 1 to 65,536."),
        ("tokens", "many", "Tokens of a chat: give a whole number from 1 to 1,000,000,000,000."),
        ("tokens", "9" * 20, "Tokens of a chat: give a whole number from 1 to 1,000,000,000,000."),
        ("batch", "²", "Chats at once: give a whole number from 1 to 1,000,000."),
        ("batch", "삼", "Chats at once: give a whole number from 1 to 1,000,000."),
        ("layers", "３２", "Layers: give a whole number from 1 to 10,000."),
        ("tokens", "1e12", "Tokens of a chat: give a whole number from 1 to 1,000,000,000,000."),
        ("head_dim", "", "Numbers of a head: give a whole number from 1 to 65,536."),
        ("heads", "7", "7 query heads cannot share 8 KV heads evenly; give a multiple of them."),
    ],
)
def test_wrong_input_is_one_sentence_and_nothing_is_computed(
    page: CalculatorPage, name: str, text: str, words: str
) -> None:
    type_in(page, **{name: text})
    assert page.total.text() == words
    assert page.answer is None
    for part in (page.detail, page.fits, page.plots, page.command, *page.tables):
        assert not part.isVisible()
    page.form.fields[name].setText("32")
    assert page.answer is not None
    assert page.plots.isVisible()


def test_a_model_on_disk_fills_the_numbers_in_and_its_layers_are_told_apart(
    library: ModelLibrary, open_page: Open, tmp_path: Path
) -> None:
    config = {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "sliding_window": 512,
        "num_kv_shared_layers": 1,
        "max_position_embeddings": 10_000,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    }
    add_model(library, tmp_path / "mixed", config)
    page = open_page()
    page.form.model.setCurrentIndex(page.form.model.findText("mixed"))
    one_layer = 2 * 2 * 256 * 2
    assert page.answer is not None
    assert page.answer.asked.total_bytes == (2 * 512 + 10_000) * one_layer
    assert [field.text() for field in page.form.fields.values()] == ["3", "8", "2", "256", "10000", "1"]
    assert not page.form.fields["layers"].isEnabled()
    assert page.form.fields["tokens"].isEnabled()
    assert [row[0] for row in cells(page, 1)] == ["sliding, 512 tokens", "full", "reads another layer's"]
    assert [row[3] for row in cells(page, 1)] == ["512", "10,000", "–"]
    assert "2,048 B for a further token once the windows are full" in page.detail.text()
    assert page.command.command.text() == "ember size --model mixed --tokens 10000 --precision 16bit"
    page.form.model.setCurrentIndex(0)
    assert page.form.fields["layers"].isEnabled()


def test_a_model_that_does_not_tell_is_one_sentence(library: ModelLibrary, open_page: Open, tmp_path: Path) -> None:
    add_model(library, tmp_path / "rwkv", {"model_type": "rwkv", "num_hidden_layers": 2})
    page = open_page()
    page.form.model.setCurrentIndex(page.form.model.findText("rwkv"))
    assert page.total.text() == (
        "The files of this model do not tell what its cache keeps; type the numbers in instead."
    )
    assert page.answer is None
    page.form.model.setCurrentIndex(0)
    assert page.answer is not None


def test_no_number_is_shown_that_is_none(page: CalculatorPage) -> None:
    type_in(page, layers=1, heads="", kv_heads=1, head_dim=1, tokens=1)
    shown = " ".join(label.text() for label in page.findChildren(QLabel)) + str(cells(page, 0))
    assert not {"nan", "inf", "None"} & {*shown.split()}
    page.plots.grab()


def test_the_answer_is_saved_as_it_is_shown(
    page: CalculatorPage, theme: Theme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(page, layers=80, heads=64, kv_heads=8, head_dim=128, tokens=131_072)
    shown = page.shown()
    assert shown is not None
    files = ResultFiles(theme, page)
    files.save_table_to(tmp_path / "size.csv", shown)
    with (tmp_path / "size.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    by_name = {row["precision"]: row for row in rows}
    assert by_name["16bit"]["bytes"] == str(40 * GIB)
    assert by_name["16bit"]["bytes_per_token"] == "327680"
    assert [binary_size(int(row["bytes"])) for row in rows] == [row[2] for row in cells(page, 0)]
    assert [f"{int(row['fits_tokens']):,}" for row in rows] == [row[4] for row in cells(page, 0)]
    assert {row["command"] for row in rows} == {page.command.text}
    with (tmp_path / "size-heads.csv").open(encoding="utf-8", newline="") as file:
        heads = [(row["kind"], row["kv_heads"], row["multiple"]) for row in csv.DictReader(file)]
    assert heads == [("MHA", "64", "64.0"), ("GQA", "8", "8.0"), ("MQA", "1", "1.0")]
    with (tmp_path / "size-layers.csv").open(encoding="utf-8", newline="") as file:
        assert [(row["kind"], row["layers"], row["bytes"]) for row in csv.DictReader(file)] == [
            ("full", "80", str(40 * GIB))
        ]
    files.save_picture_to(tmp_path / "size.png", shown)
    assert QImage(str(tmp_path / "size.png")).width() == 1920
    assert shown.title == "40.00 GiB for 131,072 tokens"


def test_a_click_asks_where_to_save_and_nothing_is_saved_of_a_wrong_number(
    page: CalculatorPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ResultFiles, "_ask", lambda files, title, kinds, name, save: asked.append(name))
    page.picture_button.click()
    page.table_button.click()
    assert asked == ["ember-size-8192.png", "ember-size-8192.csv"]
    type_in(page, layers=0)
    assert page.shown() is None
    assert not page.table_button.isVisible()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}'),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").unlink(),
    ],
    ids=["no head_dim", "cut short", "no config"],
)
def test_a_model_that_is_spoilt_on_disk_is_one_sentence(
    library: ModelLibrary, open_page: Open, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    folder = add_model(library, tmp_path / "small", config)
    page = open_page()
    spoil(folder)
    page.form.model.setCurrentIndex(page.form.model.findText("small"))
    assert page.total.text() == (
        "The files of this model do not tell what its cache keeps; type the numbers in instead."
    )
    assert page.answer is None


def test_a_gguf_file_that_is_cut_short_is_one_sentence(library: ModelLibrary, open_page: Open, tmp_path: Path) -> None:
    file = tmp_path / "short.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 40))
    library.add(str(file))
    page = open_page()
    page.form.model.setCurrentIndex(page.form.model.findText("short"))
    assert page.total.text() == (
        "The files of this model are damaged or incomplete; fetch it again, or type the numbers in instead."
    )
    assert page.answer is None
    assert not page.picture_button.isVisible()


def test_every_field_has_a_name(page: CalculatorPage) -> None:
    for field in (*page.form.fields.values(), page.form.model, page.form.precision):
        assert field.accessibleName()
