"""The thread boundary: what needs no torch gets none, what fails is told, and the thread survives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.kv.working_cache import ContiguousLayer
from engine.protocol.events import Failed
from tests.engine.conftest import ColdReply, Engine, user

StartEngine = Callable[..., Engine]

WITHOUT_TORCH = """
import queue, sys
from pathlib import Path
from engine.protocol.commands import Forget, ReportCache
from engine.protocol.config import EngineConfig
from engine.protocol.events import CacheReported
from engine.worker import EngineWorker
events = queue.Queue()
worker = EngineWorker(EngineConfig(Path(sys.argv[1]), Path(sys.argv[1])), events.put)
worker.start()
worker.submit(Forget("nobody"))
worker.submit(ReportCache("r"))
assert isinstance(events.get(timeout=30), CacheReported)
worker.shutdown()
assert "torch" not in sys.modules
"""


def test_reporting_and_forgetting_before_any_model_import_no_torch(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)], check=True, timeout=60)


BROKEN = """
import queue, sys
from pathlib import Path
from engine.protocol.commands import LoadModel
from engine.protocol.config import EngineConfig, Weights
from engine.protocol.events import EngineStopped, Failed, ModelLoading
from engine.worker import EngineWorker
class Breaks:
    def find_spec(self, name, path, target=None):
        if name == "engine.runtime":
            raise eval(sys.argv[2])
sys.meta_path.insert(0, Breaks())
events = queue.Queue()
worker = EngineWorker(EngineConfig(Path(sys.argv[1]), Path(sys.argv[1])), events.put)
worker.start()
for number in "12":
    worker.submit(LoadModel(number, Path("m"), Weights.BITS_16))
    assert isinstance(events.get(timeout=60), ModelLoading)
    failed = events.get(timeout=60)
    assert isinstance(failed, Failed) and failed.request_id == number, failed
    assert "install Ember again" in failed.message
worker.shutdown()
assert isinstance(events.get(timeout=60), EngineStopped)
"""


@pytest.mark.parametrize("error", ["ImportError('x')", "OSError('x')", "SyntaxError('x')", "RuntimeError('x')"])
def test_a_broken_installation_is_told_each_time_and_nobody_waits_forever(tmp_path: Path, error: str) -> None:
    subprocess.run([sys.executable, "-c", BROKEN, str(tmp_path), error], check=True, timeout=60)


def test_a_bug_ends_in_an_event_and_the_next_command_works(
    start_engine: StartEngine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine(tiny_model)
    monkeypatch.setattr("engine.turn.Turn.run", lambda self: 1 / 0)
    failed = engine.fail("a", [user("hello")])
    assert isinstance(failed, Failed)
    assert failed.code == "bug"
    monkeypatch.undo()
    assert engine.reply("a", [user("hello")]).token_ids


@pytest.mark.parametrize("at", ["prefill", "decode"])
def test_running_out_of_memory_for_good_in_a_reply_is_told_and_the_next_one_is_right(
    start_engine: StartEngine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, cold_reply: ColdReply, at: str
) -> None:
    """Another chat is put away and the step repeated, in vain: the user is told, and nothing half done remains."""
    engine = start_engine(tiny_model)
    engine.reply("other", [user("something else")])
    messages = [user("the lazy dog " * 8)]
    expected = cold_reply(tiny_model, messages).token_ids
    original, calls = ContiguousLayer.update, [0]

    def update(self: ContiguousLayer, key: object, value: object, *args: object, **kwargs: object) -> object:
        calls[0] += 1
        if calls[0] >= (2 if at == "prefill" else 29):
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 7 bytes")
        return original(self, key, value, *args, **kwargs)

    monkeypatch.setattr(ContiguousLayer, "update", update)
    assert engine.fail("a", list(messages)).code == "out_of_memory"
    monkeypatch.undo()
    assert calls[0] == (3 if at == "prefill" else 30)
    assert engine.reply("a", list(messages)).token_ids == expected
