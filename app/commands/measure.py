"""`ember verify ID` and `ember bench NAME`: the engine measures itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from app.commands.bench_tables import bench_lines
from app.commands.call import Call, argument_text, find_conversation
from app.commands.engine_run import EngineRun
from app.errors import UserError
from app.experiments_file import measured_tables, write_tables
from engine.protocol.commands import BenchName, RunBench
from engine.protocol.config import Weights
from engine.protocol.events import BenchFinished, Verified

_FIDELITY_LOG = "engine.fidelity"


def verify(call: Call) -> int:
    with call.own_store() as store:
        conversation = find_conversation(store, call.arguments.id)
        if not conversation.num_messages:
            raise UserError("The conversation is empty, so there is nothing to verify; write something first.")
        model = call.arguments.model or conversation.model or call.settings().model
        with EngineRun(call, store) as run:
            run.load_now(call, model, _weights(call))
            verified = run.answer(run.session.cache.verify(conversation.id), Verified)
    content = asdict(verified)
    del content["request_id"]
    if call.arguments.json:
        call.print_json(content)
    elif verified.equal:
        call.print(f"Equal: {verified.tokens_compared} tokens from the kept cache and from a cold prefill.")
    else:
        call.print(
            f"Different from token {verified.first_difference} on; largest difference of a logit "
            f"{verified.max_logit_error:.3g}, noise {verified.noise_floor:.3g}, precision {verified.precision}."
        )
    return 0


def bench(call: Call) -> int:
    name = BenchName(call.arguments.name)
    csv_file = _csv_file(call)
    with call.own_store() as store, EngineRun(call, store) as run:
        run.load_now(call, call.arguments.model or call.settings().model, _weights(call))
        request_id = uuid4().hex
        with _progress_told(call, run):
            run.engine.submit(RunBench(request_id, name, call.arguments.context))
            result = run.answer(request_id, BenchFinished).result
    measured_at = datetime.now().astimezone()
    if call.arguments.json:
        call.print_json(result)
    else:
        for line in bench_lines(name, result):
            call.print(line)
    if csv_file is not None:  # last: what was measured is told in any case
        write_tables(csv_file, measured_tables(name, call.arguments.context, result, measured_at, is_whole=True))
    return 0


def _csv_file(call: Call) -> Path | None:
    """Where the table goes; looked at before anything is measured. Raises UserError."""
    if call.arguments.csv is None:
        return None
    path = Path(argument_text(call.arguments.csv)).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path} cannot be written; give --csv a file in a folder that exists.")
    return path


class _ToNotes(logging.Handler):
    """What a long measurement logs, as lines on standard error."""

    def __init__(self, call: Call, run: EngineRun) -> None:
        super().__init__(logging.INFO)
        self._call = call
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        self._run.progress.clear()
        self._call.note(record.getMessage())


@contextmanager
def _progress_told(call: Call, run: EngineRun) -> Iterator[None]:
    handler = _ToNotes(call, run)
    log = logging.getLogger(_FIDELITY_LOG)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _weights(call: Call) -> Weights:
    return Weights(call.arguments.weights) if call.arguments.weights else call.settings().weights
