"""Contiguous buffers against blocks: what a mix of chats holds beyond what it needs."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.commands import BenchName
from ui import numbers
from ui.lab.figures import figure, percent, scaled
from ui.lab.plot_data import Plot, PlotKind, Series
from ui.lab.view import Found, Table, View, count, quick


def _tr(source: str) -> str:
    return QCoreApplication.translate("LabMemory", source)


class MemoryView(View):
    name = BenchName.MEMORY
    contexts = (1024, 2048, 4096, 8192)
    usual = 8192

    def title(self) -> str:
        return _tr("Blocks and waste")

    def before(self) -> str:
        return _tr(
            "A chat's cache can lie in one piece, as large as the chat might ever get, or in blocks that are added as "
            "it grows. Here fifty chats, most of them short and a few very long, are laid out each way with this "
            "model's shapes, and what is held beyond need is counted."
        )

    def takes(self) -> str:
        return quick()

    def context_words(self) -> str:
        return _tr("Room for a whole chat")

    def words(self, found: Found) -> str:
        rows = {row["scheme"]: row for row in found.rows}
        whole, paged = rows.get("contiguous-whole"), rows.get("paged-32")
        if whole is None or paged is None:
            return ""
        words = _tr(
            "{chats} chats of {tokens} tokens in all need {used}. With {context} tokens set aside for each, "
            "{whole} are held and {whole_waste} of that is waste; in blocks of 32 tokens it is {paged}, "
            "{paged_waste} of it waste."
        ).format(
            chats=count(whole["chats"]),
            tokens=count(found.result.get("tokens")),
            used=numbers.size(whole["used_bytes"]),
            context=count(found.result.get("context")),
            whole=numbers.size(whole["allocated_bytes"]),
            whole_waste=percent(whole["waste_ratio"], 1),
            paged=numbers.size(paged["allocated_bytes"]),
            paged_waste=percent(paged["waste_ratio"], 1),
        )
        if any(row["computed_chats"] for row in found.rows):
            words += " " + _tr("Chats too large to be laid out for this were computed instead.")
        return words

    def plots(self, found: Found) -> tuple[Plot, ...]:
        rows = found.rows
        return (
            Plot(
                _tr("Memory held"),
                "MB",
                PlotKind.STACKED,
                tuple(_short_scheme(row["scheme"]) for row in rows),
                (
                    Series(_tr("used"), ("16bit",), tuple(scaled(row["used_bytes"], 1e-6) for row in rows)),
                    Series(_tr("waste"), ("on_disk",), tuple(scaled(row["waste_bytes"], 1e-6) for row in rows)),
                ),
            ),
        )

    def tables(self, found: Found) -> tuple[Table, ...]:
        heads = (
            _tr("Kept as"),
            _tr("Held"),
            _tr("Used"),
            _tr("Waste"),
            _tr("Share"),
            _tr("Chats in a GiB"),
            _tr("How"),
        )
        rows = tuple(
            (
                _scheme(row["scheme"]),
                numbers.size(row["allocated_bytes"]),
                numbers.size(row["used_bytes"]),
                numbers.size(row["waste_bytes"]),
                percent(row["waste_ratio"], 1),
                figure(row["chats_per_gib"]),
                _how(row["is_measured"], row["computed_chats"]),
            )
            for row in found.rows
        )
        return (Table("", heads, rows, frozenset({4})),)


def _how(is_measured: bool, num_computed: int) -> str:
    return _tr("measured") if is_measured else _tr("{count} computed").format(count=count(num_computed))


def _short_scheme(scheme: str) -> str:
    match scheme:
        case "contiguous-whole":
            return _tr("one piece")
        case "contiguous-doubling":
            return _tr("doubling")
        case "ember-active":
            return _tr("Ember, in use")
        case "ember-parked":
            return _tr("Ember, at rest")
    if scheme.startswith("paged-"):
        return _tr("blocks of {tokens}").format(tokens=scheme.removeprefix("paged-"))
    return scheme


def _scheme(scheme: str) -> str:
    match scheme:
        case "contiguous-whole":
            return _tr("One piece, for the longest chat")
        case "contiguous-doubling":
            return _tr("One piece that doubles")
        case "ember-active":
            return _tr("Ember, a chat in use")
        case "ember-parked":
            return _tr("Ember, a chat at rest")
    if scheme.startswith("paged-"):
        return _tr("Blocks of {tokens} tokens").format(tokens=scheme.removeprefix("paged-"))
    return scheme
