"""Cache on against off: what the articles explain, with this machine's own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QCoreApplication

from engine.protocol.commands import BenchName
from ui import numbers
from ui.lab.figures import figure, known, milliseconds, times
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.view import Found, Table, View, a_minute, column, count

_WORTH = 1.05  # times as fast, from where on it is called faster
_FLAT = 0.1  # of the length's growth, up to which a time is called nearly flat


def _tr(source: str) -> str:
    return QCoreApplication.translate("LabUseCache", source)


class UseCacheView(View):
    name = BenchName.USE_CACHE
    contexts = (128, 256, 512, 1024, 2048)
    usual = 1024

    def title(self) -> str:
        return _tr("Cache on and off")

    def before(self) -> str:
        return _tr(
            "Without a cache the model reads the whole chat again for every token it writes, so that it gets slower as "
            "the chat grows. With one it reads the new token only. Here the time of a token is measured at five "
            "lengths, both ways."
        )

    def takes(self) -> str:
        return a_minute()

    def words(self, found: Found) -> str:
        result, last = found.result, found.rows[-1]
        parts = [
            _tr(
                "Without a cache the model reads all {fed} tokens again for the next one; with it, one. At {tokens} "
                "tokens that takes {without} against {with_cache}."
            ).format(
                fed=count(last["without_fed"]),
                tokens=count(last["length"]),
                without=milliseconds(last["without_ms"]),
                with_cache=milliseconds(last["with_ms"]),
            ),
            _factor_words(result.get("factor")),
        ]
        fits = result.get("fits", {})
        without, with_cache = _growth(fits.get("without")), _growth(fits.get("with"))
        if without is not None and with_cache is not None:
            words = _tr(
                "From {shortest} to {longest} tokens, {length} the length, the line through the times grows {without} "
                "without a cache and {with_cache} with it."
            )
            parts.append(
                words.format(
                    shortest=count(found.rows[0]["length"]),
                    longest=count(last["length"]),
                    length=times(_plain(last["length"] / found.rows[0]["length"])),
                    without=times(without),
                    with_cache=times(with_cache),
                )
            )
        if known(last.get("as_replies_run_ms")) is not None:
            words = _tr("As replies run in Ember, with a step compiled for this machine, a token takes {time}.")
            parts.append(words.format(time=milliseconds(last["as_replies_run_ms"])))
        parts.append(_same_words(result.get("same_tokens")))
        return " ".join(part for part in parts if part)

    def plots(self, found: Found) -> tuple[Plot, ...]:
        rows = found.rows
        xs = column(rows, "length")
        lengths = tuple(float(x) for x in xs if x is not None)
        series = [
            Series(_tr("without a cache"), ("int8",), column(rows, "without_ms")),
            Series(_tr("with the cache"), ("16bit",), column(rows, "with_ms")),
        ]
        if any(known(row.get("as_replies_run_ms")) is not None for row in rows):
            series.append(Series(_tr("as replies run"), ("balanced",), column(rows, "as_replies_run_ms")))
        fits = found.result.get("fits") or {}
        for key, colour, name in (
            ("without", "int8", _tr("fit, without")),
            ("with", "16bit", _tr("fit, with")),
        ):
            line = fits.get(key)
            if line:
                values = tuple(line["intercept"] + line["slope"] * x for x in lengths)
                series.append(Series(name, (colour,), values, is_fit=True))
        factor = found.result.get("factor")
        longest = max([*lengths, float(found.context or self.usual or 0)])
        return (
            Plot(
                _tr("Time per token"),
                "ms",
                PlotKind.LINES,
                tuple(count(x) for x in lengths),
                tuple(series),
                xs=lengths,
                x_range=(0.0, longest),
                x_title=_tr("tokens so far"),
                note=times(factor) if known(factor) is not None else "",
            ),
        )

    def tables(self, found: Found) -> tuple[Table, ...]:
        by_length = Table(
            _tr("By length"),
            (
                _tr("Tokens"),
                _tr("Without a cache"),
                _tr("With the cache"),
                _tr("Factor"),
                _tr("As replies run"),
                _tr("Cache"),
            ),
            tuple(
                (
                    count(row["length"]),
                    milliseconds(row["without_ms"]),
                    milliseconds(row["with_ms"]),
                    times(row["factor"]),
                    milliseconds(row.get("as_replies_run_ms")),
                    numbers.size(row["kv_bytes"]),
                )
                for row in found.rows
            ),
            frozenset({3}),
        )
        if not found.is_whole:
            return (by_length,)
        return (self._differences(found), by_length)

    def _differences(self, found: Found) -> Table:
        rows = [
            (_what(row["what"], found.context), _value(row, "without"), _value(row, "with"))
            for row in found.result.get("table", [])
        ]
        fits = found.result.get("fits", {})
        without, with_cache = fits.get("without"), fits.get("with")
        shortest, longest = found.rows[0]["length"], found.rows[-1]["length"]
        rows.append((_tr("Growth with length, a fit"), _fit_words(without), _fit_words(with_cache)))
        words = _tr("From {shortest} to {longest} tokens").format(shortest=count(shortest), longest=count(longest))
        ratio = longest / shortest
        rows.append((words, _growth_words(without, ratio), _growth_words(with_cache, ratio)))
        return Table("", ("", _tr("Without a cache"), _tr("With the cache")), tuple(rows), frozenset({2}))


def _factor_words(factor: object) -> str:
    number = known(factor)
    if number is None:
        return ""
    if number < _WORTH:
        return _tr("At so short a length a cache gains nothing.")
    return _tr("The cache makes it {factor} as fast.").format(factor=times(number))


def _growth(line: Mapping[str, Any] | None) -> float | None:
    return known(line.get("growth")) if line else None


def _same_words(same: Mapping[str, Any] | None) -> str:
    if not same:
        return ""
    if same["equal"]:
        return _tr("Both ways chose the same {count} tokens.").format(count=count(same["tokens_compared"]))
    words = _tr("Of {count} tokens chosen both ways, number {number} is the first that differs.")
    return words.format(count=count(same["tokens_compared"]), number=count(same["first_difference"] + 1))


def _what(what: str, context: int | None) -> str:
    match what:
        case "work_per_token":
            return _tr("Tokens read for a new one")
        case "scores_per_token":
            return _tr("Keys compared for a new one, a head")
        case "first_token":
            return _tr("Time to the first token")
        case "time_per_token":
            return _tr("Time per token at {tokens}").format(tokens=count(context))
        case "throughput":
            return _tr("Throughput")
        case "memory_kept":
            return _tr("Memory of the cache")
    return what


def _value(row: Mapping[str, Any], side: str) -> str:
    value = row[side]
    match row["what"]:
        case "first_token":
            return numbers.seconds(known(value))
        case "time_per_token":
            return milliseconds(value)
        case "throughput":
            return numbers.speed(known(value))
        case "memory_kept":
            return numbers.size(value)
    return count(value)


def _fit_words(line: Mapping[str, Any] | None) -> str:
    slope = known(line["slope"]) if line else None
    if not line or slope is None:
        return numbers.DASH
    shown = ("+" if slope >= 0 else "") + figure(slope)
    return _tr("{slope} ms a token (r² {r2})").format(slope=shown, r2=figure(line.get("r2")))


def _growth_words(line: Mapping[str, Any] | None, length_ratio: float) -> str:
    growth = _growth(line)
    if growth is None:
        return numbers.DASH
    is_flat = growth - 1 < _FLAT * (length_ratio - 1)
    return (_tr("nearly flat, {factor}") if is_flat else _tr("grows {factor}")).format(factor=times(growth))


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value
