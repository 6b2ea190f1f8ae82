"""Chats whose files were damaged: never wrong text or an unbounded allocation, always a reply, and whole again after.

make corruption                                                  (1,000 rounds; one in ten with the default model)
make corruption ARGS="--rounds 40 --real-percent 0"
make corruption ARGS="--seed 3 --first 617 --rounds 1"           (one round again)

Each round copies a data folder of two chats that share a prefix, damages one thing in it, starts the engine's runtime
on it as a program does and asks for both chats' next reply; then starts once more. Ends with 1 after any failure.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from unittest import mock

import psutil
import torch

from app.paths import resources_dir
from engine.kv.fingerprint import Fingerprint
from engine.kv.working_cache import WorkingCache
from engine.model.loader import LoadedModel, load_model
from engine.protocol.commands import ChatMessage, Generate, LoadModel, Role
from engine.protocol.config import GREEDY, EngineConfig, Weights
from engine.protocol.events import Event, Finished, SnapshotNotSaved
from engine.protocol.misses import MissCode
from engine.runtime import Runtime
from tests.benchmarks.damage import KINDS, Folder
from tests.benchmarks.varied_text import text_of
from tests.engine.conftest import build_model

MB = 1024 * 1024
CHATS = ("first", "second")
SHARED_TOKENS, OWN_TOKENS, REPLY_TOKENS = 300, 250, 4
SAVE_WAIT_S = 60.0
LOGIT_TOLERANCE = 1e-3  # of the largest logit; reading in other pieces changes about a millionth in float32
PYTHON_BYTES = 24 * MB  # what a round may allocate besides four times the folder's size
PROCESS_BYTES = 160 * MB


class Reuse(StrEnum):
    FULLY = "fully"
    PARTLY = "partly"
    READ = "read again"


@dataclass(frozen=True)
class Reply:
    """`logits`: those the first token was drawn from."""

    finished: Finished
    logits: torch.Tensor


@dataclass
class World:
    """A model, a sound KV folder of two chats made with it, and what has to come next in them."""

    name: str
    model: LoadedModel
    root: Path
    kv_dir: Path
    foreign: Path
    chats: dict[str, list[ChatMessage]] = field(default_factory=dict)  # up to the question that is asked in each round
    next: dict[str, Reply] = field(default_factory=dict)
    after_next: dict[str, Reply] = field(default_factory=dict)

    @property
    def folder_name(self) -> str:
        return self.model.fingerprint.folder


@dataclass(frozen=True)
class Round:
    number: int
    world: str
    kind: str
    what: str
    reuse: tuple[Reuse, ...]
    misses: tuple[str, ...]
    problems: tuple[str, ...]


class Session:
    """The engine's runtime on one KV folder, from start to end, with a model that is loaded already."""

    def __init__(self, model: LoadedModel, kv_dir: Path) -> None:
        self.events: list[Event] = []
        self._model = model
        config = EngineConfig(kv_dir, kv_dir / "converted", prefill_chunk=256, num_threads=1, disk_floor_bytes=0)
        self._runtime = Runtime(config, self.events.append, self.events.append)
        with mock.patch("engine.runtime.load_model", return_value=model):
            self._runtime.load(LoadModel("load", Path(model.info.name)))

    def reply(self, chat: str, messages: list[ChatMessage]) -> Reply:
        """One turn to its end, saved. Raises EngineError, and whatever else goes wrong."""
        runtime = self._runtime
        command = Generate(chat, chat, tuple(messages), GREEDY, REPLY_TOKENS)
        runtime.begin_work()
        try:
            with _watched(self._model) as passes:
                finished = runtime.generate(command, lambda: False)
            runtime.read_ahead(command, finished, lambda: False)
            runtime.save(command)
        finally:
            runtime.end_work()
        writer = runtime._loaded()[1].persistence.writer
        deadline = time.monotonic() + SAVE_WAIT_S
        while writer.is_pending(chat) and time.monotonic() < deadline:
            time.sleep(0.001)
        return Reply(finished, passes[finished.statistics.prompt_tokens])

    def close(self) -> None:
        self._runtime.close()


