"""Reading against writing: the same weights, used for many tokens at once or for one."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.commands import BenchName
from ui import numbers
from ui.lab.figures import figure, known, milliseconds, times
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.view import Found, Table, View, a_minute, column, count


def _tr(source: str) -> str:
    return QCoreApplication.translate("LabPrefillDecode", source)


class PrefillDecodeView(View):
    name = BenchName.PREFILL_DECODE
    contexts = (256, 512, 1024, 2048)
    usual = 1024

    def title(self) -> str:
        return _tr("Prefill and decode")

    def before(self) -> str:
        return _tr(
            "Prefill reads many tokens in one go, so that every weight fetched from memory serves all of them; decode "
            "writes one token at a time and fetches all weights for each. Here both speeds are measured at three "
            "lengths, and how much is computed for every byte."
        )

    def takes(self) -> str:
        return a_minute()

    def words(self, found: Found) -> str:
        last = found.rows[-1]
        words = _tr("At {tokens} tokens, reading runs at {prefill} and writing at {decode}, {ratio} apart.").format(
            tokens=count(last["length"]),
            prefill=numbers.speed(known(last["prefill_tps"])),
            decode=numbers.speed(known(last["decode_tps"])),
            ratio=times(last["ratio"]),
        )
        if known(last.get("prefill_intensity")) is None:
            return words + " " + _tr("These weights are packed, so that operations are not counted.")
        return (
            words
            + " "
            + _tr(
                "For every byte of weights and cache, reading computes {prefill} operations and writing {decode}: "
                "reading is bound by the processor's speed, writing by the memory's."
            ).format(prefill=figure(last["prefill_intensity"]), decode=figure(last["decode_intensity"]))
        )

    def plots(self, found: Found) -> tuple[Plot, ...]:
        rows = found.rows
        places = tuple(count(row["length"]) for row in rows)
        reading, writing = _tr("prefill"), _tr("decode")
        speed = Plot(
            _tr("Speed"),
            _tr("tokens a second"),
            PlotKind.BARS,
            places,
            (
                Series(reading, ("int8",), column(rows, "prefill_tps")),
                Series(writing, ("16bit",), column(rows, "decode_tps")),
            ),
            x_title=_tr("tokens"),
        )
        work = Plot(
            _tr("Operations for every byte"),
            "",
            PlotKind.BARS,
            places,
            (
                Series(reading, ("int8",), column(rows, "prefill_intensity")),
                Series(writing, ("16bit",), column(rows, "decode_intensity")),
            ),
            x_title=_tr("tokens"),
        )
        return (speed, work)

    def tables(self, found: Found) -> tuple[Table, ...]:
        heads = (
            _tr("Tokens"),
            _tr("Prefill"),
            _tr("Decode"),
            _tr("Apart"),
            _tr("Whole prefill"),
            _tr("One token"),
            _tr("Prefill, GFLOP/s"),
            _tr("Decode, GB/s"),
        )
        rows = tuple(
            (
                count(row["length"]),
                numbers.speed(known(row["prefill_tps"])),
                numbers.speed(known(row["decode_tps"])),
                times(row["ratio"]),
                numbers.seconds(known(row["prefill_s"])),
                milliseconds(row["decode_ms"]),
                figure(row.get("prefill_gflops_per_s")),
                figure(row.get("decode_gb_per_s")),
            )
            for row in found.rows
        )
        return (Table("", heads, rows, frozenset({3})),)
