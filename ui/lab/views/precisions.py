"""Fewer bits for the cache: what that saves, and what it does to the predictions."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.commands import BenchName
from ui import numbers
from ui.lab.figures import figure, known, percent, scaled, times
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.view import Found, Row, Table, View, column, count, some_minutes
from ui.memory.precision_words import kind_of


def _tr(source: str) -> str:
    return QCoreApplication.translate("LabPrecisions", source)


class PrecisionsView(View):
    name = BenchName.PRECISIONS
    contexts = (128, 256, 512, 1024)
    usual = 512

    def title(self) -> str:
        return _tr("Precisions")

    def before(self) -> str:
        return _tr(
            "Keys and values can be kept in fewer bits. That saves memory, and changes the predictions a little: KL "
            "says how much, 0 being not at all. Here one text is kept in six precisions, and each answers the same "
            "question."
        )

    def takes(self) -> str:
        return some_minutes()

    def words(self, found: Found) -> str:
        shown = _shown(found)
        smallest = min(
            (row for row in shown if row["scheme"] != "full"), key=lambda row: float(row["ratio"]), default=None
        )
        parts = []
        for row in shown:
            if row["scheme"] in ("int8", "compact") or row is smallest:
                words = _tr("{name} takes {ratio} of the full size, with a KL of {kl} and {speed} the speed.")
                parts.append(
                    words.format(
                        name=scheme_words(row["scheme"]),
                        ratio=percent(row["ratio"]),
                        kl=figure(row["kl"]),
                        speed=times(row["decode_ratio"]),
                    )
                )
        same = sum(row["first_difference"] is None for row in shown if row["scheme"] != "full")
        words = _tr("{same} of {others} reply with the same words as the full cache.")
        parts.append(words.format(same=count(same), others=count(sum(row["scheme"] != "full" for row in shown))))
        return " ".join(parts)

    def plots(self, found: Found) -> tuple[Plot, ...]:
        rows = _shown(found)
        places = tuple(scheme_words(row["scheme"]) for row in rows)
        colours = tuple(kind_of(row["scheme"]) for row in rows) or ("16bit",)

        def bars(title: str, unit: str, values: tuple[float | None, ...]) -> Plot:
            return Plot(title, unit, PlotKind.BARS, places, (Series(title, colours, values),))

        return (
            bars(_tr("Size of a token"), "kB", tuple(scaled(row["bytes_per_token"], 1e-3) for row in rows)),
            bars(_tr("Speed against the full cache"), "×", _ratios(rows)),
            bars(_tr("Change of the predictions"), "KL", column(rows, "kl")),
        )

    def tables(self, found: Found) -> tuple[Table, ...]:
        heads = (
            _tr("Precision"),
            _tr("A token"),
            _tr("Of the full size"),
            _tr("Speed"),
            _tr("Of the full speed"),
            _tr("KL"),
            _tr("Same best token"),
            _tr("Reply differs at"),
        )
        rows = tuple(
            (
                scheme_words(row["scheme"]),
                numbers.size(None if known(row["bytes_per_token"]) is None else round(row["bytes_per_token"])),
                percent(row["ratio"], 1),
                numbers.speed(known(row["decode_tps"])),
                times(None if row["scheme"] == "full" else row["decode_ratio"]),
                figure(row["kl"]),
                percent(row["top1"], 1),
                _tr("nowhere") if row["first_difference"] is None else count(row["first_difference"] + 1),
            )
            for row in _shown(found)
        )
        failed = tuple(
            (scheme_words(row["scheme"]), *[numbers.DASH] * 6, _error_words(str(row["error"])))
            for row in found.rows
            if row.get("error")
        )
        return (Table("", heads, rows + failed, frozenset({2, 5})),)


def _shown(found: Found) -> list[Row]:
    return [row for row in found.rows if not row.get("error")]


def _ratios(rows: list[Row]) -> tuple[float | None, ...]:
    """The full cache is what the others are held against, in turn with each of them."""
    return tuple(1.0 if row["scheme"] == "full" else known(row["decode_ratio"]) for row in rows)


def _error_words(error: str) -> str:
    return _tr("too few tokens") if "too few" in error else _tr("not with this model")


def scheme_words(scheme: str) -> str:
    """The names of the command line; "full" in the window's language."""
    return _tr("full") if scheme == "full" else scheme
