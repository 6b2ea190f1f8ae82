"""What the calculator found, as tables (`app.experiments_file`): a row a precision, and a layer's kind, and heads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from app.cache_fit import Fits
from app.cache_shape import CacheShape
from app.cache_size import CacheBytes, HeadsChoice, Precision, cache_bytes
from app.experiments_file import Row, Tables, with_head


def layer_rows(asked: CacheBytes) -> list[Row]:
    """What the layers of each kind keep."""
    return [
        {
            "kind": str(row.group.kind),
            "layers": row.group.num_layers,
            "kv_heads": row.group.kv_heads or None,
            "key_dim": row.group.key_dim or None,
            "value_dim": row.group.value_dim or None,
            "window": row.group.window,
            "tokens_kept": row.tokens_kept,
            "bytes": row.nbytes,
        }
        for row in asked.layers
    ]


def precision_rows(every: Sequence[CacheBytes]) -> list[Row]:
    """What the same chat takes in each precision, and as a share of 16 bit."""
    whole = next(one.total_bytes for one in every if one.precision is Precision.BITS_16)
    return [
        {
            "precision": str(one.precision),
            "bytes_per_token": one.bytes_per_token,
            "bytes_per_token_is": "average" if one.is_average else "exact",
            "bytes": one.total_bytes,
            "ratio": one.total_bytes / whole if whole else None,
        }
        for one in every
    ]


def size_tables(
    shape: CacheShape,
    asked: CacheBytes,
    fits: Fits,
    heads: Sequence[HeadsChoice],
    command: str,
    computed_at: datetime,
    model: str | None = None,
) -> Tables:
    """`command`: the same on the command line. `model`: its name, None for numbers that were typed in."""
    every = [cache_bytes(shape, asked.tokens, one, asked.batch) for one in Precision]
    precisions: list[Row] = [
        {**row, "fits_tokens": fit.tokens} for row, fit in zip(precision_rows(every), fits.rows, strict=True)
    ]
    layers: list[Row] = [{**row, "precision": str(asked.precision)} for row in layer_rows(asked)]
    first = shape.first
    head: dict[str, Any] = {
        "model": model,
        "layers": shape.num_layers,
        "heads": shape.heads,
        "kv_heads": first.kv_heads if first is not None else None,
        "head_dim": first.key_dim if first is not None else None,
        "kind": None if shape.kind is None else str(shape.kind),
        "tokens": asked.tokens,
        "batch": asked.batch,
        "memory_free_bytes": fits.memory.free_bytes,
        "weights_bytes": fits.weights_bytes,
        "command": command,
        "computed_at": computed_at.astimezone().isoformat(timespec="seconds"),
    }
    tables: dict[str, list[Row]] = {"": precisions, "layers": layers}
    if heads:
        tables["heads"] = [
            {
                "kind": str(one.kind),
                "kv_heads": one.kv_heads,
                "bytes_per_token": one.bytes_per_token,
                "multiple": one.multiple,
                "precision": str(asked.precision),
            }
            for one in heads
        ]
    return with_head(tables, {name: value for name, value in head.items() if value is not None})
