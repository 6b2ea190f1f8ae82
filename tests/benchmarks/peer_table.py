"""A report of `make peers` for a person: plain tables for the terminal, and the table of the README."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.peer_report import EngineResult, Report, Row, Take, Unit, ratio

_MB = 1e6
_NOISY = 0.15  # a spread of the rounds that makes small differences meaningless
_README_ROWS = ("decode", "prefill", "restart", "rss_peak_bytes", "kv_bytes_per_token")
_NOTHING = "-"
_STOCK = "transformers-bf16"


def lines(report: Report, take: Take) -> list[str]:
    """Everything, in plain text."""
    rows = report.rows()
    engines = report.engines
    table = [["", *(engine.title for engine in engines)]]
    table += [[f"{row.label}, {row.unit}", *(_cell(engine, row, take) for engine in engines)] for row in rows]
    found = [*_aligned(table), "", *_ratio_lines(report, rows, take), *greedy_lines(report)]
    if report.rounds > 1:
        words = "; too much for small differences" if report.spread() > _NOISY else ""
        found.append(f"{take.value} of {report.rounds} rounds, which differ by up to {report.spread():.0%}{words}")
    found += [f"{engine.title}: {note}" for engine in engines for note in engine.notes()]
    return found + [f"{engine.title}: {error}" for engine in engines for error in engine.errors]


def greedy_lines(report: Report) -> list[str]:
    """Whether the likeliest token is the one that transformers finds: after the prompts, and after every step."""
    stock = next((dict(engine.greedy()) for engine in report.engines if engine.key == _STOCK), {})
    found = []
    for engine in report.engines:
        mine = dict(engine.greedy())
        shared = [where for where in mine if where in stock]
        if engine.key == _STOCK or not shared:
            continue
        same = [where for where in shared if mine[where] == stock[where]]
        prompts = [where for where in shared if where.startswith("prompt")]
        others = [where.removeprefix("prompt ") for where in prompts if where not in same]
        verdict = f"differs after {', '.join(others)}" if others else "equals that of transformers after every prompt"
        num_steps = len(shared) - len(prompts)
        num_same = sum(where.startswith("step") for where in same)
        found.append(f"{engine.title}: the greedy token {verdict}, and after {num_same} of {num_steps} decode steps")
    return found


def readme_lines(report: Report, take: Take) -> list[str]:
    """A Markdown table of what matters to a person, and what it was measured on."""
    engines = [engine for engine in report.engines if engine.rounds]
    machine = report.machine
    rows = [row for row in report.rows() if row.path[0] in _README_ROWS and _is_for_readme(row)]
    taken = f"the {take.value} of {report.rounds} rounds in turn" if report.rounds > 1 else "one round"
    has_llama_cpp = any(engine.key.startswith("llama-") for engine in engines)
    found = [
        f"Measured with `make peers` on {machine['cores']} cores ({machine['cpu']}), {machine['threads']} threads: one",
        f"engine at a time, {taken}.",
        *(["All have the same weights, llama.cpp in Q4_1; f16 and q8_0 are its caches."] if has_llama_cpp else []),
        "",
        "| |" + "".join(f" {engine.title} |" for engine in engines),
        "|---|" + "--:|" * len(engines),
    ]
    for row in rows:
        cells = [_cell(engine, row, take) for engine in engines]
        if set(cells) != {_NOTHING}:
            found.append(f"| {row.label}, {row.unit} |" + "".join(f" {cell} |" for cell in cells))
    versions = machine["versions"]
    names = [f"{name} {versions[name]}" for name in ("torch", "transformers", "llama-cpp-python") if name in versions]
    return [*found, "", f"With {', '.join(names)}."]


def _is_for_readme(row: Row) -> bool:
    return row.unit is not Unit.MILLISECONDS and row.path[-1] not in ("restore_s", "saved_bytes")


def _ratio_lines(report: Report, rows: Sequence[Row], take: Take) -> list[str]:
    """How many times better Ember is than each peer; a table for each precision of its weights."""
    peers = [engine for engine in report.engines if not engine.is_ember and engine.rounds]
    found: list[str] = []
    for ember in (engine for engine in report.engines if engine.is_ember and engine.rounds):
        table = [[f"{ember.title}: times better than", *(peer.title for peer in peers)]]
        for row in rows:
            ratios = [ratio(ember.figure(row, take), peer.figure(row, take), row) for peer in peers]
            if row.is_compared and any(ratios):
                table.append([row.label, *(_NOTHING if one is None else f"{one:.2f}" for one in ratios)])
        found += [*_aligned(table), ""] if peers else []
    return found


def _cell(engine: EngineResult, row: Row, take: Take) -> str:
    figure = engine.figure(row, take)
    if figure is None:
        return _NOTHING
    match row.unit:
        case Unit.BYTES:
            return f"{figure:,.0f}"
        case Unit.MEGABYTES:
            return f"{figure / _MB:,.0f}"
        case Unit.SECONDS:
            return f"{figure:.3f}" if figure < 1 else f"{figure:.2f}"
        case Unit.MILLISECONDS | Unit.TOKENS_A_SECOND:
            return f"{figure:.1f}"


def _aligned(table: list[list[str]]) -> list[str]:
    """The first column to the left, the others to the right; a title of two words stands in two lines."""
    (corner, *titles), *body = table
    heads = [
        [corner, *(title.partition(" ")[0] for title in titles)],
        ["", *(title.partition(" ")[2] for title in titles)],
    ]
    widths = [max(map(len, column)) for column in zip(*heads, *body, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (*heads, *body)
    ]
