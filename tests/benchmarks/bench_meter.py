"""What the strip and the memory panel cost an answer: the GUI thread's time for each update, and the speed of decoding
with the strip in sight, and with the panel as well, against neither.

make bench ARGS="tests/benchmarks/bench_meter.py"
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from PySide6.QtCore import QCoreApplication
from pytestqt.qtbot import QtBot

from app.paths import DataPaths, resources_dir
from app.settings import Settings, save_settings
from engine.generation.decode import Decode
from engine.protocol.events import CacheReading, Finished, MemoryReading, ModelLoaded, Phase
from tests.end_to_end.test_window import WAIT_MS, Program
from ui.meter.meter_reading import EngineState, MeterReading
from ui.meter.strip import UPDATE_S, MeterStrip
from ui.theme import Theme

UPDATES = 200
ALTERNATION = (False, True, True, False)  # what drifts evenly falls on both alike
KEYS = (False, True)
RESAMPLES = 4000


def test_what_an_update_of_the_strip_costs(qtbot: QtBot) -> None:
    theme = Theme(resources_dir() / "themes")
    theme.set_mode("light")
    strip = MeterStrip(theme)
    qtbot.addWidget(strip)
    strip.resize(1280, 40)
    strip.show()
    qtbot.waitExposed(strip)
    started = time.thread_time()
    for number in range(UPDATES):
        reading = MeterReading(
            context_tokens=6000 + number,
            context_length=8192,
            cache=CacheReading(6000 + number, (6000 + number) * 23_040, "bf16", "cpu"),
            all_caches_bytes=300_000_000,
            budget_bytes=2_000_000_000,
            memory=MemoryReading(10**9, 4 * 10**9 + number * 10**6, 8 * 10**9),
            ttft_s=0.06,
            decode_tps=120 + number % 17,
            state=EngineState(Phase.ANSWERING, has_model=True),
        )
        strip.sparkline.add(120 + number % 17)
        strip.show_now(reading)
        QCoreApplication.processEvents()
    each_s = (time.thread_time() - started) / UPDATES
    print(
        f"\nan update of the strip takes {each_s * 1e3:.2f} ms of one core: {each_s / UPDATE_S:.2%} at"
        f" {1 / UPDATE_S:.0f} a second"
    )


class WatchedDecode(Decode):
    """Goes on to the last token asked for, one pass a token, and notes when each pass begins (`perf_counter`)."""

    passes: list[float]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stop_ids = frozenset()
        self._lookahead = None

    def _feed(self, token_id: int, num_more: int) -> torch.Tensor:
        self.passes.append(time.perf_counter())
        return super()._feed(token_id, num_more)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a reply: the seconds that each token took, and the share of a core that the GUI thread took."""

    steps: list[float]
    gui_share: float


