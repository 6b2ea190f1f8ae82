"""A few long chats visited at random, in a memory budget that holds only some of them; every reply checked.

make visits                                                      (8 chats of 4,000 tokens, 100 visits, 200 MB)
make visits ARGS="--chats 3 --tokens 300 --visits 10 --budget-mb 10"

The default model answers through the real engine twice: within the budget, and once more with memory for everything,
where nothing is ever put away. Ends with 1 if a reply differs, memory went beyond, or sums disagree.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from app.paths import DataPaths, resources_dir
from engine.protocol.commands import ChatMessage, ReportCache, Role
from engine.protocol.config import EngineConfig
from engine.protocol.events import CacheReported, CacheState, PressureActed
from tests.benchmarks.varied_text import question, text_of
from tests.benchmarks.watched_engine import MemorySamples, WatchedEngine, sampled

MB = 1024 * 1024
NO_LIMIT = 2**50
TOLERANCE = 0.01


@dataclass(frozen=True)
class Options:
    chats: int = 8
    tokens: int = 4000
    visits: int = 100
    budget_mb: float = 200
    reply_tokens: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Visit:
    """One turn. `source`: where most of the cache came from, "memory", "disk", or "read" if from nowhere."""

    chat: str
    ttft_s: float
    prompt_tokens: int
    reused_tokens: int
    precision: str
    source: str
    miss_reason: str | None
    miss_code: str | None
    token_ids: tuple[int, ...]
    logits: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Check:
    """Two ways to the same bytes."""

    name: str
    found: int
    expected: int
    tolerance: float = 0.0

    @property
    def is_right(self) -> bool:
        return abs(self.found - self.expected) <= self.tolerance * self.expected


@dataclass(frozen=True)
class Run:
    """All that one engine did: `first` reads every chat once, `visits` follow."""

    budget_bytes: int
    first: list[Visit]
    visits: list[Visit]
    samples: MemorySamples
    pressure: list[PressureActed]
    report: CacheReported
    checks: list[Check]

    @property
    def over_bytes(self) -> int:
        """By how much the tensors exceeded the budget, at the most."""
        return max(0, max(self.samples.memory_bytes, self.samples.tensor_bytes) - self.budget_bytes)


@dataclass(frozen=True)
class Outcome:
    """`differing`: replies with other ids. `inexact`: full-precision replies whose logits are not the same bits."""

    within: Run
    reference: Run
    differing: list[str]
    inexact: list[str]
    num_compared_bits: int

    @property
    def problems(self) -> list[str]:
        found = [f"another reply: {one}" for one in self.differing]
        found += [f"other logits: {one}" for one in self.inexact]
        if self.within.over_bytes > self.within.samples.buffer_bytes:
            found.append(
                f"memory went {self.within.over_bytes:,} bytes over the budget, a working buffer is"
                f" {self.within.samples.buffer_bytes:,}"
            )
        for run, name in ((self.within, "within the budget"), (self.reference, "reference")):
            found += [
                f"sums disagree ({name}): {one.name}: {one.found:,} instead of {one.expected:,}"
                for one in run.checks
                if not one.is_right
            ]
        return found


def measure(options: Options, model: Path, folder: Path, say: Any = lambda text: None) -> Outcome:
    """Both runs, in two data folders below `folder`."""
    within = run(options, model, folder / "within", int(options.budget_mb * MB), say)
    reference = run(options, model, folder / "reference", NO_LIMIT, say)
    return compare(within, reference)


def run(options: Options, model: Path, folder: Path, budget_bytes: int, say: Any = lambda text: None) -> Run:
    """The same chats and the same visits for the same options, whatever the budget."""
    paths = DataPaths(folder)
    engine = WatchedEngine(EngineConfig(paths.kv_dir, folder / "converted", memory_budget_bytes=budget_bytes))
    try:
        loaded = engine.load(model)
        if not hasattr(engine, "caches"):
            raise RuntimeError(f"no model: {loaded}")
        rng = random.Random(options.seed)
        chats = {f"chat-{index}": [_first_message(options, rng, engine)] for index in range(options.chats)}
        with sampled(engine) as samples:
            say(f"{'budget ' + _mb(budget_bytes) if budget_bytes < NO_LIMIT else 'no budget'}: reading ...")
            first = [visit(engine, chat, messages, options) for chat, messages in chats.items()]
            say(f"first tokens after {_seconds(first)}; visiting ...")
            visits = []
            for index in range(options.visits):
                chat = rng.choice(list(chats))
                chats[chat].append(ChatMessage(Role.USER, question(rng)))
                visits.append(visit(engine, chat, chats[chat], options))
                if (index + 1) % 25 == 0:
                    say(f"{index + 1} visits")
        engine.worker.submit(ReportCache("report"))
        report = engine.wait(CacheReported)
        assert isinstance(report, CacheReported)
        checks = memory_checks(engine, report)
    finally:
        engine.close()
    pressure = [event for event in engine.events if isinstance(event, PressureActed)]
    checks += disk_checks(report, folder)
    return Run(budget_bytes, first, visits, samples, pressure, report, checks)


def visit(engine: WatchedEngine, chat: str, messages: list[ChatMessage], options: Options) -> Visit:
    finished, watch = engine.turn(chat, messages, options.reply_tokens)
    stats = finished.statistics
    from_memory = stats.reused_tokens - watch.restored_tokens
    source = "disk" if watch.restored_tokens > from_memory else "memory" if from_memory else "read"
    return Visit(
        chat=chat,
        ttft_s=stats.ttft_s or 0.0,
        prompt_tokens=stats.prompt_tokens,
        reused_tokens=stats.reused_tokens,
        precision=stats.cache.precision,
        source=source,
        miss_reason=stats.miss_reason,
        miss_code=stats.miss_code,
        token_ids=finished.token_ids,
        logits=watch.logits,
    )


def compare(within: Run, reference: Run) -> Outcome:
    """Ids of all replies; logits, bit by bit, of those whose whole chat was computed in the same steps.

    A chat read again, or quantized, was computed otherwise from then on, and one whose reply differed has another
    history: the latter is not compared any further.
    """
    differing: list[str] = []
    inexact: list[str] = []
    lost: set[str] = set()
    rounded: set[str] = set()
    num_compared_bits = 0
    pairs = zip([*within.first, *within.visits], [*reference.first, *reference.visits], strict=True)
    for index, (mine, theirs) in enumerate(pairs):
        if mine.chat in lost:
            continue
        where = f"turn {index} of {mine.chat} ({mine.source}, {mine.precision}, {mine.reused_tokens:,} tokens reused)"
        if mine.token_ids != theirs.token_ids:
            lost.add(mine.chat)
            differing.append(f"{where}: {list(mine.token_ids)} instead of {list(theirs.token_ids)}")
        if mine.reused_tokens != theirs.reused_tokens or mine.precision != theirs.precision:
            rounded.add(mine.chat)
        if mine.chat not in rounded:
            num_compared_bits += 1
            if mine.logits != theirs.logits:
                inexact.append(where)
    return Outcome(within, reference, differing, inexact, num_compared_bits)


def memory_checks(engine: WatchedEngine, report: CacheReported) -> list[Check]:
    """What the engine reports against the process's own tensors. The engine must be at rest."""
    warm = [one for one in report.conversations if one.state is CacheState.WARM]
    own = sum(one.memory_bytes - one.shared_bytes for one in warm)
    shared = report.shared_bytes if any(one.shared_bytes for one in warm) else 0
    return [
        Check("memory against tensors", report.memory_bytes, engine.cache_tensor_bytes(), TOLERANCE),
        Check("chats in memory against their total", own + shared + report.spare_bytes, report.memory_bytes),
    ]


