"""Any order of what a person and the engine may do: nothing raises, and what is shown is what is stored."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from app.settings import Settings
from engine.protocol.commands import Estimate, Generate
from engine.protocol.config import Weights
from engine.protocol.events import (
    CacheState,
    Estimated,
    Failed,
    FinishReason,
    LoadStage,
    ModelLoading,
    Phase,
    PhaseChanged,
    SnapshotNotSaved,
    ViewMoved,
)
from tests.ui.conftest import Desk, OpenDesk
from tests.ui.fakes import model_info
from tests.ui.person import Person, check, tree_is_sound

STEPS = 700  # three runs: more than 2,000 actions
PIECES = [
    "word ",
    "한글 ",
    "\n\n",
    "```python\n",
    "x = 1\n",
    "```\n",
    "- item\n",
    "| a | b |\n|--|--|\n",
    "**",
    "<b>",
    "<think>",
    "</think>",
    "$x^2$",
    "🙂",
]


class Player(Person):
    """Plays the engine's part as well, in any order that engine can take."""

    def __init__(self, desk: Desk, rng: random.Random, folder: Path) -> None:
        super().__init__(desk.window, desk.session, desk.store, rng, folder)
        self.desk = desk
        self.texts: dict[str, str] = {}
        self.done: set[str] = set()
        engine: list[Callable[[], object]] = [
            self.load, self.load_fails, self.progress, self.progress, self.text, self.text, self.text, self.finish,
            self.finish, self.finish, self.fail, self.report, self.late_event, self.end_compression,
            self.end_compression, self.estimated, self.view_moved,
        ]  # fmt: skip
        self.actions += engine * 2

    def act(self) -> str:
        action = self.rng.choice(self.actions)
        action()
        if self.rng.random() < 0.7:
            self.desk.settle()
        return action.__name__

    def load(self) -> None:
        request_id = self.desk.session.load_model(model_info().path, Weights.BITS_8)
        self.desk.window.preferences.load_requested.emit(request_id)
        if self.rng.random() < 0.8:
            self.desk.engine.load(request_id)
        else:
            self.desk.engine.tell(ModelLoading(request_id, LoadStage.WEIGHTS, 0.3))

    def load_fails(self) -> None:
        request_id = self.desk.session.load_model(model_info().path, Weights.BITS_4)
        self.desk.window.preferences.load_requested.emit(request_id)
        self.desk.engine.tell(Failed(request_id, None, "model_damaged", "Damaged.", {"path": "/m"}))

    def estimated(self) -> None:
        """The newest question about the cost is answered, or refused."""
        questions = [command for command in self.desk.engine.commands if isinstance(command, Estimate)]
        if not questions:
            return
        question = questions[-1]
        ids = (question.conversation_id, question.request_id)
        if self.rng.random() < 0.2:
            self.desk.engine.tell(Failed(question.request_id, question.conversation_id, "no_model_loaded", "None."))
        else:
            seconds = self.rng.choice([None, 0.0, 0.1, 14.0])
            fits = self.rng.random() < 0.9
            self.desk.engine.tell(Estimated(*ids, 100, 37, 0, seconds, 8192, self.rng.choice([0, 0, 4]), fits))

    def view_moved(self) -> None:
        if request := self.request():
            dropped = self.rng.randint(1, 6)
            self.desk.engine.tell(ViewMoved(request.conversation_id, request.request_id, dropped, 100))

    def end_compression(self) -> None:
        open_ones = [one for one in self.desk.engine.compressions if one.request_id not in self.done]
        if not open_ones:
            return
        request = self.rng.choice(open_ones)
        self.done.add(request.request_id)
        ids = (request.conversation_id, request.request_id)
        self.desk.engine.tell(PhaseChanged(*ids, Phase.COMPRESSING, 1, 2, 0.5))
        if self.rng.random() < 0.6:
            self.desk.engine.compressed(request, self.rng.choice(["kvzip", "streaming-int8", "bf16"]))
        else:
            code = self.rng.choice(["cancelled", "bug", "cannot_compress", "new"])
            self.desk.engine.tell(Failed(request.request_id, request.conversation_id, code, "Failed."))

    def request(self) -> Generate | None:
        open_ones = [one for one in self.desk.engine.generates if one.request_id not in self.done]
        return self.rng.choice(open_ones) if open_ones else None

    def progress(self) -> None:
        if request := self.request():
            ids = (request.conversation_id, request.request_id)
            phase = self.rng.choice(list(Phase))
            self.desk.engine.tell(
                PhaseChanged(*ids, phase, 10, self.rng.choice([0, 100]), self.rng.choice([None, 0.1]))
            )
            self.desk.engine.tell(self.desk.engine.statistics(request, self.rng.choice([None, 0.0, 150.0])))

    def text(self) -> None:
        if request := self.request():
            for _ in range(self.rng.randint(1, 5)):
                piece = self.rng.choice(PIECES)
                self.texts[request.request_id] = self.texts.get(request.request_id, "") + piece
                self.desk.engine.text(request, piece)

    def finish(self) -> None:
        if request := self.request():
            self.done.add(request.request_id)
            reason = self.rng.choice(list(FinishReason))
            self.desk.engine.finish(request, self.texts.get(request.request_id, ""), reason)
            if self.rng.random() < 0.5:
                self.desk.engine.saved(request)

    def fail(self) -> None:
        if request := self.request():
            self.done.add(request.request_id)
            code = self.rng.choice(["bug", "context_overflow", "out_of_memory", "no_model_loaded", "new"])
            self.desk.engine.fail(request, code, "Failed.", prompt_tokens="9", context_length="8")

    def report(self) -> None:
        states = {
            one.id: (self.rng.choice(list(CacheState)), self.precision()) for one in self.desk.store.conversations()
        }
        report_id = self.desk.engine.reports[-1].request_id if self.desk.engine.reports else None
        self.desk.engine.report(report_id, states)

    def precision(self) -> str:
        return self.rng.choice(["bf16", "bf16", "int8", "mixed", "kvzip", "a later one"])

    def late_event(self) -> None:
        """Of a request that has ended, or of a conversation that never was."""
        if self.desk.engine.generates:
            request = self.rng.choice(self.desk.engine.generates)
            if request.request_id in self.done:
                self.desk.engine.text(request, "late")
                self.desk.engine.finish(request, "late")
                self.desk.engine.tell(SnapshotNotSaved(request.conversation_id, request.request_id, "late"))
        self.desk.engine.tell(PhaseChanged("nobody", "nothing", Phase.PREFILL, 1, 2, None))


def verify(desk: Desk) -> None:
    desk.settle()
    check(desk.window, desk.session, desk.store)
    for conversation in desk.store.conversations():
        assert tree_is_sound(desk.store, conversation.id)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", range(3))
def test_any_order_of_actions(open_desk: OpenDesk, tmp_path: Path, run: int) -> None:
    seed = int(os.environ.get("EMBER_FUZZ_SEED", random.randrange(2**32)))
    print(f"EMBER_FUZZ_SEED={seed}")
    (tmp_path / "notes.txt").write_text("the notes", encoding="utf-8")
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)))
    desk = open_desk(
        Settings(language="en"), fill=lambda desk: [desk.add_conversation(f"chat {n}", n) for n in range(4)]
    )
    player = Player(desk, random.Random(seed), tmp_path)
    names: list[str] = []
    for step in range(STEPS):
        try:
            names.append(player.act())
            if step % 25 == 0:
                verify(desk)
        except BaseException:
            print("the last actions:", names[-25:])
            raise
    verify(desk)
    desk.qtbot.waitUntil(lambda: desk.window.page.composer.files.name_being_read is None)
    assert desk.engine.generates
