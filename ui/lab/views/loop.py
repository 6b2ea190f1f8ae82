"""The loop by hand: what a reply is made of, one token after the other."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.commands import BenchName
from ui import numbers
from ui.lab.figures import milliseconds, percent, scaled
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.token_words import token_words
from ui.lab.view import Found, Table, View, column, count, quick


def _tr(source: str) -> str:
    return QCoreApplication.translate("LabLoop", source)


class LoopView(View):
    name = BenchName.LOOP

    def title(self) -> str:
        return _tr("The loop by hand")

    def before(self) -> str:
        return _tr(
            "A reply is a loop: the model gives every token of its vocabulary a score, the best one is taken, fed back "
            "in, and so on. Here it runs step by step, so that you see the five best tokens and how the cache grows by "
            "one token each time."
        )

    def takes(self) -> str:
        return quick()

    def words(self, found: Found) -> str:
        first, rest = found.rows[0], found.rows[1:]
        words = _tr(
            "The first step read all {prompt} tokens of the question in {first}. Each of the {steps} steps after it "
            "read one token, and added {bytes} to the cache."
        )
        told = words.format(
            prompt=count(first["fed"]),
            first=milliseconds(first["ms"]),
            steps=count(len(rest)),
            bytes=numbers.size(found.result.get("bytes_per_token")),
        )
        question = found.result.get("question")
        return " ".join([_tr("Asked was: “{question}”").format(question=question), told] if question else [told])

    def plots(self, found: Found) -> tuple[Plot, ...]:
        rows = found.rows
        places = tuple(count(row["step"]) for row in rows)
        xs = tuple(float(row["step"]) for row in rows)
        last = max(xs) if found.is_whole else max([24.0, *xs])
        mb = tuple(scaled(row["cache_bytes"], 1e-6) for row in rows)
        return (
            Plot(
                _tr("Size of the cache"),
                "MB",
                PlotKind.LINES,
                places,
                (Series(_tr("cache"), ("16bit",), mb),),
                xs=xs,
                x_range=(1.0, last),
                x_title=_tr("step"),
            ),
            Plot(
                _tr("Time of a step"),
                "ms",
                PlotKind.LINES,
                places,
                (Series(_tr("time"), ("int8",), column(rows, "ms")),),
                xs=xs,
                x_range=(1.0, last),
                x_title=_tr("step"),
            ),
        )

    def tables(self, found: Found) -> tuple[Table, ...]:
        heads = (
            _tr("Step"),
            _tr("Tokens read"),
            _tr("Time"),
            _tr("Tokens in the cache"),
            _tr("Cache"),
            _tr("Token chosen"),
            _tr("Probability"),
        )
        rows = tuple(
            (
                count(row["step"]),
                count(row["fed"]),
                milliseconds(row["ms"]),
                count(row["cache_tokens"]),
                numbers.size(row["cache_bytes"]),
                token_words(row["text"]),
                percent(row["best"][0]["probability"], 1),
            )
            for row in found.rows
        )
        return (Table("", heads, rows, frozenset({5})),)
