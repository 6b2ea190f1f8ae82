"""MHA, GQA and MQA at equal width: the same model with fewer and fewer keys and values."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.commands import BenchName
from ui import numbers
from ui.lab.figures import bytes_exact, known, milliseconds, scaled, times
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.view import Found, Table, View, a_minute, column, count

_COLOURS = ("int8", "balanced", "16bit")


def _tr(source: str) -> str:
    return QCoreApplication.translate("LabHeads", source)


class HeadsView(View):
    name = BenchName.HEADS
    contexts = (512, 1024, 4096, 16384)
    usual = 4096
    is_bound_by_model = False

    def title(self) -> str:
        return "MHA, GQA, MQA"

    def before(self) -> str:
        return _tr(
            "Attention has several heads. With MHA each keeps keys and values of its own, with GQA a few share them, "
            "with MQA all do: the cache shrinks as much. Here three small models of equal width, with random weights, "
            "show what that costs and saves."
        )

    def takes(self) -> str:
        return a_minute()

    def words(self, found: Found) -> str:
        rows = {row["kind"]: row for row in found.rows}
        if not {"MHA", "GQA", "MQA"} <= rows.keys():
            return ""
        mha, gqa, mqa = rows["MHA"], rows["GQA"], rows["MQA"]
        return _tr(
            "With {context} tokens, {heads} query heads keep {mha} with MHA, {gqa} with GQA ({gqa_heads} KV heads) and "
            "{mqa} with MQA: {factor} less. A token takes {mha_ms}, {gqa_ms} and {mqa_ms}."
        ).format(
            context=count(found.result.get("context")),
            heads=count(found.result.get("heads")),
            mha=numbers.size(mha["cache_bytes"]),
            gqa=numbers.size(gqa["cache_bytes"]),
            gqa_heads=count(gqa["kv_heads"]),
            mqa=numbers.size(mqa["cache_bytes"]),
            factor=times(mha["multiple_of_mqa"]),
            mha_ms=milliseconds(mha["decode_ms"]),
            gqa_ms=milliseconds(gqa["decode_ms"]),
            mqa_ms=milliseconds(mqa["decode_ms"]),
        )

    def plots(self, found: Found) -> tuple[Plot, ...]:
        rows = found.rows
        places = tuple(str(row["kind"]) for row in rows)
        size, time = _tr("Size of a token"), _tr("Time per token")
        return (
            Plot(
                size,
                "kB",
                PlotKind.BARS,
                places,
                (Series(size, _COLOURS, tuple(scaled(row["bytes_per_token"], 1e-3) for row in rows)),),
            ),
            Plot(time, "ms", PlotKind.BARS, places, (Series(time, _COLOURS, column(rows, "decode_ms")),)),
        )

    def tables(self, found: Found) -> tuple[Table, ...]:
        heads = (
            _tr("Kind"),
            _tr("KV heads"),
            _tr("A token"),
            _tr("Times MQA"),
            _tr("Cache"),
            _tr("Prefill"),
            _tr("Decode"),
        )
        rows = tuple(
            (
                str(row["kind"]),
                count(row["kv_heads"]),
                bytes_exact(row["bytes_per_token"]),
                times(row["multiple_of_mqa"]),
                numbers.size(row["cache_bytes"]),
                numbers.speed(known(row["prefill_tps"])),
                milliseconds(row["decode_ms"]),
            )
            for row in found.rows
        )
        return (Table("", heads, rows, frozenset({4})),)
