"""Ember beside other engines on this machine, in one run: decode, prefill, coming back, memory and start.

make peers                                                       (about ten minutes on two cores)
make peers ARGS="--contexts 64,512 --prompts 512 --rounds 1"     (a short one)
make peers ARGS="--weights 4bit --peers llama-f16 --json peers.json"
make peers ARGS="--from peers.json --readme"                     (the README's table, nothing measured)

Every engine runs in a process of its own, one after the other, and the rounds take turns (A, B, C, A, B, C), so that
whatever else the machine does meets all of them alike. Ratios hold; absolute figures are of this machine and this hour.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.paths import resources_dir
from engine.protocol.config import Weights
from tests.benchmarks import machine
from tests.benchmarks.peer_job import Job, make_token_ids, num_token_ids
from tests.benchmarks.peer_process import compile_now, measure
from tests.benchmarks.peer_report import EngineResult, Report, Take
from tests.benchmarks.peer_table import lines, readme_lines
from tests.benchmarks.readme_block import BlockMissingError, write_block

_MODELS = resources_dir() / "models"
_README = Path(__file__).parents[2] / "README.md"
_NO_LLAMA_CPP = (
    "llama.cpp is left out: `.venv/bin/python -m pip install llama-cpp-python` adds its columns"
    " (pip may need a C++ compiler for it)."
)


@dataclass(frozen=True, slots=True)
class Engine:
    """`module` is run in a process of its own, with the variant in its job."""

    key: str
    title: str
    module: str
    variant: str


_PEERS = {
    "transformers": Engine("transformers-bf16", "transformers bf16", "peer_transformers", "bf16"),
    "llama-f16": Engine("llama-f16", "llama.cpp f16", "peer_llama_cpp", "f16"),
    "llama-f16-flash": Engine("llama-f16-flash", "llama.cpp f16,flash", "peer_llama_cpp", "f16-flash"),
    "ember-int8": Engine("ember-int8", "Ember, int8 cache", "peer_ember", "16bit+int8"),
    "llama-q8_0": Engine("llama-q8_0", "llama.cpp q8_0", "peer_llama_cpp", "q8_0-flash"),
}


def chosen(options: argparse.Namespace) -> list[Engine]:
    """Ember first; llama.cpp only where it and its model are there, which is said otherwise."""
    engines = [Engine(f"ember-{one}", f"Ember {one}", "peer_ember", one) for one in options.weights]
    peers = [_PEERS[name] for name in options.peers]
    if any(engine.module == "peer_llama_cpp" for engine in peers):
        missing = ""
        if importlib.util.find_spec("llama_cpp") is None:
            missing = _NO_LLAMA_CPP
        elif not options.gguf.is_file():
            missing = f"llama.cpp is left out: there is no {options.gguf.name}; name a GGUF file with --gguf."
        if missing:
            print(missing, file=sys.stderr)
            peers = [engine for engine in peers if engine.module != "peer_llama_cpp"]
    return engines + peers


def run(options: argparse.Namespace, engines: Sequence[Engine]) -> Report:
    """All rounds. An engine that fails in one is asked again in the next; its other figures stay. Interrupted, it
    reports what there is by then."""
    results = [EngineResult(engine.key, engine.title) for engine in engines]
    report = Report(
        machine.describe(options.threads), options.contexts, options.prompts, options.steps, options.rounds, results
    )
    if any(result.is_ember for result in results):
        compile_now()  # as the set-up does
    ids = make_token_ids(options.model, num_token_ids(options.prompts, options.contexts, options.steps))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ember-peers-") as scratch, contextlib.suppress(KeyboardInterrupt):
        for number in range(options.rounds):
            for engine, result in zip(engines, results, strict=True):
                busy = machine.busy_percent()
                note = f" (other programs use {busy:.0f}% of the processor)" if busy > machine.BUSY_PERCENT else ""
                now = f"[{time.monotonic() - started:4.0f} s] round {number + 1} of {options.rounds}"
                print(f"{now}: {engine.title}{note}", file=sys.stderr, flush=True)
                is_restart_measured = not result.is_ember or engine is engines[0]  # the cache is that of all weights
                job = Job(
                    variant=engine.variant,
                    token_ids=ids,
                    prompts=options.prompts,
                    contexts=options.contexts,
                    steps=options.steps,
                    threads=options.threads,
                    chunk=options.chunk,
                    is_restart_measured=is_restart_measured and not options.no_restart,
                    model=options.model,
                    gguf=options.gguf,
                    scratch=Path(scratch),
                )
                found, error = measure(engine.module, job, options.timeout)
                if found:
                    result.rounds.append({**found, "others_busy_percent": busy})
                if error:
                    result.errors.append(f"round {number + 1}: {error}")
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl+C: the engine that runs ends too
    if options.from_file:
        report = Report.from_json(options.from_file.read_text(encoding="utf-8"))
    else:
        report = run(options, chosen(options))
    print("\n".join(lines(report, options.take)))
    if options.json:
        options.json.write_text(report.to_json() + "\n", encoding="utf-8")
    if options.readme:
        try:
            write_block(options.readme, "PEERS", readme_lines(report, options.take))
        except BlockMissingError as error:
            print(f"{options.readme.name} was left as it is: {error}", file=sys.stderr)
            return 1
    return 0 if any(engine.rounds for engine in report.engines) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make peers", description=(__doc__ or "").split("\n", 1)[0])
    weights, default_peers = [one.value for one in Weights], ["transformers", "llama-f16", "llama-q8_0"]
    parser.add_argument("--weights", type=_names(weights), default=weights, help=f"of {', '.join(weights)}")
    parser.add_argument("--peers", type=_names([*_PEERS]), default=default_peers, help=f"of {', '.join(_PEERS)}; or ''")
    parser.add_argument("--contexts", type=_numbers, default=(64, 512, 2048, 6144), help="tokens cached while decoding")
    parser.add_argument("--prompts", type=_numbers, default=(512, 2048, 6144), help="tokens read while prefilling")
    parser.add_argument("--steps", type=int, default=32, help="decode steps at each context")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--take", type=Take, choices=[*Take], default=Take.MEDIAN, help="what of the rounds is shown")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--chunk", type=int, default=512, help="tokens fed at a time while prefilling, by all engines")
    parser.add_argument("--no-restart", action="store_true", help="leave out saving and coming back")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one engine in one round")
    parser.add_argument("--model", type=Path, default=_MODELS / "SmolLM2-135M-Instruct")
    parser.add_argument("--gguf", type=Path, default=_MODELS / "gguf" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every number, and the machine, there")
    parser.add_argument("--from", type=Path, metavar="PATH", dest="from_file", help="measure nothing; show that file")
    parser.add_argument("--readme", type=Path, metavar="PATH", nargs="?", const=_README, help="rewrite the table there")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in text.split(",")}))


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Of an argument: known names, parted by commas."""

    def parsed(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(known)}")
        return names

    return parsed


if __name__ == "__main__":
    sys.exit(main())
