"""What `ember bench fidelity` has measured, for a person: one row a scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.commands.table import aligned

_NOTHING = "-"
HEADS = ("scheme", "of 16 bit", "whole", "KL", "top-1", "ppl", "recall", "tok/s", "speed", "at rest", "active", "peak")


def cells(row: Mapping[str, Any]) -> list[str]:
    """One row; "-" for what it has not."""
    recall = f"{row['recalled']}/{row['asked']}" if row["asked"] else _NOTHING
    return [
        row["scheme"],
        _number(row["ratio"], ".3f"),
        _number(row["ratio_whole"], ".3f"),
        _number(row["kl"], ".1e") if row["kl"] else _number(row["kl"], ".0f"),
        _number(row["top1"], ".1%"),
        _number(row["ppl_delta"], "+.3f"),
        recall,
        _number(row["decode_tps"], ".1f"),
        _number(row["decode_ratio"], ".2f"),
        *(_megabytes(row[name]) for name in ("steady_bytes", "active_bytes", "peak_bytes")),
    ]


def fidelity_lines(result: Mapping[str, Any]) -> list[str]:
    """An aligned table, what its columns mean, and why rows are missing."""
    rows = result["rows"]
    failed = [row for row in rows if row.get("error")]
    table = [list(HEADS), *(cells(row) for row in rows if not row.get("error"))]
    return [*aligned(table), *(f"{row['scheme']}: {row['error']}" for row in failed), "", *legend(result)]


def legend(result: Mapping[str, Any]) -> list[str]:
    """What was measured, in a few sentences, a line each."""
    found = [
        f"{result['model']}: {result['context']:,} tokens cached, the next {result['scored_tokens']:,} scored, in each"
        f" of {len(result['texts'])} texts. KL in nats a token; ppl: perplexity less that of the full cache.",
        f"Speed and memory at {result['decode_context']:,} tokens; the full cache's speed in the same minute is 1.",
    ]
    if result["recall_contexts"]:
        lengths = " and ".join(f"{length:,}" for length in result["recall_contexts"])
        left_out = sum(entry["left_out"] for entry in _entries(result["rows"]))
        words = f"; {left_out} that the full cache does not recall are left out" if left_out else ""
        found.append(f"Recall: facts planted in {lengths} tokens, at 10, 30, 50, 70 and 90 %{words}.")
    if result["noise_floor_kl"] is not None:
        noise = f"KL {result['noise_floor_kl']:.1e}"
        if result.get("arithmetic") == "float32":
            found.append(f"KL, top-1 and ppl in float32 arithmetic; replies run in 16 bits, which costs {noise} more.")
        else:
            found.append(f"The full cache, fed in one pass instead of token by token: {noise}.")
    return found


def _entries(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return next((row["recall_by_context"] for row in rows if not row.get("error")), [])


def _number(value: float | None, form: str) -> str:
    return _NOTHING if value is None else format(value, form)


def _megabytes(value: int | None) -> str:
    return _NOTHING if value is None else f"{value / 2**20:.1f} MiB"
