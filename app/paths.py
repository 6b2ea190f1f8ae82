"""Where everything lies: one data folder for one Ember, and the resources that come with the program."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from app.errors import from_os_error


@dataclass(frozen=True, slots=True)
class DataPaths:
    """The files of one data folder. Nothing is created until `create()` is called."""

    data_dir: Path

    @property
    def database(self) -> Path:
        return self.data_dir / "ember.db"

    @property
    def kv_dir(self) -> Path:
        """KV snapshots: disposable, owned by the engine."""
        return self.data_dir / "kv"

    @property
    def converted_dir(self) -> Path:
        """Safetensors made once from GGUF files: disposable, owned by the engine."""
        return self.data_dir / "converted"

    @property
    def downloads_dir(self) -> Path:
        """Models fetched from the hub."""
        return self.data_dir / "models"

    @property
    def models_file(self) -> Path:
        """The list of models that were added."""
        return self.data_dir / "models.json"

    @property
    def loads_file(self) -> Path:
        """What loading each model took."""
        return self.data_dir / "model-loads.json"

    @property
    def settings(self) -> Path:
        return self.data_dir / "settings.json"

    @property
    def presets(self) -> Path:
        return self.data_dir / "presets.json"

    @property
    def log(self) -> Path:
        return self.data_dir / "logs" / "ember.log"

    @property
    def lock(self) -> Path:
        return self.data_dir / "ember.lock"

    def create(self) -> None:
        """Make the data folder. Raises StorageError where it cannot be made."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, self.data_dir) from error


def default_data_dir() -> Path:
    """`EMBER_DATA_DIR`, else the platform's folder for a user's application data."""
    chosen = os.environ.get("EMBER_DATA_DIR")
    if chosen:
        return Path(chosen).expanduser()
    return Path(platformdirs.user_data_dir("Ember", appauthor=False))


def resources_dir() -> Path:
    """The `resources` folder beside the packages, in a checkout and in a frozen bundle alike."""
    return Path(__file__).resolve().parent.parent / "resources"
