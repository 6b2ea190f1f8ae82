"""Which models there are: the one that comes with Ember, those added by path, those fetched from the hub.

A model is described from its `config.json` alone; nothing is loaded, and what is unknown is None.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.atomic_file import write_json
from app.hub import fetch, is_hub_id
from app.model_config import ModelConfig, read_model_config
from app.model_loads import LoadRecord, ModelLoads
from app.paths import DataPaths
from engine.protocol.config import Weights
from engine.protocol.errors import ModelDamagedError, ModelNotFoundError, NotALanguageModelError
from engine.protocol.events import Event, ModelLoaded

_log = logging.getLogger(__name__)
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_PACKED_NUMBERS = "packed.safetensors"  # a copy that the engine keeps beside the weights


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """`kv_bytes_per_token`: all layers, in 16 bit. None where `config.json` does not say (GGUF files have none).

    `loads`: what loading it took, by precision of the weights, for those it was loaded with.
    """

    name: str
    path: Path
    size_bytes: int
    family: str | None
    context_length: int | None
    kv_bytes_per_token: int | None
    is_default: bool
    loads: dict[Weights, LoadRecord] = field(default_factory=dict)


class ModelLibrary:
    def __init__(self, resources_dir: Path, data_dir: Path) -> None:
        self._resources_dir = resources_dir
        self._paths = DataPaths(data_dir)
        self._loads = ModelLoads(self._paths.loads_file)

    def models(self) -> list[ModelEntry]:
        """The default model first, then by name. A model that was moved away is left out."""
        found = {path: path.name for path in self._shipped()}
        found |= {path: name for name, path in self._added().items() if _looks_like_a_model(path)}
        entries = [self._entry(name, path) for path, name in found.items()]
        return sorted(entries, key=lambda entry: (not entry.is_default, entry.name.lower()))

    def resolve(self, name_or_path: str) -> Path:
        """The path of a model; "" is the default one. Raises ModelNotFoundError."""
        if not name_or_path:
            default = self._resources_dir / "models" / DEFAULT_MODEL
            if _looks_like_a_model(default):
                return default
            raise ModelNotFoundError(
                "The default model is not here; run `make run` once, which fetches it, or name another with --model.",
                path=str(default),
            )
        for entry in self.models():
            if entry.name == name_or_path:
                return entry.path
        path = _expanded(name_or_path)
        if path.exists():
            return path.resolve()
        raise ModelNotFoundError(
            f"There is no model {name_or_path}; `ember models` lists the names, and a path or "
            "`ember models add` brings in another.",
            path=name_or_path,
        )

    def add(self, path_or_hub_id: str) -> ModelEntry:
        """Register a model folder or GGUF file where it lies, or fetch a model from the hub.

        Raises ModelError where it is none or cannot be fetched, StorageError where the list cannot be kept.
        """
        path = _expanded(path_or_hub_id)
        if not path.exists():
            if not is_hub_id(path_or_hub_id):
                raise ModelNotFoundError(
                    f"Nothing is at {path_or_hub_id}; give a model folder, a .gguf file or a hub id (owner/name).",
                    path=path_or_hub_id,
                )
            path = fetch(path_or_hub_id, self._paths.downloads_dir)
        path = path.resolve()
        _check_is_model(path)
        added = self._added()
        name = next((name for name, known in added.items() if known == path), None)
        if name is None:
            taken = {entry.name for entry in self.models()} | added.keys()
            name = _free_name(path.stem if path.is_file() else path.name, taken)
            self._save(added | {name: path})
        return self._entry(name, path)

    def loads(self, model: Path) -> dict[Weights, LoadRecord]:
        """What loading the model at this path took, by precision of the weights."""
        return self._loads.of(model)

    def handle(self, event: Event) -> None:
        """Keep what a load took."""
        if isinstance(event, ModelLoaded):
            self._loads.record(event.model)

    def _shipped(self) -> list[Path]:
        try:
            return [path for path in sorted((self._resources_dir / "models").iterdir()) if _looks_like_a_model(path)]
        except OSError:
            return []

    def _added(self) -> dict[str, Path]:
        try:
            stored: Any = json.loads(self._paths.models_file.read_text(encoding="utf-8"))
            return {str(name): Path(path) for name, path in stored["models"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("The list of models %s cannot be read (%s).", self._paths.models_file, error)
            return {}

    def _save(self, models: dict[str, Path]) -> None:
        write_json(self._paths.models_file, {"models": {name: str(model) for name, model in models.items()}})

    def _entry(self, name: str, path: Path) -> ModelEntry:
        config = (read_model_config(path) if path.is_dir() else None) or ModelConfig()
        return ModelEntry(
            name=name,
            path=path,
            size_bytes=_size_bytes(path),
            family=config.family,
            context_length=config.context_length,
            kv_bytes_per_token=config.kv_bytes_per_token(bytes_per_value=2),
            is_default=path == self._resources_dir / "models" / DEFAULT_MODEL,
            loads=self.loads(path),
        )


def _expanded(path: str) -> Path:
    """With `~` for the home folder; one whose owner is not known is left as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _looks_like_a_model(path: Path) -> bool:
    return (path / "config.json").is_file() if path.is_dir() else path.suffix.lower() == ".gguf" and path.is_file()


def _check_is_model(path: Path) -> None:
    if path.is_dir():
        if read_model_config(path) is None:
            raise NotALanguageModelError(
                f"{path} holds no language model (no readable config.json); give the folder that holds one.",
                path=str(path),
            )
        if not any(file.name != _PACKED_NUMBERS for file in path.glob("*.safetensors")):
            raise NotALanguageModelError(
                f"{path} holds no safetensors weights; give the folder that holds them beside config.json.",
                path=str(path),
            )
        return
    if not path.is_file():
        raise NotALanguageModelError(f"{path} is neither a folder nor a file; give a model.", path=str(path))
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if not is_gguf:
        raise ModelDamagedError(
            f"{path} is no GGUF file; give a .gguf file, or the folder that holds config.json and the weights.",
            path=str(path),
        )


def _size_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _free_name(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name