@contextmanager
def _watched(model: LoadedModel) -> Iterator[dict[int, torch.Tensor]]:
    """The logits of every forward pass, by the length of the cache after it."""
    passes: dict[int, torch.Tensor] = {}
    feed: Callable[[list[int], WorkingCache], torch.Tensor] = model.forward._feed

    def watched(ids: list[int], cache: WorkingCache) -> torch.Tensor:
        logits = feed(ids, cache)
        passes[cache.length] = logits
        return logits

    with mock.patch.object(model.forward, "_feed", watched):
        yield passes


def tiny_worlds(folder: Path) -> list[World]:
    """A model whose cache can be cut anywhere, and one that keeps states."""
    layer_types = ["sliding_attention", "sliding_attention", "full_attention"]
    window = {"sliding_window": 64, "layer_types": layer_types}
    worlds = []
    for name, family, overrides in (("tiny", "llama", {}), ("tiny with states", "gemma3_text", window)):
        root = folder / family
        paths = [
            build_model(root / f"model-{seed}", family, seed=seed, max_position_embeddings=4096, **overrides)
            for seed in (0, 1)
        ]
        worlds.append(_build_world(name, root, _load(paths[0], root), _load(paths[1], root)))
    return worlds


def real_world(folder: Path, path: Path) -> World:
    """The default model; the other fingerprint is its own under another name."""
    root = folder / "real"
    model = _load(path, root)
    fields = {**model.fingerprint.fields, "model": "another"}
    return _build_world("real", root, model, dataclasses.replace(model, fingerprint=Fingerprint.of_fields(fields)))


def _load(path: Path, root: Path) -> LoadedModel:
    """In float32, where a chat read in other pieces has the same best tokens."""
    config = EngineConfig(root / "hashes", root / "converted")
    with mock.patch("engine.model.loader.compute_dtype", return_value=torch.float32):
        return load_model(path, Weights.BITS_16, config, lambda stage: None)


def _build_world(name: str, root: Path, model: LoadedModel, other: LoadedModel) -> World:
    foreign_dir = root / "foreign"
    _start_chats(other, foreign_dir)
    world = World(name, model, root, root / "kv", foreign_dir / other.fingerprint.folder)
    world.chats = _start_chats(model, world.kv_dir)
    for chat, messages in world.chats.items():
        cold = Session(model, root / "cold" / chat)
        world.next[chat] = cold.reply(chat, messages)
        cold.close()
    resumed = root / "resumed"
    shutil.copytree(world.kv_dir, resumed)
    session = Session(model, resumed)
    for chat, messages in world.chats.items():
        reply = session.reply(chat, messages)
        problems = _differences(reply, world.next[chat])
        assert not problems, f"{name}: the sound folder gives another reply: {problems}"
        assert reply.finished.statistics.miss_code is None, reply.finished.statistics
        world.next[chat] = reply
    session.close()
    session = Session(model, resumed)
    for chat in CHATS:
        world.after_next[chat] = session.reply(chat, _continued(world, chat, world.next[chat].finished))
    session.close()
    return world


def _start_chats(model: LoadedModel, kv_dir: Path) -> dict[str, list[ChatMessage]]:
    def count(text: str) -> int:
        return len(model.tokenizer.encode(text, add_special_tokens=False))

    shared = text_of(SHARED_TOKENS, random.Random(0), count)
    chats: dict[str, list[ChatMessage]] = {}
    session = Session(model, kv_dir)
    for seed, chat in enumerate(CHATS, 1):
        text = f"{shared} {text_of(OWN_TOKENS * seed, random.Random(seed), count)}"
        messages = [ChatMessage(Role.USER, text)]
        finished = session.reply(chat, messages).finished
        chats[chat] = [*messages, _answer(finished), ChatMessage(Role.USER, "And what came after that?")]
    session.close()
    return chats


def _answer(finished: Finished) -> ChatMessage:
    return ChatMessage(Role.ASSISTANT, finished.text, finished.token_ids if finished.ids_match_text else None)


