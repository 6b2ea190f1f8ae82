"""Chats that begin alike: read and kept four times, or once."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.commands import BenchName
from ui import numbers
from ui.lab.figures import known, scaled
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.view import Found, Row, Table, View, a_minute, column, count


def _tr(source: str) -> str:
    return QCoreApplication.translate("LabSharedPrefix", source)


class SharedPrefixView(View):
    name = BenchName.SHARED_PREFIX
    contexts = (128, 256, 512, 1024)
    usual = 512

    def title(self) -> str:
        return _tr("Shared beginnings")

    def before(self) -> str:
        return _tr(
            "Chats with the same instructions begin with the same tokens. Ember keeps such a beginning once for all of "
            "them, and reads it once. Here four chats are opened, first each by itself and then sharing."
        )

    def takes(self) -> str:
        return a_minute()

    def context_words(self) -> str:
        return _tr("Shared tokens")

    def words(self, found: Found) -> str:
        totals = found.result.get("totals", {})
        apart, shared = totals.get("apart"), totals.get("shared")
        if not apart or not shared:
            return ""
        return _tr(
            "{chats} chats with the same {context} tokens read {apart} tokens in all by themselves and {shared} when "
            "they share. They hold {apart_size} against {shared_size}, and the later ones' first token comes after "
            "{apart_time} against {shared_time}."
        ).format(
            chats=count(found.result.get("chats")),
            context=count(found.result.get("context")),
            apart=count(apart["tokens_fed"]),
            shared=count(shared["tokens_fed"]),
            apart_size=numbers.size(apart["memory_bytes"]),
            shared_size=numbers.size(shared["memory_bytes"]),
            apart_time=numbers.seconds(known(apart["later_ttft_s"])),
            shared_time=numbers.seconds(known(shared["later_ttft_s"])),
        )

    def plots(self, found: Found) -> tuple[Plot, ...]:
        apart = [row for row in found.rows if not row["sharing"]]
        shared = [row for row in found.rows if row["sharing"]]
        places = tuple(_tr("chat {number}").format(number=count(row["chat"])) for row in apart)

        def bars(title: str, unit: str, key: str, scale: float) -> Plot:
            def values(rows: list[Row]) -> tuple[float | None, ...]:
                found_values = tuple(scaled(value, scale) for value in column(rows, key))
                return found_values + (None,) * (len(places) - len(found_values))

            series = (
                Series(_tr("by itself"), ("int8",), values(apart)),
                Series(_tr("shared"), ("16bit",), values(shared)),
            )
            return Plot(title, unit, PlotKind.BARS, places, series)

        return (
            bars(_tr("Time to the first token"), "s", "ttft_s", 1.0),
            bars(_tr("Memory of all chats so far"), "MB", "memory_bytes", 1e-6),
        )

    def tables(self, found: Found) -> tuple[Table, ...]:
        heads = (
            _tr("Chat"),
            _tr("Way"),
            _tr("Tokens"),
            _tr("Read"),
            _tr("Reused"),
            _tr("First token"),
            _tr("All chats so far"),
        )
        rows = tuple(
            (
                count(row["chat"]),
                _tr("shared") if row["sharing"] else _tr("by itself"),
                count(row["prompt_tokens"]),
                count(row["tokens_fed"]),
                count(row["reused_tokens"]),
                numbers.seconds(known(row["ttft_s"])),
                numbers.size(row["memory_bytes"]),
            )
            for row in found.rows
        )
        return (Table("", heads, rows, frozenset({3})),)
