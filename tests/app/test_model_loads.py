"""What a load took is kept by model and precision; a file that is spoilt costs the figures only."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from app.model_loads import LoadRecord, ModelLoads
from engine.protocol.config import Weights
from engine.protocol.events import ModelInfo
from tests.fakes import a_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "모델").mkdir()
    return tmp_path / "모델"


@pytest.fixture
def loads(tmp_path: Path) -> ModelLoads:
    return ModelLoads(tmp_path / "data" / "model-loads.json")


def a_load(path: Path, weights: Weights, load_s: float, weights_bytes: int) -> ModelInfo:
    return dataclasses.replace(a_model(), path=path, weights=weights, load_s=load_s, weights_bytes=weights_bytes)


def test_the_last_load_of_each_precision_is_known_after_a_restart(loads, model, tmp_path):
    assert loads.of(model) == {}
    loads.record(a_load(model, Weights.BITS_4, 7.0, 96))
    loads.record(a_load(model, Weights.BITS_16, 0.7, 269))
    loads.record(a_load(model, Weights.BITS_4, 0.4, 96))
    again = ModelLoads(tmp_path / "data" / "model-loads.json")
    assert list(again.of(model).items()) == [
        (Weights.BITS_16, LoadRecord(0.7, 269)),
        (Weights.BITS_4, LoadRecord(0.4, 96)),
    ]


def test_models_that_are_gone_are_forgotten(loads, model, tmp_path):
    loads.record(a_load(tmp_path / "gone", Weights.BITS_16, 1.0, 1))
    loads.record(a_load(model, Weights.BITS_16, 1.0, 1))
    assert loads.of(tmp_path / "gone") == {}
    assert loads.of(model)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"loads": 3}', '{"loads": {"a": {"2bit": {}}}}', '{"loads": {"a": {"4bit": {"load_s": 1}}}}']
)
def test_a_damaged_file_is_begun_anew(loads, model, tmp_path, content):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model-loads.json").write_text(content)
    assert loads.of(model) == {}
    loads.record(a_load(model, Weights.BITS_8, 0.5, 3))
    assert loads.of(model) == {Weights.BITS_8: LoadRecord(0.5, 3)}


def test_a_disk_that_takes_nothing_is_no_failure(tmp_path, model, caplog):
    (tmp_path / "data").touch()
    ModelLoads(tmp_path / "data" / "model-loads.json").record(a_load(model, Weights.BITS_8, 0.5, 3))
    assert "cannot be kept" in caplog.text
