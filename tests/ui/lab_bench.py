"""A lab over the fake engine, and results as the real experiments gave them (the default model, short lengths)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.protocol.commands import BenchName, RunBench
from engine.protocol.events import BenchFinished, BenchProgress
from tests.ui.conftest import Desk
from ui.lab.experiment_page import ExperimentPage
from ui.lab.lab_window import CacheLab, LabWindow

RESULTS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "lab_results.json").read_text(encoding="utf-8")
)
NAMES = [BenchName(name) for name in RESULTS]


@dataclass
class LabDesk:
    """The lab open, on a desk whose engine does what a test tells it."""

    desk: Desk
    lab: CacheLab

    @property
    def window(self) -> LabWindow:
        assert self.lab.window is not None
        return self.lab.window

    @property
    def asked(self) -> list[RunBench]:
        return [command for command in self.desk.engine.commands if isinstance(command, RunBench)]

    def start(self, name: BenchName) -> ExperimentPage:
        page = self.window.show_page(name)
        page.run_button.click()
        self.desk.settle()
        return page

    def progress(self, num_rows: int) -> None:
        """So many rows of the running experiment have arrived."""
        command = self.asked[-1]
        rows = RESULTS[command.name]["rows"]
        for number in range(num_rows):
            self.desk.engine.tell(BenchProgress(command.request_id, number + 1, len(rows), rows[number]))
        self.desk.settle()

    def finish(self) -> dict[str, Any]:
        command = self.asked[-1]
        result = RESULTS[command.name]
        self.progress(len(result["rows"]))
        self.desk.engine.tell(BenchFinished(command.request_id, result))
        self.desk.settle()
        return result

    def measure(self, name: BenchName) -> ExperimentPage:
        page = self.start(name)
        self.finish()
        return page


@pytest.fixture(name="lab")
def lab_fixture(desk: Desk) -> Iterator[LabDesk]:
    built = CacheLab(desk.engine, desk.session, desk.library, desk.window.theme, desk.window)
    desk.bridge.event_arrived.connect(built.take)
    built.open()
    desk.settle()
    yield LabDesk(desk, built)
    built.close()
