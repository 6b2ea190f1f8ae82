from __future__ import annotations

import json
import logging

import pytest

from app.conversation import ChatOptions
from app.errors import (
    DiskFullError,
    PresetBuiltInError,
    PresetNameError,
    PresetNameTakenError,
    UnknownPresetError,
)
from app.presets import BUILT_IN, Preset, Presets
from app.settings import Settings

POET = Preset("시인", "시로 답해 주세요.", ChatOptions(temperature=1.2, max_new_tokens=300), "SmolLM2-135M-Instruct")


@pytest.fixture
def path(data_dir):
    return data_dir / "presets.json"


def names(presets):
    return [preset.name for preset in presets.own()]


def test_presets_come_back_as_they_were_saved(path):
    presets = Presets(path)
    presets.save(POET)
    presets.save(Preset("Bare"))
    assert Presets(path).all() == [*BUILT_IN, Preset("Bare"), POET]
    assert [file.name for file in path.parent.iterdir()] == ["presets.json"]


def test_those_that_come_with_ember_are_in_order_of_freedom_and_leave_prompt_and_model_alone(path):
    assert [preset.name for preset in Presets(path).all()] == ["Precise", "Balanced", "Creative"]
    temperatures = [preset.options.temperature for preset in BUILT_IN]
    assert temperatures == sorted(temperatures)
    assert {(preset.system_prompt, preset.model) for preset in BUILT_IN} == {(None, None)}
    balanced, default = BUILT_IN[1].options, Settings()
    assert (balanced.temperature, balanced.top_p) == (default.temperature, default.top_p)


def test_a_preset_of_the_same_name_is_replaced_whatever_the_form_of_its_hangul_or_case(path):
    presets = Presets(path)
    presets.save(POET)
    presets.save(Preset("\u1109\u1175\u110b\u1175\u11ab", "new"))  # the same word, decomposed
    presets.save(Preset("Bare"))
    presets.save(Preset("  bare ", "other"))
    assert [(one.name, one.system_prompt) for one in presets.own()] == [("bare", "other"), ("시인", "new")]


@pytest.mark.parametrize("name", ["", "  ", "x" * 81])
def test_a_name_that_is_none_is_refused(path, name):
    with pytest.raises(PresetNameError):
        Presets(path).save(Preset(name))
    assert not path.exists()


def test_the_names_of_those_that_come_with_ember_are_taken(path):
    presets = Presets(path)
    presets.save(POET)
    with pytest.raises(PresetBuiltInError):
        presets.save(Preset("precise"))
    with pytest.raises(PresetBuiltInError):
        presets.rename("시인", "Creative")
    assert names(presets) == ["시인"]


def test_a_preset_is_renamed_and_deleted_and_brought_back(path):
    presets = Presets(path)
    presets.save(POET)
    presets.save(Preset("Bare"))
    with pytest.raises(PresetNameTakenError):
        presets.rename("시인", "bare")
    assert presets.rename("시인", "Poet") == Preset("Poet", POET.system_prompt, POET.options, POET.model)
    assert names(Presets(path)) == ["Bare", "Poet"]
    presets.rename("Poet", "POET")  # only its case
    gone = presets.delete("poet")
    assert names(Presets(path)) == ["Bare"]
    presets.save(gone)
    assert names(Presets(path)) == ["Bare", "POET"]
    with pytest.raises(UnknownPresetError):
        presets.delete("nobody")
    with pytest.raises(UnknownPresetError):
        presets.delete("Precise")


def test_a_save_that_fails_leaves_the_presets_before(path, monkeypatch):
    presets = Presets(path)
    presets.save(POET)
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for change in (
        lambda: presets.save(Preset("Other")),
        lambda: presets.save_all([Preset("A"), Preset("B")]),
        lambda: presets.delete("시인"),
        lambda: presets.rename("시인", "Poet"),
    ):
        with pytest.raises(DiskFullError):
            change()
        assert presets.own() == [POET] == Presets(path).own()


def test_many_are_saved_together_or_not_at_all(path):
    presets = Presets(path)
    with pytest.raises(PresetNameError):
        presets.save_all([POET, Preset("")])
    assert presets.own() == [] == Presets(path).own()
    presets.save_all([POET, Preset("Bare")])
    assert names(Presets(path)) == ["Bare", "시인"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"presets": 3}', b"\xff\xfe\x00"])
def test_a_damaged_file_is_set_aside(path, content, caplog):
    path.parent.mkdir()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert Presets(path).own() == []
    assert path.with_name("presets.json.damaged").read_bytes() == content
    assert "presets.json.damaged" in caplog.text


@pytest.mark.parametrize(
    "bad",
    [
        3,
        {},
        {"name": ""},
        {"name": "Precise"},
        {"name": "x", "system_prompt": 3},
        {"name": "x", "system_prompt": "\ud800"},
        {"name": "x", "options": {"temperature": 99}},
        {"name": "x", "options": {"top_k": "many"}},
        {"name": "x", "options": []},
        {"name": "x", "model": 1},
    ],
)
def test_a_preset_that_cannot_be_read_costs_only_itself(path, bad):
    path.parent.mkdir()
    path.write_text(json.dumps({"presets": [bad, {"name": "good", "options": {"top_k": 40, "of later": 1}}]}))
    assert Presets(path).own() == [Preset("good", options=ChatOptions(top_k=40))]
