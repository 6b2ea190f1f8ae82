"""`ember size`: how large a KV cache gets, and what fits here. Arithmetic only; no model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.cache_fit import Fits, what_fits
from app.cache_shape import CacheShape, LayerKind
from app.cache_size import CacheBytes, Precision, cache_bytes, heads_compared, typed_shape
from app.commands.call import Call
from app.commands.table import aligned
from app.errors import UserError
from app.experiments_size import layer_rows, precision_rows
from app.machine_memory import read_machine_memory
from app.model_on_disk import ModelOnDisk, read_model

NAMES = {"bf16": Precision.BITS_16, "fp16": Precision.BITS_16, **{str(one): one for one in Precision}}
"""What `--precision` takes."""
_GIB = 2**30


def size(call: Call) -> int:
    given = call.arguments
    model = _model(call)
    shape = model.shape
    tokens = given.tokens or shape.context_length or 1
    precision = NAMES[given.precision]
    asked = cache_bytes(shape, tokens, precision, given.batch)
    weights = given.weights_bytes or model.weights_bytes
    fits = what_fits(shape, read_machine_memory(), weights, given.batch)
    if given.json:
        call.print_json(_content(call, shape, asked, fits))
        return 0
    for line in _lines(shape, asked, fits):
        call.print(line)
    return 0


def _model(call: Call) -> ModelOnDisk:
    given = call.arguments
    typed = (given.layers, given.kv_heads, given.head_dim)
    if given.model is not None:
        if any(typed) or given.heads:
            raise UserError("Give either --model, or --layers, --kv-heads and --head-dim.")
        return read_model(call.library().resolve(given.model))
    if not all(typed):
        raise UserError("Give --model, or all of --layers, --kv-heads and --head-dim.")
    return ModelOnDisk(typed_shape(*typed, given.heads), None)


def _content(call: Call, shape: CacheShape, asked: CacheBytes, fits: Fits) -> dict[str, Any]:
    first = shape.first
    every = [cache_bytes(shape, asked.tokens, one, asked.batch) for one in Precision]
    return {
        "layers": shape.num_layers,
        "kv_heads": first.kv_heads if first is not None else None,
        "head_dim": first.key_dim if first is not None else None,
        "precision": call.arguments.precision,
        "bytes_per_token": asked.bytes_per_token,
        "tokens": asked.tokens,
        "bytes": asked.total_bytes,
        "gib": asked.gib,
        "batch": asked.batch,
        "heads": shape.heads,
        "kind": shape.kind,
        "family": shape.family,
        "context_length": shape.context_length,
        "bytes_per_token_is": "average" if asked.is_average else "exact",
        "further_bytes_per_token": asked.further_bytes_per_token,
        "is_state_counted": not asked.has_untold_state,
        "layer_kinds": layer_rows(asked),
        "precisions": precision_rows(every),
        "heads_compared": [
            {
                "kind": one.kind,
                "kv_heads": one.kv_heads,
                "bytes_per_token": one.bytes_per_token,
                "multiple": one.multiple,
            }
            for one in heads_compared(shape, asked.precision)
        ],
        "fits": {
            "memory_free_bytes": fits.memory.free_bytes,
            "memory_total_bytes": fits.memory.total_bytes,
            "weights_bytes": fits.weights_bytes,
            "room_bytes": fits.room_bytes,
            "contexts": [
                {"precision": one.precision, "tokens": one.tokens, "is_whole_context": one.is_whole_context}
                for one in fits.rows
            ],
        },
    }


def _lines(shape: CacheShape, asked: CacheBytes, fits: Fits) -> Iterator[str]:
    about = " on average" if asked.is_average else ""
    chats = f" in each of {asked.batch:,} chats" if asked.batch > 1 else ""
    yield (
        f"{_number(asked.bytes_per_token)} bytes a token{about}, {asked.total_bytes:,} bytes ({asked.gib:,.2f} GiB) for"
        f" {asked.tokens:,} {'token' if asked.tokens == 1 else 'tokens'}{chats}"
    )
    if shape.kind is not None and shape.first is not None:
        of = f" for {shape.heads:,} query heads" if shape.heads else ""
        kept = "one compressed vector a token" if shape.is_latent else f"{_heads(shape.first.kv_heads)}{of}"
        yield f"{shape.kind}: {kept}"
    if len(asked.layers) > 1 or asked.layers[0].group.kind is not LayerKind.FULL:
        yield ""
        yield from aligned([["layers", "kind", "tokens kept", "bytes"], *map(_layer_cells, asked.layers)])
    if asked.has_untold_state:
        yield "The state of the recurrent layers is not counted: the configuration does not tell its size."
    yield ""
    yield from aligned([["precision", "bytes a token", "in all", "fits here"], *_precision_cells(shape, asked, fits)])
    compared = heads_compared(shape, asked.precision)
    if compared:
        yield ""
        table = [["at this width", "KV heads", "bytes a token", "times MQA"]]
        table += [
            [one.kind, f"{one.kv_heads:,}", _number(one.bytes_per_token), f"{one.multiple:.4g}"] for one in compared
        ]
        yield from aligned(table)
    yield ""
    yield _memory_words(fits)
    if shape.context_length is not None:
        yield f"The model reads {shape.context_length:,} tokens at most."


def _layer_cells(row: Any) -> list[str]:
    kind = row.group.kind + (f" ({row.group.window:,})" if row.group.window else "")
    kept = f"{row.tokens_kept:,}" if row.group.numbers_per_token else "-"
    return [f"{row.group.num_layers:,}", kind, kept, "-" if row.nbytes is None else f"{row.nbytes:,}"]


def _precision_cells(shape: CacheShape, asked: CacheBytes, fits: Fits) -> Iterator[list[str]]:
    for fit in fits.rows:
        one = cache_bytes(shape, asked.tokens, fit.precision, asked.batch)
        most = "any length" if fit.tokens is None else f"{fit.tokens:,} tokens"
        about = "~" if one.is_average else ""
        total = f"{one.gib:,.2f} GiB" if one.total_bytes >= _GIB else f"{one.total_bytes / 2**20:,.1f} MiB"
        yield [str(fit.precision), about + _number(one.bytes_per_token), total, most]


def _memory_words(fits: Fits) -> str:
    free, total = (value / _GIB for value in (fits.memory.free_bytes, fits.memory.total_bytes))
    words = f"Fits here: {free:,.1f} of {total:,.1f} GiB are free"
    if fits.weights_bytes is None:
        return f"{words}; the weights are not taken off."
    return f"{words}, {fits.weights_bytes / _GIB:,.2f} GiB of it for the weights in 16 bit."


def _heads(count: int) -> str:
    return f"{count:,} KV head{'s' if count != 1 else ''}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
