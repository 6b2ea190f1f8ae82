from __future__ import annotations

import json
import logging
from dataclasses import fields

import pytest

from app.conversation import ChatOptions
from app.engine_port import engine_config
from app.errors import NewerSettingsError, ReadOnlyError, SettingsImportError, StorageError
from app.paths import DataPaths
from app.presets import Preset, Presets
from app.scale import scale_window
from app.settings import Group, Settings, load_settings, read_settings, save_settings
from app.settings_exchange import export_settings, read_exported_settings
from engine.protocol.config import ContextPolicy, EngineConfig, Sampling, Weights


def test_settings_come_back_as_they_were_saved(data_dir):
    settings = Settings(
        language="ko",
        kv_precision="compact",
        allow_compression=True,
        weights=Weights.BITS_4,
        temperature=0.0,
        top_k=40,
        model="모델",
        prefill_chunk=16,
    )
    save_settings(data_dir / "settings.json", settings)
    assert load_settings(data_dir / "settings.json") == settings
    assert [path.name for path in data_dir.iterdir()] == ["settings.json"]


def test_the_defaults_are_used_where_there_is_no_file(data_dir):
    assert load_settings(data_dir / "settings.json") == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", None),
        ("top_k", 1.5),
        ("top_p", 0),
        ("max_new_tokens", 0),
        ("max_new_tokens", 10**9),
        ("memory_budget_mb", [1]),
        ("disk_cap_mb", 255),
        ("disk_floor_mb", -1),
        ("weights", "3bit"),
        ("language", "fr"),
        ("theme", 1),
        ("send_with", ""),
        ("kv_precision", "int2"),
        ("allow_compression", 1),
        ("allow_compression", "yes"),
        ("model", {}),
    ],
)
def test_a_bad_value_costs_its_own_field_only_and_is_logged(data_dir, caplog, name, value):
    data_dir.mkdir()
    (data_dir / "settings.json").write_text(json.dumps({"last_conversation": "kept", name: value}), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        settings = load_settings(data_dir / "settings.json")
    assert settings == Settings(last_conversation="kept")
    assert name in caplog.text


def test_infinite_and_absurd_numbers_are_refused(data_dir):
    data_dir.mkdir()
    (data_dir / "settings.json").write_text('{"temperature": NaN, "top_p": Infinity, "top_k": 1e400, "min_p": 0.5}')
    assert load_settings(data_dir / "settings.json") == Settings(min_p=0.5)


def test_a_whole_number_written_as_a_fraction_stays_a_whole_number(data_dir):
    data_dir.mkdir()
    (data_dir / "settings.json").write_text('{"top_k": 40.0, "temperature": 1}')
    settings = load_settings(data_dir / "settings.json")
    assert (type(settings.top_k), settings.top_k) == (int, 40)
    assert (type(settings.temperature), settings.temperature) == (float, 1.0)


def test_settings_of_a_later_version_are_ignored_where_unknown(data_dir):
    data_dir.mkdir()
    (data_dir / "settings.json").write_text('{"from_the_future": 1, "theme": "dark"}')
    assert load_settings(data_dir / "settings.json") == Settings(theme="dark")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe\x00", b"[" * 100_000])
def test_a_damaged_file_is_set_aside_and_says_so(data_dir, caplog, content):
    data_dir.mkdir()
    (data_dir / "settings.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert load_settings(data_dir / "settings.json") == Settings()
    assert (data_dir / "settings.json.damaged").read_bytes() == content
    assert not (data_dir / "settings.json").exists()
    assert "settings.json.damaged" in caplog.text


def test_settings_that_cannot_be_saved_are_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReadOnlyError):
        save_settings(tmp_path / "file" / "settings.json", Settings())


def test_a_save_that_fails_leaves_the_settings_before(data_dir, monkeypatch):
    path = data_dir / "settings.json"
    save_settings(path, Settings(theme="dark"))
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    from app.errors import DiskFullError

    with pytest.raises(DiskFullError):
        save_settings(path, Settings(theme="light"))
    assert load_settings(path) == Settings(theme="dark")


def test_every_field_has_help_and_a_default_within_its_bounds():
    for setting in fields(Settings):
        meta = setting.metadata
        assert meta["help"].endswith("."), setting.name
        if isinstance(setting.default, bool):
            continue
        if isinstance(setting.default, str):
            assert not meta["choices"] or setting.default in meta["choices"]
        else:
            assert meta["minimum"] <= setting.default <= meta["maximum"]


def test_sampling_is_made_of_the_settings():
    assert Settings().sampling() == Sampling()
    assert Settings(temperature=0.0).sampling().is_greedy


def test_the_engine_gets_the_limits_in_bytes(data_dir):
    config = engine_config(DataPaths(data_dir), Settings(memory_budget_mb=64, disk_cap_mb=256, disk_floor_mb=0))
    assert (config.memory_budget_bytes, config.disk_cap_bytes, config.disk_floor_bytes) == (64 * 10**6, 256 * 10**6, 0)
    config = engine_config(DataPaths(data_dir), Settings(kv_precision="balanced", allow_compression=True))
    assert (config.kv_precision, config.allows_compression) == ("balanced", True)
    default = engine_config(DataPaths(data_dir), Settings())
    assert default == EngineConfig(kv_dir=data_dir / "kv", converted_dir=data_dir / "converted")


def test_what_was_wrong_is_told_as_it_was_written(data_dir):
    data_dir.mkdir()
    path = data_dir / "settings.json"
    path.write_text(json.dumps({"theme": "pink", "top_k": 10**400, "min_p": 0.5, "of a later version": 1}))
    loaded = read_settings(path)
    assert loaded.settings == Settings(min_p=0.5)
    assert [(problem.name, problem.value) for problem in loaded.problems] == [("theme", "pink"), ("top_k", 10**400)]
    assert loaded.damaged is None
    path.write_text("{")
    assert read_settings(path).damaged == data_dir / "settings.json.damaged"
    assert read_settings(path) == read_settings(data_dir / "other.json")


def test_a_text_that_could_not_be_saved_again_is_refused(data_dir):
    data_dir.mkdir()
    path = data_dir / "settings.json"
    path.write_text('{"system_prompt": "\\ud800", "theme": "dark"}')
    loaded = read_settings(path)
    assert [problem.name for problem in loaded.problems] == ["system_prompt"]
    save_settings(path, loaded.settings)
    assert load_settings(path) == Settings(theme="dark")


def test_every_shown_field_says_where_it_stands_and_what_it_is():
    for setting in fields(Settings):
        meta = setting.metadata
        if meta["is_hidden"]:
            continue
        assert isinstance(meta["group"], Group)
        assert meta["label"], setting.name
        if isinstance(setting.default, int | float) and not isinstance(setting.default, bool):
            assert meta["step"] > 0
            assert meta["slider_end"] is None or meta["minimum"] < meta["slider_end"] <= meta["maximum"]


def test_a_chat_goes_on_by_itself_when_it_is_full():
    assert Settings().context_policy is ContextPolicy.DROP_OLDEST


def test_exported_settings_and_presets_are_the_same_elsewhere(data_dir, tmp_path):
    chosen = Settings(theme="dark", weights=Weights.BITS_4, system_prompt="짧게", model="m", window_geometry="here")
    poet = Preset("시인", "시로", ChatOptions(temperature=1.2), "m")
    export_settings(tmp_path / "out.json", chosen, [poet])
    assert "here" not in (tmp_path / "out.json").read_text()
    found = read_exported_settings(tmp_path / "out.json", lambda name: name == "m")
    assert found.problems == ()
    assert Settings(**found.values, window_geometry="here") == chosen
    presets = Presets(data_dir / "presets.json")
    presets.save_all(found.presets)
    assert presets.own() == [poet]


def test_what_cannot_be_used_of_a_file_is_named_and_the_rest_is_taken(tmp_path):
    path = tmp_path / "in.json"
    settings = {"theme": "pink", "top_k": 40, "model": "gone", "window_geometry": "there", "soul": 1}
    presets = [{"name": "A"}, {"name": "B", "options": {"top_p": 7}}, "C"]
    path.write_text(json.dumps({"format": "ember-settings", "version": 1, "settings": settings, "presets": presets}))
    found = read_exported_settings(path, lambda name: False)
    assert found.values == {"top_k": 40}
    assert found.presets == (Preset("A"),)
    assert {(problem.name, str(problem.value)) for problem in found.problems} == {
        ("theme", "pink"),
        ("model", "gone"),
        ("window_geometry", "there"),
        ("soul", "1"),
        ("preset", "B"),
        ("preset", "C"),
    }


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", SettingsImportError),
        (b"[1]", SettingsImportError),
        (b"\xff\xfe", SettingsImportError),
        (b"[" * 100_000, SettingsImportError),
        (b'{"format": "other"}', SettingsImportError),
        (b'{"format": "ember-settings", "version": 1, "settings": []}', SettingsImportError),
        (b'{"format": "ember-settings", "version": 2}', NewerSettingsError),
        (b'{"format": "ember-settings"}', NewerSettingsError),
    ],
)
def test_a_file_that_holds_no_settings_changes_nothing(tmp_path, content, error):
    (tmp_path / "in.json").write_bytes(content)
    with pytest.raises(error):
        read_exported_settings(tmp_path / "in.json", lambda name: True)
    with pytest.raises(StorageError):
        read_exported_settings(tmp_path / "none.json", lambda name: True)


