"""Two hundred random actions of a person in the real window with the real model, in any state that comes of them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.paths import DataPaths
from app.settings import Settings, save_settings
from engine.protocol.config import Weights
from engine.protocol.events import Failed, Finished, ModelLoaded
from tests.end_to_end.test_window import Program
from tests.ui.person import Person, check, tree_is_sound

STEPS = 200
_KNOWN = {
    "cancelled",
    "too_short_to_compress",
    "nothing_to_undo",
    "no_model_loaded",
    "memory_budget",
    "context_overflow",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_any_order_of_actions_with_the_real_model(
    qtbot: QtBot, data_dir: Path, default_model: Path, tmp_path: Path
) -> None:
    seed = int(os.environ.get("EMBER_FUZZ_SEED", random.randrange(2**32)))
    print(f"EMBER_FUZZ_SEED={seed}")
    (tmp_path / "notes.txt").write_text("The ferry leaves at nine.", encoding="utf-8")
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)))
    paths = DataPaths(data_dir)
    save_settings(paths.settings, Settings(language="en", theme="light", max_new_tokens=16, memory_budget_mb=64))
    program = Program(qtbot, paths)
    program.wait(ModelLoaded)
    person = Person(program.window, program.session, program.store, random.Random(seed), tmp_path)
    person.actions.append(lambda: _load_other_weights(program, person.rng))
    names: list[str] = []
    try:
        for step in range(STEPS):
            action = person.rng.choice(person.actions)
            action()
            names.append(getattr(action, "__name__", "load"))
            qtbot.wait(person.rng.choice([0, 0, 5, 20, 100]))
            if step % 20 == 0:
                check(program.window, program.session, program.store)
        _wait_until_idle(qtbot, program)
        check(program.window, program.session, program.store)
        unknown = [event for event in program.events if isinstance(event, Failed) and event.code not in _KNOWN]
        assert unknown == []
        for conversation in program.store.conversations():
            assert tree_is_sound(program.store, conversation.id)
        person.close_dialog()
        person.new()
        ended = sum(isinstance(event, Finished) for event in program.events)
        program.send("What is a harbour?")
        qtbot.waitUntil(lambda: sum(isinstance(e, Finished) for e in program.events) > ended, timeout=120_000)
        assert program.last_reply().text
    except BaseException:
        print("the last actions:", names[-25:])
        raise
    finally:
        program.close()


def _load_other_weights(program: Program, rng: random.Random) -> None:
    """Rarely: a load takes a second, in which everything else goes on."""
    if rng.random() < 0.3:
        program.window.preferences.change(weights=rng.choice([Weights.BITS_16, Weights.BITS_4]))


def _wait_until_idle(qtbot: QtBot, program: Program) -> None:
    def is_idle() -> bool:
        conversations = [one.id for one in program.store.conversations()]
        busy = any(program.session.is_busy(one) or program.session.is_compressing(one) for one in conversations)
        return not busy and program.session.model is not None

    qtbot.waitUntil(is_idle, timeout=240_000)