def _continued(world: World, chat: str, finished: Finished) -> list[ChatMessage]:
    return [*world.chats[chat], _answer(finished), ChatMessage(Role.USER, "Are you sure?")]


def run_round(number: int, seed: int, world: World, kind: str, scratch: Path) -> Round:
    """One copy, one mischief, two starts. Never raises: what goes wrong is a problem of the round."""
    rng = random.Random(f"{seed}/{number}")
    kv_dir = scratch / "kv"
    shutil.copytree(world.kv_dir, kv_dir, symlinks=True)
    size = sum(file.stat().st_size for file in kv_dir.rglob("*") if file.is_file())
    what = KINDS[kind](Folder(kv_dir / world.folder_name, world.foreign), rng)
    chats = rng.sample(CHATS, k=len(CHATS))
    reuse: list[Reuse] = []
    misses: list[str] = []
    problems: list[str] = []
    memory = _Memory()
    try:
        problems += _first_start(world, kv_dir, chats, reuse, misses)
        problems += memory.excess(size)
        problems += _second_start(world, kv_dir, chats)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is counted, and the next round goes on
        where = traceback.extract_tb(error.__traceback__)[-1]
        problems.append(f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    finally:
        tracemalloc.stop()
        shutil.rmtree(kv_dir)
    return Round(number, world.name, kind, what, tuple(reuse), tuple(misses), tuple(problems))


def _first_start(
    world: World, kv_dir: Path, chats: Sequence[str], reuse: list[Reuse], misses: list[str]
) -> Iterator[str]:
    """What is wrong with the replies on the damaged folder."""
    session = Session(world.model, kv_dir)
    try:
        for chat in chats:
            reply, expected = session.reply(chat, world.chats[chat]), world.next[chat]
            yield from (f"{chat}: {one}" for one in _differences(reply, expected))
            statistics, wanted = reply.finished.statistics, expected.finished.statistics.reused_tokens
            is_full = statistics.reused_tokens >= wanted
            reuse.append(Reuse.FULLY if is_full else Reuse.PARTLY if statistics.reused_tokens else Reuse.READ)
            if statistics.miss_code is not None:
                misses.append(statistics.miss_code)
            elif not is_full:
                yield f"{chat}: {statistics.reused_tokens} instead of {wanted} tokens reused, and no reason told"
            if reply.finished.notes:
                yield f"{chat}: {reply.finished.notes}"
    finally:
        session.close()
    yield from (f"not saved: {one.reason}" for one in session.events if isinstance(one, SnapshotNotSaved))


def _second_start(world: World, kv_dir: Path, chats: Sequence[str]) -> Iterator[str]:
    """What is wrong after the first start saved: by now all must be whole."""
    session = Session(world.model, kv_dir)
    try:
        for chat in chats:
            expected = world.after_next[chat]
            reply = session.reply(chat, _continued(world, chat, world.next[chat].finished))
            yield from (f"{chat}, after a save: {one}" for one in _differences(reply, expected))
            statistics, wanted = reply.finished.statistics, expected.finished.statistics.reused_tokens
            if statistics.reused_tokens < wanted and statistics.miss_code != MissCode.READING_IS_FASTER:
                yield (
                    f"{chat}, after a save: {statistics.reused_tokens} instead of {wanted} tokens reused"
                    f" ({statistics.miss_reason})"
                )
    finally:
        session.close()


def _differences(reply: Reply, expected: Reply) -> list[str]:
    found = []
    if reply.finished.token_ids != expected.finished.token_ids:
        found.append(f"replied {reply.finished.token_ids} instead of {expected.finished.token_ids}")
    error = (reply.logits - expected.logits).abs().max().item()
    if not error <= LOGIT_TOLERANCE * expected.logits.abs().max().item():  # not: also when it is NaN
        found.append(f"logits differ by {error:g}")
    return found


class _Memory:
    """What was allocated since it was made, at the most; tracing slows Python down, so it ends with the answer."""

    _PEAK_RESET = Path("/proc/self/clear_refs")

    def __init__(self) -> None:
        tracemalloc.start(1)
        self._process = psutil.Process().memory_info().rss
        if self._PEAK_RESET.exists():
            self._PEAK_RESET.write_text("5")  # makes the peak what is used now

    def excess(self, size: int) -> Iterator[str]:
        """What went beyond, for a folder of `size` bytes."""
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if python > PYTHON_BYTES + 4 * size:
            yield f"Python allocated {python:,} bytes for a folder of {size:,}"
        peak = self._peak()
        if peak is not None and peak - self._process > PROCESS_BYTES + 4 * size:
            yield f"the process grew by {peak - self._process:,} bytes for a folder of {size:,}"

    def _peak(self) -> int | None:
        if not self._PEAK_RESET.exists():
            return None
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def run_rounds(
    worlds: Sequence[World],
    numbers: Sequence[int],
    seed: int,
    scratch: Path,
    *,
    real_percent: int = 0,
    kinds: Sequence[str] = tuple(KINDS),
    on_round: Callable[[Round], None] = lambda done: None,
) -> list[Round]:
    """Kinds take turns, so that each gets its share; the world is drawn. The same number is the same round."""
    real = [world for world in worlds if world.name == "real"]
    tiny = [world for world in worlds if world.name != "real"]
    rounds: list[Round] = []
    gc.freeze()  # the models stay: what each start's end collects is only what that start left
    try:
        for number in numbers:
            rng = random.Random(f"world {seed}/{number}")
            is_real = bool(real) and (not tiny or rng.randrange(100) < real_percent)
            world, kind = rng.choice(real if is_real else tiny), kinds[number % len(kinds)]
            rounds.append(run_round(number, seed, world, kind, scratch))
            on_round(rounds[-1])
    finally:
        gc.unfreeze()
    return rounds


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """In memory where that is possible: thousands of small files are written and synced."""
    memory = Path("/dev/shm")
    in_memory = str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ember-corruption-", dir=in_memory) as folder:
        yield Path(folder)


def lines(rounds: Sequence[Round]) -> list[str]:
    """A table, a row for each kind; replies are two a round."""
    found = [f"{'':26}{'rounds':>7}{'fully':>7}{'partly':>7}{'read':>7}{'failed':>7}  reasons"]
    kinds = [*dict.fromkeys(one.kind for one in rounds)]
    for kind in [*kinds, None]:
        chosen = [one for one in rounds if kind in (one.kind, None)]
        reuse = Counter(reuse for one in chosen for reuse in one.reuse)
        misses = Counter(miss for one in chosen for miss in one.misses)
        failed = sum(bool(one.problems) for one in chosen)
        row = [len(chosen), reuse[Reuse.FULLY], reuse[Reuse.PARTLY], reuse[Reuse.READ], failed]
        told = ", ".join(f"{count} {miss}" for miss, count in misses.most_common())
        found.append(f"{kind or 'all':26}{''.join(f'{number:7,}' for number in row)}  {told}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make corruption", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--real-percent", type=int, default=10, help="of the rounds with the default model")
    parser.add_argument("--real", action="store_true", help="all rounds with the default model")
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="only this mischief")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", file=sys.stderr, flush=True)

    def on_round(done: Round) -> None:
        for problem in done.problems:
            say(
                f"FAILED round {done.number} (--seed {options.seed}), {done.world}, {done.kind}: {done.what}: {problem}"
            )
        if (done.number + 1) % 100 == 0:
            say(f"{done.number + 1 - options.first} rounds")

    with scratch_folder() as folder:
        worlds = [] if options.real else tiny_worlds(folder)
        if options.real or options.real_percent:
            worlds.append(real_world(folder, resources_dir() / "models" / "SmolLM2-135M-Instruct"))
        say(f"{', '.join(world.name for world in worlds)}: ready")
        rounds = run_rounds(
            worlds,
            range(options.first, options.first + options.rounds),
            options.seed,
            folder,
            real_percent=options.real_percent,
            kinds=options.kind or tuple(KINDS),
            on_round=on_round,
        )
    failed = [one for one in rounds if one.problems]
    if options.json:
        print(json.dumps({"rounds": len(rounds), "failed": [dataclasses.asdict(one) for one in failed]}))
    else:
        print("\n".join(lines(rounds)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
