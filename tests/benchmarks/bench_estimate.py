"""What the composer tells ahead against what then happens: the time to the first token, asked for before each turn.

make bench ARGS=tests/benchmarks/bench_estimate.py

EMBER_CPU_CLOCK=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive measures in seconds of processor time, inside the engine
too: what is wrong with the estimates themselves then shows on a machine that others use.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from engine.protocol.commands import ChatMessage, FreeNow, Role
from engine.protocol.config import EngineConfig
from tests.engine.conftest import Engine, user

ROUNDS = 3
BASES = {"short": 500, "middle": 2_000, "long": 4_000}  # chats that go on, and their first message's tokens
COLD = (30, 100, 300, 1_000, 2_000)
NEW = (5, 15, 40, 100, 300)  # tokens of a turn in a chat that goes on
CLOSE = 0.2
WORDS = [
    "the",
    "ferry",
    "left",
    "at",
    "noon",
    "and",
    "passengers",
    "wrote",
    "letters",
    "about",
    "weather",
    "while",
    "a",
]
WORDS += [
    "keeper",
    "a",
    "counted",
    "lamps",
    "near",
    "old",
    "stone",
    "bridges",
    "because",
    "rivers",
    "carry",
    "boats",
    "to",
]


@dataclass
class Case:
    """One turn: what was told before, what it took, and how much of one processor the program got meanwhile."""

    kind: str
    new: int
    cached: int
    from_disk: int
    told_s: float | None
    took_s: float
    got: float

    @property
    def error(self) -> float | None:
        return None if self.told_s is None else self.told_s / self.took_s - 1

    def __str__(self) -> str:
        told, ratio = ("–", "–") if self.told_s is None else (f"{self.told_s:.3f}", f"{self.told_s / self.took_s:.2f}")
        return (
            f"{self.kind:28} {self.new:6,} {self.cached:7,} {self.from_disk:7,} {told:>8} {self.took_s:9.3f} {ratio:>6}"
            f" {self.got:7.0%} {os.getloadavg()[0]:6.1f}"
        )


@dataclass
class Course:
    """Runs turns and keeps what came of them."""

    model: Path
    folder: Path
    kv_precision: str = "auto"
    cases: list[Case] = field(default_factory=list)
    chats: dict[str, list[ChatMessage]] = field(default_factory=dict)

    def start(self) -> None:
        self.engine = Engine(
            EngineConfig(self.folder / "kv", self.folder / "converted", kv_precision=self.kv_precision)
        )
        self.engine.load(self.model)

    def restart(self) -> None:
        self.engine.close()
        self.start()

    def put_away(self) -> None:
        self.engine.worker.submit(FreeNow(None))
        self.engine.report()

    def turn(self, kind: str, chat: str, message: str, system: str = "") -> None:
        messages = self.chats.setdefault(chat, [ChatMessage(Role.SYSTEM, system)] if system else [])
        messages.append(user(message))
        told = self.engine.estimate(chat, messages)
        cpu, started = psutil.Process().cpu_times(), time.monotonic()
        one = self.engine.reply(chat, messages, max_new_tokens=6).statistics
        now = psutil.Process().cpu_times()
        used = now.user + now.system - cpu.user - cpu.system
        assert one.ttft_s is not None
        assert (told.new_tokens, told.prompt_tokens) == (one.prefilled_tokens, one.prompt_tokens)
        got = used / (time.monotonic() - started)
        case = Case(kind, told.new_tokens, one.reused_tokens, told.from_disk_tokens, told.seconds, one.ttft_s, got)
        self.cases.append(case)
        print(case, flush=True)


@pytest.fixture
def course(default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Course]]:
    if os.environ.get("EMBER_CPU_CLOCK"):
        monkeypatch.setattr(time, "perf_counter", time.process_time)
    started: list[Course] = []

    def start(kv_precision: str = "auto") -> Course:
        started.append(Course(default_model, tmp_path / kv_precision, kv_precision))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.engine.close()


def text(rng: random.Random, num_tokens: int) -> str:
    """About so many tokens, like no other text."""
    return " ".join(rng.choices(WORDS, k=max(1, num_tokens - num_tokens // 20)))


def test_the_time_that_is_told_is_the_time_it_takes(course: Callable[..., Course]) -> None:
    rng = random.Random(7)
    print(f"\n{'case':28} {'new':>6} {'cached':>7} {'disk':>7} {'told, s':>8} {'took, s':>9} {'ratio':>6}   got   load")
    run = course()
    run.turn("first message ever", "hello", "hi")
    run.turn("second message ever", "hello", text(rng, 20))
    for name, size in BASES.items():
        run.turn("cold", name, text(rng, size))
    for number in range(ROUNDS):
        steps: list[Callable[[], None]] = [
            *(lambda chat=f"cold {number} {size}", size=size: run.turn("cold", chat, text(rng, size)) for size in COLD),
            *(
                lambda name=name, size=size: run.turn("next turn", name, text(rng, size))
                for name in BASES
                for size in rng.sample(NEW, 2)
                for _ in range(2)  # the first of them goes back to another chat
            ),
        ]
        rng.shuffle(steps)
        for step in steps:
            step()
        for restarted in (False, True):
            run.restart() if restarted else run.put_away()
            for name in rng.sample(sorted(BASES), len(BASES)):
                kind = "resume, new start" if restarted else "resume, same process"
                run.turn(kind, name, text(rng, rng.choice(NEW)))
    system = text(rng, 800)
    for number in range(3):
        run.turn("shared prefix" if number else "cold", f"shared {number}", text(rng, 60), system)
    run.restart()
    run.turn("shared prefix, from disk", "shared 9", text(rng, 60), system)
    whole = run.cases

    run = course("int8")
    run.turn("int8, cold", "int8", text(rng, 900))
    run.turn("int8, cold", "other", text(rng, 700))
    for _ in range(ROUNDS):
        for size in rng.sample(NEW, 3):
            run.turn("int8, next turn", "int8", text(rng, size))
        run.turn("int8, going back", "other", text(rng, 30))
    run.restart()
    run.turn("int8, resume", "int8", text(rng, 40))
    tell([*whole, *run.cases])


def tell(cases: list[Case]) -> None:
    kinds = list(dict.fromkeys(one.kind for one in cases))
    print(f"\n{'kind':28} {'turns':>6} {'within 20 %':>12} {'median ratio':>13} {'median |error|':>15}")
    for kind in [*kinds, "all"]:
        errors = [one.error for one in cases if kind in ("all", one.kind) and one.error is not None]
        untold = sum(one.told_s is None for one in cases if kind in ("all", one.kind))
        if errors:
            close = sum(abs(error) <= CLOSE for error in errors) / len(errors)
            print(
                f"{kind:28} {len(errors):6} {close:12.0%} {statistics.median(errors) + 1:13.2f}"
                f" {statistics.median(map(abs, errors)):15.0%}" + (f"   and {untold} not told" if untold else "")
            )
        else:
            print(f"{kind:28} {untold:6}     not told")
