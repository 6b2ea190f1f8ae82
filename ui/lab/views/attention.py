"""Every way of attending that runs here: the same result, in different times."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.commands import BenchName
from ui import numbers
from ui.lab.figures import figure, known, milliseconds, threads
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.view import Found, Row, Table, View, column, count, quick

_COLOURS = {
    "math": "int8",
    "efficient": "balanced",
    "flash": "compact",
    "cudnn": "kvzip",
    "eager": "on_disk",
    "ember": "16bit",
    "ember-compiled": "16bit",
}


def _tr(source: str) -> str:
    return QCoreApplication.translate("LabAttention", source)


class AttentionView(View):
    name = BenchName.ATTENTION
    contexts = (256, 512, 1024, 2048)
    usual = 2048

    def title(self) -> str:
        return _tr("Attention kernels")

    def before(self) -> str:
        return _tr(
            "Attention can be computed as the formula has it, writing every score out, or in pieces that never leave "
            "the processor (FlashAttention). The result is the same, the time is not. Here every way that this machine "
            "has is timed in one layer of this model's shape."
        )

    def takes(self) -> str:
        return quick()

    def words(self, found: Found) -> str:
        parts = []
        context = found.result.get("context")
        for phase, words in (
            (
                "prefill",
                _tr("Reading {tokens} tokens, {fastest} is fastest with {fast}, and {slowest} takes {slow}."),
            ),
            ("decode", _tr("Writing one after {tokens}, it is {fastest} with {fast}, and {slowest} takes {slow}.")),
        ):
            rows = sorted(
                (row for row in _longest(found, phase) if known(row["ms"]) is not None),
                key=lambda row: float(row["ms"]),
            )
            if len(rows) > 1:
                parts.append(
                    words.format(
                        tokens=count(context),
                        fastest=backend_words(rows[0]["backend"]),
                        fast=milliseconds(rows[0]["ms"]),
                        slowest=backend_words(rows[-1]["backend"]),
                        slow=milliseconds(rows[-1]["ms"]),
                    )
                )
        errors = [value for row in found.rows if (value := known(row.get("max_difference"))) is not None]
        if errors:
            words = _tr("All agree with the formula in 32 bit to within {difference}.")
            parts.append(words.format(difference=figure(max(errors))))
        return " ".join(parts)

    def plots(self, found: Found) -> tuple[Plot, ...]:
        return (
            self._plot(found, "prefill", _tr("Prefill, one layer")),
            self._plot(found, "decode", _tr("Decode, one layer")),
        )

    def _plot(self, found: Found, phase: str, title: str) -> Plot:
        rows = [row for row in _longest(found, phase) if known(row["ms"]) is not None]
        colours = tuple(_COLOURS.get(row["backend"], "int8") for row in rows) or ("int8",)
        return Plot(
            title,
            "ms",
            PlotKind.BARS,
            tuple(backend_words(row["backend"]) for row in rows),
            (Series(title, colours, column(rows, "ms")),),
            x_title=_tr("{tokens} tokens").format(tokens=count(rows[0]["length"])) if rows else "",
        )

    def tables(self, found: Found) -> tuple[Table, ...]:
        return (
            _table(found, "prefill", _tr("Prefill, time in one layer")),
            _table(found, "decode", _tr("Decode, time in one layer")),
        )


def _table(found: Found, phase: str, title: str) -> Table:
    """A line a way, its times at every length beside one another."""
    rows = [row for row in found.rows if row["phase"] == phase]
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    heads = (
        _tr("Way"),
        *(_tr("{tokens} tokens").format(tokens=count(length)) for length in lengths),
        _tr("Largest difference"),
        _tr("Note"),
    )
    by_way: dict[str, list[Row]] = {}
    for row in rows:
        by_way.setdefault(row["backend"], []).append(row)
    cells = []
    for way, mine in by_way.items():
        times = {row["length"]: row["ms"] for row in mine}
        differences = [value for row in mine if (value := known(row["max_difference"])) is not None]
        used = [row["threads"] for row in mine if known(row["ms"]) is not None]
        cells.append(
            (
                backend_words(way),
                *(milliseconds(times.get(length)) for length in lengths),
                figure(max(differences, default=None)),
                threads(used[-1]) if used else _error_words(mine[-1]["error"]),
            )
        )
    return Table(title, heads, tuple(cells), frozenset({len(lengths)} if lengths else ()))


def _longest(found: Found, phase: str) -> list[Row]:
    rows = [row for row in found.rows if row["phase"] == phase]
    longest = max((row["length"] for row in rows), default=0)
    return [row for row in rows if row["length"] == longest]


def backend_words(backend: str) -> str:
    match backend:
        case "math":
            return _tr("PyTorch, formula")
        case "efficient":
            return _tr("memory-efficient")
        case "flash":
            return "FlashAttention"
        case "cudnn":
            return "cuDNN"
        case "eager":
            return _tr("all scores")
        case "ember":
            return "Ember"
        case "ember-compiled":
            return _tr("Ember, compiled")
    return backend


def _error_words(error: str | None) -> str:
    match error:
        case None:
            return numbers.DASH
        case "needs CUDA":
            return _tr("needs an NVIDIA card")
        case "not for this shape and precision":
            return _tr("not for this model's shape")
        case "not used for reading":
            return _tr("not used for reading")
        case "the scores take too much memory":
            return _tr("the scores take too much memory")
    return _tr("did not run")
