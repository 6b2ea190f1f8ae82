"""What one long chat takes in every precision, active and idle, at its peak and at rest.

    python -m tests.benchmarks.bench_precision_memory [--tokens 6000] [--json]

Each precision runs in a process of its own. `caches`: what the engine counts. `process`: resident memory beyond that of
the loaded model; while the chat is read it holds the working memory of the forward pass as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from app.model_library import DEFAULT_MODEL
from engine.fidelity.texts import NAMES, read_text
from engine.protocol.commands import ChatMessage, Generate, LoadModel, ReportCache, Role
from engine.protocol.config import GREEDY, KV_AUTO, KV_PRECISIONS, EngineConfig
from engine.protocol.events import CacheReported, Event, Failed, Finished, ModelLoaded, SnapshotNotSaved, SnapshotSaved
from engine.worker import EngineWorker

_MB = 1e6
_CHARS_A_TOKEN = 3.6  # of the shipped English texts, about


class _Watch:
    """Samples of resident memory."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._is_done = threading.Event()
        self.peak = 0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        self._is_done.clear()
        self.peak = self.now()
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_done.set()
            thread.join()

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    def _run(self) -> None:
        while not self._is_done.wait(0.002):
            self.peak = max(self.peak, self.now())


def measure(precision: str, tokens: int, model: Path) -> dict[str, Any]:
    """In this process, which must be fresh."""
    watch = _Watch()
    events: list[Event] = []
    arrived = threading.Condition()

    def on_event(event: Event) -> None:
        with arrived:
            events.append(event)
            arrived.notify_all()

    def wait(*kinds: type[Event], request: str) -> Event:
        with arrived:
            arrived.wait_for(lambda: any(_answers(event, kinds, request) for event in events), timeout=600)
            return next(event for event in events if _answers(event, kinds, request))

    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(Path(folder) / "kv", Path(folder) / "converted", kv_precision=precision)
        worker = EngineWorker(config, on_event)
        worker.start()

        def turn(name: str, text: str) -> Finished:
            messages = (ChatMessage(Role.USER, text),)
            worker.submit(Generate(name, name, messages, GREEDY, 16))
            finished = wait(Finished, Failed, request=name)
            assert isinstance(finished, Finished), finished
            wait(SnapshotSaved, SnapshotNotSaved, request=name)
            return finished

        def counted(request: str) -> dict[str, int]:
            worker.submit(ReportCache(request))
            report = wait(CacheReported, request=request)
            assert isinstance(report, CacheReported)
            return {one.conversation_id: one.memory_bytes for one in report.conversations}

        worker.submit(LoadModel("load", model))
        wait(ModelLoaded, Failed, request="load")
        turn("warm", "Hello. " * 400)
        worker.submit(Generate("warm", "again", (ChatMessage(Role.USER, "Hi"),), GREEDY, 4))
        wait(SnapshotSaved, SnapshotNotSaved, request="again")
        time.sleep(0.3)
        before = watch.now() - sum(counted("before").values())
        text = "\n\n".join(read_text(name) for name in NAMES if name.endswith("en"))
        text = (text * 8)[: int(tokens * _CHARS_A_TOKEN)]
        with watch.sampling():
            finished = turn("long", text)
        active = {"peak": watch.peak - before, "steady": watch.now() - before, "caches": counted("active")["long"]}
        with watch.sampling():
            turn("other", "And now for something else.")
            time.sleep(0.3)
        idle = {"peak": watch.peak - before, "steady": watch.now() - before, "caches": counted("idle")["long"]}
        worker.shutdown()
    cache = finished.statistics.cache
    return {"precision": precision, "tokens": cache.tokens, "told": cache.precision, "active": active, "idle": idle}


def _answers(event: Event, kinds: tuple[type[Event], ...], request: str) -> bool:
    return isinstance(event, kinds) and getattr(event, "request_id", None) == request


def table(rows: list[dict[str, Any]]) -> str:
    """Megabytes, a line for each precision."""
    lines = [f"{'':12}{'tokens':>7}   {'active: caches, process, peak':>32}   {'idle: caches, process, peak':>32}"]
    for row in rows:
        name = "full" if row["precision"] == KV_AUTO else row["precision"]
        sides = [
            "".join(f"{row[side][key] / _MB:9.1f} MB" for key in ("caches", "steady", "peak"))
            for side in ("active", "idle")
        ]
        lines.append(f"{name:12}{row['tokens']:7,}   " + "   ".join(sides))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--model", type=Path, default=Path("resources/models") / DEFAULT_MODEL)
    parser.add_argument("--precision", choices=KV_PRECISIONS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.precision is not None:
        print(json.dumps(measure(options.precision, options.tokens, options.model)))
        return
    rows = []
    for precision in KV_PRECISIONS:
        command = [sys.executable, "-m", __spec__.name, "--precision", precision, "--tokens", str(options.tokens)]
        done = subprocess.run([*command, "--model", str(options.model)], check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    print(json.dumps({"rows": rows}) if options.json else table(rows))


if __name__ == "__main__":
    main()