def disk_checks(report: CacheReported, folder: Path) -> list[Check]:
    """What `ember cache --json` says, in a process of its own, against the files and the engine's last word."""
    output = subprocess.run(
        [sys.executable, "-m", "app", "--data-dir", str(folder), "cache", "--json"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    ).stdout
    cache = json.loads(output)
    kv_dir = DataPaths(folder).kv_dir
    files = [*kv_dir.glob("*/chunks/*/*"), *kv_dir.glob("*/states/*/*"), *kv_dir.glob("*/conversations/*")]
    on_disk = sum(file.stat().st_size for file in files)
    chats = sum(one["disk_bytes"] - one["shared_bytes"] for one in cache["conversations"])
    return [
        Check("ember cache against files", cache["disk_bytes"], on_disk),
        Check("engine's report against files", report.disk_bytes, on_disk),
        Check("chats on disk against their total", chats + cache["shared_bytes"], cache["disk_bytes"]),
    ]


def lines(outcome: Outcome) -> list[str]:
    """The outcome for a person."""
    run, samples = outcome.within, outcome.within.samples
    sources = Counter(one.source for one in run.visits)
    precisions = Counter(one.precision for one in run.visits)
    misses = Counter(one.miss_reason for one in run.visits if one.miss_reason)
    lengths = [one.prompt_tokens for one in run.visits]
    found = [
        f"budget {_mb(run.budget_bytes)}; largest seen in {samples.count:,} samples:"
        f" counted {_mb(samples.memory_bytes)}, all tensors {_mb(samples.tensor_bytes)}:"
        f" {_mb(run.over_bytes)} over the budget (allowed: one working buffer, {_mb(samples.buffer_bytes)})",
        f"  {samples.worst}",
        f"process: {_mb(samples.rss_before_bytes)} with the model, at most {_mb(samples.rss_bytes)}",
        f"first token of a visit after {_seconds(run.visits)} ({min(lengths, default=0):,} to"
        f" {max(lengths, default=0):,} tokens)",
        *(
            f"  from {source}: {count} visits, {_seconds(one for one in run.visits if one.source == source)}"
            for source, count in sources.most_common()
        ),
        f"  read for the first time: {_seconds(run.first)}",
        f"  never put away: {_seconds(outcome.reference.visits)}",
        f"precision: {', '.join(f'{count} {name}' for name, count in precisions.most_common())}",
        f"read again: {', '.join(f'{count} because {name}' for name, count in misses.most_common()) or 'nothing'}",
    ]
    for action, count in Counter(one.action for one in run.pressure).most_common():
        freed = sum(one.bytes_freed for one in run.pressure if one.action == action)
        found.append(f"pressure: {action} {count} times, {_mb(freed)} freed")
    found.append(f"disk: {_mb(run.report.disk_bytes)}, memory at the end {_mb(run.report.memory_bytes)}")
    found += [f"  {one.name}: {one.found:,} and {one.expected:,}" for one in run.checks]
    total = len(run.first) + len(run.visits)
    found.append(
        f"{total - len(outcome.differing)} of {total} replies equal the reference's; logits of"
        f" {outcome.num_compared_bits - len(outcome.inexact)} of {outcome.num_compared_bits} are the same bits"
        f" ({total - outcome.num_compared_bits} were computed in other steps)"
    )
    return found


def as_json(options: Options, outcome: Outcome) -> dict[str, Any]:
    run = outcome.within
    actions = Counter(one.action for one in run.pressure)
    return {
        "options": asdict(options),
        "budget_bytes": run.budget_bytes,
        "over_bytes": run.over_bytes,
        **asdict(run.samples),
        "visits": _times(run.visits) | {"sources": Counter(one.source for one in run.visits)},
        "first": _times(run.first),
        "never_put_away": _times(outcome.reference.visits),
        "misses": Counter(one.miss_code for one in run.visits if one.miss_code),
        "pressure": {
            action: {"count": count, "bytes": sum(one.bytes_freed for one in run.pressure if one.action == action)}
            for action, count in actions.items()
        },
        "checks": [asdict(one) | {"is_right": one.is_right} for one in run.checks],
        "replies": len(run.first) + len(run.visits),
        "replies_compared_bit_by_bit": outcome.num_compared_bits,
        "problems": outcome.problems,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    defaults = Options()
    parser = argparse.ArgumentParser(prog="make visits", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--chats", type=int, default=defaults.chats)
    parser.add_argument("--tokens", type=int, default=defaults.tokens, help="of each chat's first message")
    parser.add_argument("--visits", type=int, default=defaults.visits)
    parser.add_argument("--budget-mb", type=float, default=defaults.budget_mb)
    parser.add_argument("--reply-tokens", type=int, default=defaults.reply_tokens)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", type=Path, default=resources_dir() / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave both data folders there, for ember cache")
    given = vars(parser.parse_args(arguments))
    is_json, model, keep = given.pop("json"), given.pop("model"), given.pop("keep")
    options = Options(**given)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="ember-visits-") as scratch:
        outcome = measure(options, model, keep or Path(scratch), say)
    if is_json:
        print(json.dumps(as_json(options, outcome)))
    else:
        print("\n".join(lines(outcome)))
    for problem in outcome.problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if outcome.problems else 0


def _first_message(options: Options, rng: random.Random, engine: WatchedEngine) -> ChatMessage:
    tokenizer = engine.model.tokenizer
    text = text_of(options.tokens, rng, lambda text: len(tokenizer.encode(text, add_special_tokens=False)))
    return ChatMessage(Role.USER, text)


def _times(visits: Iterable[Visit]) -> dict[str, Any]:
    times = [one.ttft_s for one in visits] or [0.0]
    return {"mean_s": statistics.fmean(times), "median_s": statistics.median(times), "worst_s": max(times)}


def _seconds(visits: Iterable[Visit]) -> str:
    times = _times(visits)
    return f"{times['mean_s']:.3f} s on average, {times['median_s']:.3f} s median, {times['worst_s']:.3f} s worst"


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / MB:,.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
