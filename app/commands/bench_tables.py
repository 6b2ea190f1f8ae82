"""What the cache lab's experiments have found, for a person at a terminal: a table each, and a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.commands.fidelity_table import fidelity_lines
from app.commands.table import aligned
from engine.protocol.commands import BenchName

_NOTHING = "-"
_MIB = 2**20
Row = Mapping[str, Any]
Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Column:
    """`form`: how a number is written; "MiB" for bytes, "text" for words."""

    head: str
    key: str
    form: str = "text"

    def cell(self, row: Row) -> str:
        value = row.get(self.key)
        if value is None:
            return _NOTHING
        if self.form == "text":
            return str(value)
        if self.form == "MiB":
            return f"{value / _MIB:,.1f} MiB"
        return format(value, self.form)


_COLUMNS: dict[BenchName, tuple[_Column, ...]] = {
    BenchName.USE_CACHE: (
        _Column("tokens", "length", ",d"),
        _Column("without, ms", "without_ms", ",.1f"),
        _Column("with, ms", "with_ms", ",.1f"),
        _Column("factor", "factor", ",.1f"),
        _Column("as replies run, ms", "as_replies_run_ms", ",.1f"),
        _Column("factor", "factor_as_replies_run", ",.1f"),
        _Column("cache", "kv_bytes", "MiB"),
    ),
    BenchName.MEMORY: (
        _Column("kept as", "scheme"),
        _Column("allocated", "allocated_bytes", "MiB"),
        _Column("used", "used_bytes", "MiB"),
        _Column("waste", "waste_ratio", ".2%"),
        _Column("chats a GiB", "chats_per_gib", ",.1f"),
        _Column("computed", "computed_chats", ",d"),
    ),
    BenchName.LOOP: (
        _Column("step", "step", "d"),
        _Column("fed", "fed", ",d"),
        _Column("ms", "ms", ",.1f"),
        _Column("cached", "cache_tokens", ",d"),
        _Column("bytes", "cache_bytes", ",d"),
    ),
    BenchName.PRECISIONS: (
        _Column("precision", "scheme"),
        _Column("bytes a token", "bytes_per_token", ",.0f"),
        _Column("ratio", "ratio", ".3f"),
        _Column("tok/s", "decode_tps", ",.1f"),
        _Column("speed", "decode_ratio", ".2f"),
        _Column("KL", "kl", ".1e"),
        _Column("top-1", "top1", ".1%"),
        _Column("differs at", "first_difference", "d"),
    ),
    BenchName.ATTENTION: (
        _Column("back end", "backend"),
        _Column("phase", "phase"),
        _Column("tokens", "length", ",d"),
        _Column("ms", "ms", ",.3f"),
        _Column("from math", "max_difference", ".1e"),
        _Column("threads", "threads", "d"),
    ),
    BenchName.SHARED_PREFIX: (
        _Column("chat", "chat", "d"),
        _Column("kept once", "sharing"),
        _Column("prompt", "prompt_tokens", ",d"),
        _Column("fed", "tokens_fed", ",d"),
        _Column("first token, s", "ttft_s", ",.3f"),
        _Column("all chats", "memory_bytes", "MiB"),
    ),
    BenchName.HEADS: (
        _Column("kind", "kind"),
        _Column("KV heads", "kv_heads", "d"),
        _Column("bytes a token", "bytes_per_token", ",d"),
        _Column("times MQA", "multiple_of_mqa", "d"),
        _Column("cache", "cache_bytes", "MiB"),
        _Column("decode, ms", "decode_ms", ",.2f"),
    ),
    BenchName.KVZIP: (
        _Column("kept", "keep_percent", "d"),
        _Column("bytes", "bytes", "MiB"),
        _Column("ratio", "ratio_whole", ".3f"),
        _Column("recalled", "recalled", "d"),
        _Column("of", "asked", "d"),
        _Column("tok/s", "decode_tps", ",.1f"),
        _Column("speed", "decode_ratio", ".2f"),
    ),
    BenchName.PREFILL_DECODE: (
        _Column("tokens", "length", ",d"),
        _Column("prefill tok/s", "prefill_tps", ",.1f"),
        _Column("decode tok/s", "decode_tps", ",.1f"),
        _Column("times", "ratio", ",.1f"),
        _Column("ops a byte", "prefill_intensity", ",.1f"),
        _Column("in decode", "decode_intensity", ",.2f"),
        _Column("GFLOP/s", "prefill_gflops_per_s", ",.0f"),
        _Column("GB/s in decode", "decode_gb_per_s", ",.1f"),
    ),
}


def bench_lines(name: BenchName, result: Result) -> Iterator[str]:
    """A table where there are rows, else a line a number."""
    if "rows" not in result:
        for key, value in result.items():
            yield f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}"
        return
    if name is BenchName.FIDELITY:
        yield from fidelity_lines(result)
        return
    rows = result["rows"]
    columns = _COLUMNS[name]
    shown = [row for row in rows if not row.get("error")]
    table = [[column.head for column in columns], *([column.cell(row) for column in columns] for row in shown)]
    if name is BenchName.LOOP:
        yield from _loop_lines(table, shown)
    else:
        yield from aligned(table, left=(0, 1) if name is BenchName.ATTENTION else (0,))
    yield from _failed(name, rows)
    words = _WORDS.get(name)
    if words is not None:
        yield ""
        yield from words(result)


def _loop_lines(table: list[list[str]], rows: list[Row]) -> Iterator[str]:
    heads, *numbers = aligned(table)
    yield f"{heads}  best five"
    for line, row in zip(numbers, rows, strict=True):
        best = ", ".join(f"{one['text']!r} {_percent(one['probability'])}" for one in row["best"])
        yield f"{line}  {best}"


def _failed(name: BenchName, rows: list[Row]) -> Iterator[str]:
    """Why there are no numbers; once, where it is the same at every length."""
    told: set[str] = set()
    for row in rows:
        if row.get("error"):
            what = f"{row['backend']} ({row['phase']})" if name is BenchName.ATTENTION else row["scheme"]
            line = f"{what}: {row['error']}"
            if line not in told:
                told.add(line)
                yield line


def _use_cache(result: Result) -> Iterator[str]:
    table = [["", "without a cache", "with the cache"]]
    table += [[_WHATS[one["what"]], _short(one["without"]), _short(one["with"])] for one in result["table"]]
    yield f"At {result['context']:,} tokens:"
    yield from aligned(table)
    yield ""
    for key, words in (("without", "without"), ("with", "with"), ("as_replies_run", "as replies run")):
        line = result["fits"][key]
        if line is None:
            continue
        r2 = _NOTHING if line["r2"] is None else f"{line['r2']:.3f}"
        growth = _NOTHING if line["growth"] is None else f"{line['growth']:.2f}"
        yield (
            f"Fit, {words}: {line['intercept']:.1f} ms {line['slope'] * 1000:+,.1f} us for every token cached"
            f" (r2 {r2}, spread {line['spread']:.1f} ms), x {growth} from the shortest to the longest."
        )
    yield f"Factor at {result['context']:,} tokens: {_short(result['factor'])} in the same arithmetic."
    if result["factor_as_replies_run"] is not None:
        yield f"As replies run, with the compiled step: {_short(result['factor_as_replies_run'])}."
    same = result["same_tokens"]
    equal = "the same" if same["equal"] else f"different from number {same['first_difference']} on"
    yield (
        f"The next {same['tokens_compared']} greedy tokens both ways in {same['arithmetic']}: {equal}"
        f" (largest difference of a logit {_short(same['max_logit_error'])})."
    )


_WHATS = {
    "work_per_token": "tokens fed for a new one",
    "scores_per_token": "scores a head for a new one",
    "first_token": "time to first token, s",
    "time_per_token": "time a token, ms",
    "throughput": "tokens a second",
    "memory_kept": "bytes kept in between",
}


def _memory(result: Result) -> Iterator[str]:
    yield (
        f"{result['chats']} chats of {min(result['lengths']):,} to {result['longest_tokens']:,} tokens, median"
        f" {result['median_tokens']:,.0f}, {result['bytes_per_token']:,} bytes a token; up to {result['context']:,}"
        " may be needed."
    )
    yield "Sizes are those of real tensors; computed: chats too large to be allocated for this."


def _loop(result: Result) -> Iterator[str]:
    yield f"Prompt: {' '.join(result['prompt'].split())}"
    yield f"Reply: {' '.join(result['reply'].split())}"
    yield f"Every step feeds the token before, and adds {result['bytes_per_token']:,} bytes to the cache."


def _precisions(result: Result) -> Iterator[str]:
    yield (
        f"{result['context']:,} tokens cached, the next {result['scored_tokens']} scored in {result['arithmetic']};"
        " KL in nats a token; speed: of the full cache in the same minute."
    )
    for row in result["rows"]:
        if not row.get("error"):
            mark = "" if row["first_difference"] is None else " | "
            words = f"{row['same_text']}{mark}{row['different_text']}"
            yield f"{row['scheme']}: {' '.join(words.split())}"


def _attention(result: Result) -> Iterator[str]:
    yield (
        f"{result['heads']} query heads, {result['kv_heads']} KV heads of {result['head_dim']}, {result['dtype']},"
        f" {result['threads']} threads; differences are from the math back end in float32."
    )


def _shared_prefix(result: Result) -> Iterator[str]:
    apart, shared = result["totals"]["apart"], result["totals"]["shared"]
    yield (
        f"{result['chats']} chats with the same {result['context']:,} tokens at their beginning:"
        f" {apart['tokens_fed']:,} tokens fed apart, {shared['tokens_fed']:,} shared;"
        f" {apart['memory_bytes'] / _MIB:,.1f} MiB against {shared['memory_bytes'] / _MIB:,.1f} MiB;"
        f" later chats' first token after {apart['later_ttft_s']:.3f} s against {shared['later_ttft_s']:.3f} s."
    )


def _heads(result: Result) -> Iterator[str]:
    yield (
        f"{result['layers']} layers, {result['heads']} query heads of {result['head_dim']}, {result['context']:,}"
        " tokens cached; random weights: what heads cost, not what they are worth."
    )


def _kvzip(result: Result) -> Iterator[str]:
    yield f"{result['context']:,} tokens with {len(result['facts'])} facts; kept in percent of all pairs."


def _prefill_decode(result: Result) -> Iterator[str]:
    last = result["rows"][-1]
    if last["prefill_intensity"] is None:
        yield "The weights are packed, so that operations are not counted."
        return
    yield (
        f"Reading computes {last['prefill_intensity']:,.0f} operations for every byte of weights and cache, so the"
        " processor's speed bounds it;"
    )
    yield (f"writing computes {last['decode_intensity']:.1f}, so memory does: all weights are fetched for every token.")


_WORDS: dict[BenchName, Callable[[Result], Iterator[str]]] = {
    BenchName.USE_CACHE: _use_cache,
    BenchName.MEMORY: _memory,
    BenchName.LOOP: _loop,
    BenchName.PRECISIONS: _precisions,
    BenchName.ATTENTION: _attention,
    BenchName.SHARED_PREFIX: _shared_prefix,
    BenchName.HEADS: _heads,
    BenchName.KVZIP: _kvzip,
    BenchName.PREFILL_DECODE: _prefill_decode,
}


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _short(value: Any) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
