from __future__ import annotations

import json
import logging
from dataclasses import fields

import pytest

from app.engine_port import engine_config
from app.errors import ReadOnlyError
from app.paths import DataPaths
from app.settings import Settings, load_settings, save_settings
from engine.protocol.config import EngineConfig, Sampling, Weights


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
    assert (config.memory_budget_bytes, config.disk_cap_bytes, config.disk_floor_bytes) == (64 * 2**20, 256 * 2**20, 0)
    config = engine_config(DataPaths(data_dir), Settings(kv_precision="balanced", allow_compression=True))
    assert (config.kv_precision, config.allows_compression) == ("balanced", True)
    default = engine_config(DataPaths(data_dir), Settings())
    assert default == EngineConfig(kv_dir=data_dir / "kv", converted_dir=data_dir / "converted")
