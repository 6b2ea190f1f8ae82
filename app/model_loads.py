"""How long each model last took to load, and what it took of memory, in each precision of its weights.

A JSON file in the data folder; written by the Ember that holds the folder, and disposable.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.protocol.config import Weights
from engine.protocol.events import ModelInfo

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadRecord:
    load_s: float
    weights_bytes: int


class ModelLoads:
    def __init__(self, file: Path) -> None:
        self._file = file

    def of(self, model: Path) -> dict[Weights, LoadRecord]:
        """By precision, widest first; empty for a model that was never loaded here."""
        known = self._read().get(str(model), {})
        return {weights: known[weights] for weights in Weights if weights in known}

    def record(self, model: ModelInfo) -> None:
        """Keep the last load's figures; forget models that are gone. A failure to write is logged, no more."""
        loads = {path: known for path, known in self._read().items() if Path(path).exists()}
        loads.setdefault(str(model.path), {})[model.weights] = LoadRecord(model.load_s, model.weights_bytes)
        temporary = self._file.with_name(self._file.name + ".new")
        content = {path: {str(key): asdict(one) for key, one in known.items()} for path, known in loads.items()}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"loads": content}, indent=2), encoding="utf-8")
            temporary.replace(self._file)
        except OSError as error:
            _log.warning("What loading took cannot be kept in %s (%s).", self._file, error)

    def _read(self) -> dict[str, dict[Weights, LoadRecord]]:
        try:
            stored: Any = json.loads(self._file.read_text(encoding="utf-8"))
            return {str(path): _records(known) for path, known in stored["loads"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("%s cannot be read (%s); it is begun anew.", self._file, error)
            return {}


def _records(stored: Mapping[str, Any]) -> dict[Weights, LoadRecord]:
    return {
        Weights(weights): LoadRecord(float(one["load_s"]), int(one["weights_bytes"])) for weights, one in stored.items()
    }
