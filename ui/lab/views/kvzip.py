"""KVzip: how much of a cache can go before facts are lost."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.commands import BenchName
from ui import numbers
from ui.lab.figures import known, percent, scaled, times
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.view import Found, Table, View, count, some_minutes


def _tr(source: str) -> str:
    return QCoreApplication.translate("LabKvzip", source)


class KvzipView(View):
    name = BenchName.KVZIP
    contexts = (620, 1100, 2000)
    usual = 1100

    def title(self) -> str:
        return "KVzip"

    def before(self) -> str:
        return _tr(
            "Not all of a cache matters alike. KVzip lets the model repeat the text, sees which keys it looks at, and "
            "throws the others away. Here facts are hidden in a text, less and less of its cache is kept, and the "
            "model is asked for each fact."
        )

    def takes(self) -> str:
        return some_minutes()

    def words(self, found: Found) -> str:
        full = found.rows[0]
        if not full["recalled"]:
            words = _tr(
                "This model finds none of the {asked} facts, not even with the whole cache of {context} tokens."
            )
            return words.format(asked=count(full["asked"]), context=count(found.result.get("context")))
        best = full
        for row in found.rows:
            if row["recalled"] < full["recalled"]:
                break
            best = row
        words = _tr(
            "With the whole cache, {size} for {context} tokens, {recalled} of {asked} facts are found. As many are "
            "still found with {share} kept, at {ratio} of the bytes."
        ).format(
            size=numbers.size(full["bytes"]),
            context=count(found.result.get("context")),
            recalled=count(full["recalled"]),
            asked=count(full["asked"]),
            share=percent(best["keep_percent"] / 100),
            ratio=percent(best["ratio_whole"]),
        )
        last = found.rows[-1]
        return (
            words
            + " "
            + _tr(
                "With {share} kept, {recalled} of {asked} are; the beginning and the end of a chat always stay, so "
                "that it takes {ratio} of the bytes then."
            ).format(
                share=percent(last["keep_percent"] / 100),
                recalled=count(last["recalled"]),
                asked=count(last["asked"]),
                ratio=percent(last["ratio_whole"]),
            )
        )

    def plots(self, found: Found) -> tuple[Plot, ...]:
        rows = found.rows
        xs = tuple(float(row["keep_percent"]) for row in rows)
        return (
            Plot(
                _tr("Facts found, and size"),
                "%",
                PlotKind.LINES,
                tuple(f"{count(x)} %" for x in xs),
                (
                    Series(_tr("facts found"), ("16bit",), tuple(scaled(row["recall"], 100) for row in rows)),
                    Series(_tr("size"), ("kvzip",), tuple(scaled(row["ratio_whole"], 100) for row in rows)),
                ),
                xs=xs,
                x_range=(0.0, 100.0),
                x_title=_tr("kept"),
                most=100.0,
            ),
        )

    def tables(self, found: Found) -> tuple[Table, ...]:
        heads = (
            _tr("Kept"),
            _tr("Size"),
            _tr("Of the whole"),
            _tr("Facts found"),
            _tr("Speed"),
            _tr("Of the full speed"),
        )
        rows = tuple(
            (
                percent(row["keep_percent"] / 100),
                numbers.size(row["bytes"]),
                percent(row["ratio_whole"], 1),
                _tr("{found} of {asked}").format(found=count(row["recalled"]), asked=count(row["asked"])),
                numbers.speed(known(row["decode_tps"])),
                times(None if row["keep_percent"] == 100 else row["decode_ratio"]),
            )
            for row in found.rows
        )
        tables = [Table("", heads, rows, frozenset({3}))]
        facts = found.result.get("facts", [])
        if facts:
            tables.append(Table(_tr("The facts"), ("", *(head[0] for head in rows)), _facts(found, facts)))
        return tuple(tables)


def _facts(found: Found, facts: list[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (fact, *("✓" if row["facts_recalled"][number] else "✗" for row in found.rows))
        for number, fact in enumerate(facts)
    )
