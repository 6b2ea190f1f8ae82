"""What a page of the lab shows of its experiment: words, plots and tables made from the engine's rows.

No view computes a figure that the engine did not tell, but for units, and none keeps anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PySide6.QtCore import QCoreApplication, QLocale

from engine.protocol.commands import BenchName
from ui.lab.plot_data import Plot

Row = Mapping[str, Any]


def _tr(source: str) -> str:
    return QCoreApplication.translate("Lab", source)


@dataclass(frozen=True, slots=True)
class Table:
    """`heads` above `rows`; the first column names the row. `strong`: the columns that matter most."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of a measurement: its rows so far and, at its end, the whole result."""

    rows: Sequence[Row] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    context: int | None = None

    @property
    def is_whole(self) -> bool:
        return bool(self.result)


class View(ABC):
    """`contexts`: the lengths to choose from. `usual`: what the engine takes by itself; None for no choice.

    `is_bound_by_model`: no length may be longer than the loaded model reads.
    """

    name: BenchName
    contexts: tuple[int, ...] = ()
    usual: int | None = None
    is_bound_by_model = True

    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def before(self) -> str:
        """What will be measured, and what for."""

    @abstractmethod
    def takes(self) -> str:
        """How long, in a sentence."""

    @abstractmethod
    def words(self, found: Found) -> str:
        """What was found, with its numbers; only of a whole result."""

    @abstractmethod
    def plots(self, found: Found) -> tuple[Plot, ...]: ...

    @abstractmethod
    def tables(self, found: Found) -> tuple[Table, ...]: ...

    def context_words(self) -> str:
        """What the length is of."""
        return _tr("Length")


def count(value: object) -> str:
    """A whole number in the locale's digits; a dash for none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–"
    return QLocale().toString(round(value))


def column(rows: Sequence[Row], key: str) -> tuple[float | None, ...]:
    """The numbers of one field, None where a row has none."""
    return tuple(row[key] if isinstance(row.get(key), int | float) else None for row in rows)


def quick() -> str:
    return _tr("It takes some seconds.")


def a_minute() -> str:
    return _tr("It takes about a minute with the default model, and longer with larger ones.")


def some_minutes() -> str:
    return _tr("It takes one to some minutes with the default model, and longer with larger ones.")
