"""All that a run of `make peers` has found, as it is written to a file, and the figures made of it.

A figure is taken over the rounds: the median, or the best. One that an engine does not have is None.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Take(StrEnum):
    MEDIAN = "median"
    BEST = "best"


class Unit(StrEnum):
    TOKENS_A_SECOND = "tok/s"
    MILLISECONDS = "ms"
    SECONDS = "s"
    MEGABYTES = "MB"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of every engine. `path`: where it stands in the result of a round."""

    label: str
    unit: Unit
    path: tuple[str, ...]
    is_compared: bool = True

    @property
    def is_more_better(self) -> bool:
        return self.unit is Unit.TOKENS_A_SECOND


@dataclass(slots=True)
class EngineResult:
    """`key` is of the form name-variant; `errors` are of the rounds that failed, wholly or in the end."""

    key: str
    title: str
    rounds: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def is_ember(self) -> bool:
        return self.key.startswith("ember-")

    def figures(self, row: Row) -> list[float]:
        """Of every round that has it."""
        found = [_at(result, row.path) for result in self.rounds]
        return [float(one) for one in found if one is not None]

    def figure(self, row: Row, take: Take) -> float | None:
        figures = self.figures(row)
        if not figures:
            return None
        if take is Take.MEDIAN:
            return statistics.median(figures)
        return max(figures) if row.is_more_better else min(figures)

    def notes(self) -> list[str]:
        """What the rounds have to say, each once."""
        return [*dict.fromkeys(note for result in self.rounds if (note := result.get("note")))]

    def greedy(self) -> Iterator[tuple[str, int]]:
        """The likeliest tokens of the last round: after each prompt, and after each decode step."""
        last = self.rounds[-1] if self.rounds else {}
        for prompt, found in last.get("prefill", {}).items():
            if isinstance(found, dict):
                yield f"prompt {prompt}", found["greedy"]
        for context, found in last.get("decode", {}).items():
            for index, token in enumerate(found["greedy"]):
                yield f"step {context}+{index}", token


@dataclass(slots=True)
class Report:
    machine: dict[str, Any]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    steps: int
    rounds: int
    engines: list[EngineResult] = field(default_factory=list)

    @property
    def longest(self) -> int:
        return max((*self.contexts, *self.prompts))

    def rows(self) -> list[Row]:
        decode = [(f"decode at {n:,}", ("decode", str(n))) for n in self.contexts]
        back = f"back to {self.longest:,} tokens"
        return [
            *(Row(label, Unit.TOKENS_A_SECOND, (*path, "tps")) for label, path in decode),
            *(Row(label, Unit.MILLISECONDS, (*path, "ms"), is_compared=False) for label, path in decode),
            *(Row(f"prefill of {n:,}", Unit.TOKENS_A_SECOND, ("prefill", str(n), "tps")) for n in self.prompts),
            Row(f"{back}: first token", Unit.SECONDS, ("restart", "resumed_ttft_s")),
            Row("of that, restoring", Unit.SECONDS, ("restart", "restore_s")),
            Row("saving them", Unit.SECONDS, ("restart", "save_s")),
            Row("saved", Unit.MEGABYTES, ("restart", "saved_bytes")),
            Row("KV cache per token", Unit.BYTES, ("kv_bytes_per_token",)),
            Row("start of the process to a model ready", Unit.SECONDS, ("start_s",)),
            Row("of that, imports", Unit.SECONDS, ("import_s",), is_compared=False),  # some import while they load
            Row("of that, loading the model", Unit.SECONDS, ("load_s",), is_compared=False),
            Row("memory after loading", Unit.MEGABYTES, ("rss_loaded_bytes",)),
            Row("memory at most", Unit.MEGABYTES, ("rss_peak_bytes",)),
        ]

    def spread(self) -> float:
        """The largest difference between two rounds of a decode speed, relative to its median."""
        rows = [row for row in self.rows() if row.path[0] == "decode" and row.is_compared]
        figures = [found for engine in self.engines for row in rows if (found := engine.figures(row))]
        return max(((max(one) - min(one)) / statistics.median(one) for one in figures), default=0.0)

    def to_json(self) -> str:
        taken = {
            engine.key: {
                f"{row.label}, {row.unit}": {take.value: engine.figure(row, take) for take in Take}
                for row in self.rows()
            }
            for engine in self.engines
        }
        return json.dumps({**asdict(self), "figures": taken}, indent=1)

    @staticmethod
    def from_json(text: str) -> Report:
        fields = json.loads(text)
        del fields["figures"]
        fields["contexts"], fields["prompts"] = tuple(fields["contexts"]), tuple(fields["prompts"])
        fields["engines"] = [EngineResult(**one) for one in fields["engines"]]
        return Report(**fields)


def ratio(mine: float | None, theirs: float | None, row: Row) -> float | None:
    """How many times better `mine` is: faster, sooner or smaller."""
    if not mine or not theirs:
        return None
    return mine / theirs if row.is_more_better else theirs / mine


def _at(result: dict[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = result
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found