def test_a_huge_file_is_not_read(tmp_path):
    with (tmp_path / "model.gguf").open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(SettingsImportError):
        read_exported_settings(tmp_path / "model.gguf", lambda name: True)


def test_an_export_that_fails_leaves_no_half_file(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StorageError):
        export_settings(tmp_path / "out.json", Settings(), [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stored", "before", "after"),
    [
        ('{"scale_percent": 150}', None, "1.5"),
        ('{"scale_percent": 125, "theme": "pink"}', "2", "2.5"),
        ('{"scale_percent": 125}', "large", "1.25"),
        ('{"scale_percent": 100}', None, None),
        ('{"scale_percent": 999}', "2", "2"),
        ("{", None, None),
        (None, None, None),
    ],
)
def test_the_window_is_scaled_before_qt_begins(tmp_path, stored, before, after):
    path = tmp_path / "settings.json"
    if stored is not None:
        path.write_text(stored)
    environment = {} if before is None else {"QT_SCALE_FACTOR": before}
    scale_window(path, environment)
    assert environment.get("QT_SCALE_FACTOR") == after
    assert path.exists() is (stored is not None)  # a damaged one is left to `read_settings`


@pytest.mark.parametrize("model", ["~nobodyx/..", "~nobodyx", "a\x00b"])
def test_a_model_at_an_odd_path_is_a_model_that_is_not_there(data_dir, model):
    from app.model_library import ModelLibrary
    from engine.protocol.errors import ModelNotFoundError

    with pytest.raises(ModelNotFoundError):
        ModelLibrary(data_dir, data_dir).resolve(model)
