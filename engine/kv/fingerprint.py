"""What makes two KV caches interchangeable: a hash over everything that changes keys and values.

Soft facts (attention backend, library versions, device) and the chat template are left out on purpose.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from engine.kv.geometry import KVGeometry
from engine.kv.store.records import FORMAT_VERSION
from engine.protocol.config import Weights
from engine.protocol.misses import Miss, MissCode

COMPRESSED_CODEC = "compressed"
_COMPRESSED_VERSION = 1
_HASH_CACHE_NAME = "weight-hashes.json"
_HASH_SLICE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`fields` in canonical order; `digest` names the folder of all snapshots made under it."""

    fields: dict[str, Any]
    digest: str

    @classmethod
    def of_model(
        cls,
        weights_hash: str,
        weights: Weights,
        dtype: torch.dtype,
        config: Any,
        geometry: KVGeometry,
        numbers: str | None = None,
    ) -> Fingerprint:
        """Fingerprint of a loaded model. `config` is transformers' text configuration; `numbers` names how the weights
        were rounded, None where they are as they come or bitsandbytes rounded them.
        """
        return cls.of_fields(
            {
                **({} if numbers is None else {"numbers": numbers}),
                "format": FORMAT_VERSION,
                "model": weights_hash,
                "weights": str(weights),
                "dtype": str(dtype).removeprefix("torch."),
                "rope": _plain(getattr(config, "rope_parameters", None)),
                "layer_types": _plain(getattr(config, "layer_types", None)),
                "sliding_window": _plain(getattr(config, "sliding_window", None)),
                "layers": [[s.kv_heads, s.key_dim, s.value_dim] for s in geometry.layers],
                "codec": "full",
            }
        )

    @classmethod
    def of_fields(cls, fields: dict[str, Any]) -> Fingerprint:
        return cls(fields, hashlib.sha256(canonical_json(fields).encode()).hexdigest())

    @property
    def compressed(self) -> Fingerprint:
        """Of the same model's caches that went through a lossy codec; `compressed` is the version of their form."""
        return Fingerprint.of_fields({**self.fields, "codec": COMPRESSED_CODEC, "compressed": _COMPRESSED_VERSION})

    @property
    def folder(self) -> str:
        return self.digest[:16]


def difference(mine: dict[str, Any], other: dict[str, Any]) -> Miss:
    """How `other` (a stored fingerprint's fields) differs from `mine`."""
    if mine.get("model") != other.get("model"):
        return Miss(MissCode.MODEL_CHANGED)
    changed = next(
        (
            field
            for field in ("weights", "dtype", "codec", "format", *mine, *other)
            if mine.get(field) != other.get(field)
        ),
        "",
    )
    return Miss(
        MissCode.SETTINGS_CHANGED, {"field": changed, "saved": str(other.get(changed)), "now": str(mine.get(changed))}
    )


def canonical_json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def hash_weights(files: Iterable[Path], cache_dir: Path | None) -> str:
    """xxh3 over the contents of `files`, remembered by path, size and time of change so that it is read once.

    Where there is no `cache_dir`, nothing is remembered.
    """
    cache_file = None if cache_dir is None else cache_dir / _HASH_CACHE_NAME
    known = {} if cache_file is None else _read_cache(cache_file)
    combined = xxhash.xxh3_128()
    is_changed = False
    for file in files:
        stat = file.stat()
        key = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
        if key not in known:
            known[key] = _hash_file(file)
            is_changed = True
        combined.update(known[key].encode())
    if is_changed and cache_file is not None:
        _write_cache(cache_file, known)
    return combined.hexdigest()


def _hash_file(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as handle:
        while part := handle.read(_HASH_SLICE_BYTES):
            digest.update(part)
    return digest.hexdigest()


def _read_cache(file: Path) -> dict[str, str]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in content.items()} if isinstance(content, dict) else {}


def _write_cache(file: Path, known: dict[str, str]) -> None:
    """Best effort: without it the next load hashes again."""
    scratch = file.with_suffix(".tmp")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(known), "utf-8")
        scratch.replace(file)
    with contextlib.suppress(OSError):
        scratch.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value)
