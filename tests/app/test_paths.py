from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import StorageError
from app.paths import DataPaths, default_data_dir, resources_dir


def test_the_environment_chooses_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("EMBER_DATA_DIR", str(tmp_path / "자료"))
    assert default_data_dir() == tmp_path / "자료"


def test_without_it_the_folder_is_the_platforms(monkeypatch):
    monkeypatch.delenv("EMBER_DATA_DIR", raising=False)
    assert default_data_dir().name.lower() == "ember"
    assert default_data_dir().is_absolute()


def test_everything_lies_below_the_data_folder(tmp_path):
    paths = DataPaths(tmp_path)
    found = [getattr(paths, name) for name in dir(DataPaths) if isinstance(getattr(DataPaths, name), property)]
    assert len(found) == len(set(found)) == 10
    assert all(tmp_path in path.parents for path in found)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        DataPaths(tmp_path / "file" / "below").create()


def test_the_resources_lie_beside_the_packages():
    assert resources_dir() == Path(__file__).resolve().parents[2] / "resources"