def run_part(qtbot: QtBot, seconds: float) -> Part:
    started, worked = time.perf_counter(), time.thread_time()
    qtbot.wait(int(seconds * 1000))
    worked, ended = time.thread_time() - worked, time.perf_counter()
    inside = [begun for begun in WatchedDecode.passes if started <= begun <= ended]
    assert len(inside) > 2, "the reply is over, or too slow for parts as short as this"
    return Part([after - before for before, after in pairwise(inside)], worked / (ended - started))


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean without the outer fifths, and where it lies in 95 % of resamples (bootstrap)."""
    draw = random.Random(1)

    def middle(found: list[float]) -> float:
        cut = len(found) // 5
        return statistics.fmean(sorted(found)[cut : len(found) - cut])

    means = sorted(middle(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return middle(values), means[RESAMPLES // 40], means[-1 - RESAMPLES // 40]


class Comparison:
    """Of one reply that runs, with something shown and without, in turns. Each figure is (middle, low, high).

    A step twice as long as usual is one in which another program had the processor: no update of the window takes that
    long. It is left out of the speed, and counted.
    """

    def __init__(self) -> None:
        self._rounds: list[dict[bool, list[Part]]] = []

    def run(self, qtbot: QtBot, show: Callable[[bool], None], rounds: int, part_s: float, settle_s: float) -> None:
        for _ in range(rounds):
            parts: dict[bool, list[Part]] = {False: [], True: []}
            for is_shown in ALTERNATION:
                show(is_shown)
                qtbot.wait(int(settle_s * 1000))  # showing it costs, too, but not while it stays
                parts[is_shown].append(run_part(qtbot, part_s))
            self._rounds.append(parts)

    def speed(self) -> tuple[float, float, float]:
        """With what is shown, over that without."""
        ratios = []
        for number in range(len(self._rounds)):
            usual = {key: [step for step in self._steps(number, key) if step <= self._limit(number)] for key in KEYS}
            ratios.append(log(statistics.fmean(usual[False]) / statistics.fmean(usual[True])))
        middle, low, high = interval(ratios)
        return exp(middle), exp(low), exp(high)

    def long_steps(self, is_shown: bool) -> float:
        """The share of them."""
        found = [step > self._limit(at) for at in range(len(self._rounds)) for step in self._steps(at, is_shown)]
        return sum(found) / len(found)

    def gui_share(self) -> tuple[float, float, float]:
        """Of a core: what the GUI thread takes more with what is shown."""
        shares = []
        for parts in self._rounds:
            without, shown = (statistics.fmean(part.gui_share for part in parts[key]) for key in KEYS)
            shares.append(shown - without)
        return interval(shares)

    def _steps(self, number: int, is_shown: bool) -> list[float]:
        return [step for part in self._rounds[number][is_shown] for step in part.steps]

    def _limit(self, number: int) -> float:
        return 2 * statistics.median([*self._steps(number, False), *self._steps(number, True)])


@pytest.fixture
def program(qtbot: QtBot, data_dir: Path, default_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """The real one, in the middle of a reply that does not end by itself."""
    monkeypatch.setattr(WatchedDecode, "passes", [], raising=False)
    monkeypatch.setattr("engine.turn.Decode", WatchedDecode)
    data_dir.mkdir(parents=True, exist_ok=True)
    paths = DataPaths(data_dir)
    save_settings(paths.settings, Settings(language="en", theme="light", max_new_tokens=8000))
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as the program does
    program = Program(qtbot, paths)
    program.wait(ModelLoaded)
    program.send("Tell me a long story about a lighthouse.")
    qtbot.waitUntil(lambda: len(WatchedDecode.passes) > 100, timeout=WAIT_MS)  # it is warm
    yield program
    program.window.page.composer.button.click()
    program.wait(Finished)
    program.close()
    sys.setswitchinterval(before)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("has_panel", "rounds", "part_s", "settle_s"),
    [(False, 22, 0.4, 0.05), (True, 10, 0.8, 0.25)],
    ids=["strip", "panel"],
)
def test_what_it_costs_a_reply(
    qtbot: QtBot,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    has_panel: bool,
    rounds: int,
    part_s: float,
    settle_s: float,
) -> None:
    """Within one reply, in turns: shown, and hidden with its feed held back, so that nothing of it runs."""
    window = program.window
    policy = window.meter.sizePolicy()
    policy.setRetainSizeWhenHidden(True)  # or else hiding it lays the transcript out again
    window.meter.setSizePolicy(policy)
    take = window._meter_feed.take
    is_fed = True
    monkeypatch.setattr(window._meter_feed, "take", lambda event: take(event) if is_fed else None)

    def show(is_shown: bool) -> None:
        nonlocal is_fed
        is_fed = is_shown
        window.meter.setVisible(is_shown)
        if has_panel and is_shown:
            window.memory.open()
        else:
            window.memory.close()

    found = Comparison()
    found.run(qtbot, show, rounds, part_s, settle_s)
    show(True)
    speed, gui = found.speed(), found.gui_share()
    name = "the strip and the memory panel" if has_panel else "the strip"
    passes = WatchedDecode.passes
    print(
        f"\n{name}: decoding runs at {speed[0]:.4f} of its speed without (95 %: {speed[1]:.4f} to {speed[2]:.4f};"
        f" {rounds} times {len(ALTERNATION)} parts, {len(passes) / (passes[-1] - passes[0]):.0f} tok/s; steps that took"
        f" twice as long: {found.long_steps(True):.1%} with, {found.long_steps(False):.1%} without);"
        f" the GUI thread takes {gui[0]:.2%} of a core more (95 %: {gui[1]:.2%} to {gui[2]:.2%})"
    )
