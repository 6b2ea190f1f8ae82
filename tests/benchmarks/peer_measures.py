"""What is measured of one engine, in a fresh process of its own; the loop is the same for all of them.

After each part everything known so far is printed as one line of JSON: the last line on standard output counts, so an
engine that fails halfway keeps what it had.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psutil

from tests.benchmarks.peer_job import WARM_STEPS, Job

_WARM_UP_STEPS = 8


class Peer(Protocol):
    """An engine with its model loaded and one empty cache."""

    def feed(self, token_ids: Sequence[int]) -> None:
        """Extend the cache; ends when the logits after the last id are there."""

    def greedy(self) -> int:
        """The likeliest next token."""

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` of the cache."""

    def kv_bytes_per_token(self) -> float:
        """Of a cache that holds something."""

    def restart(self, job: Job) -> dict[str, float] | None:
        """Save `job.longest` cached tokens, come back to them and read `job.message`; None where there is no way.

        The keys: save_s, saved_bytes, restore_s, resumed_ttft_s.
        """

    def note(self) -> str:
        """What has to be known about how it ran; empty if nothing has."""

    def close(self) -> None:
        """End the threads that it has."""


def run(load: Callable[[Job], Peer]) -> None:
    """Called last in an engine's module, so that the time since the process began is that of its imports."""
    import_s = time.time() - psutil.Process().create_time()
    job = Job.from_json(sys.stdin.read())
    started = time.perf_counter()
    peer = load(job)
    load_s = time.perf_counter() - started
    try:
        _measure(peer, job, import_s, load_s)
    finally:
        peer.close()


def _measure(peer: Peer, job: Job, import_s: float, load_s: float) -> None:
    result: dict[str, Any] = {
        "import_s": import_s,
        "load_s": load_s,
        "start_s": import_s + load_s,
        "rss_loaded_bytes": psutil.Process().memory_info().rss,
        "note": peer.note(),
    }
    _tell(result)
    _warm_up(peer, job)
    result["prefill"] = _prefill(peer, job)
    result["kv_bytes_per_token"] = peer.kv_bytes_per_token()
    _tell(result)
    started = time.perf_counter()
    peer.feed(job.message)
    cold_s = result["prefill"]["whole_s"] + time.perf_counter() - started
    result["rss_peak_bytes"] = _peak_bytes()
    peer.rollback(job.longest)
    result["decode"] = {}
    contexts = sorted(job.contexts)
    if contexts[-1] == job.longest:
        result["decode"][str(job.longest)] = _decode(peer, job, contexts.pop())
        _tell(result)
    if job.is_restart_measured:
        result["restart"] = _restart(peer, job, cold_s)
        _tell(result)
    for context in reversed(contexts):
        result["decode"][str(context)] = _decode(peer, job, context)
        _tell(result)


def _warm_up(peer: Peer, job: Job) -> None:
    peer.feed(job.token_ids[: job.chunk])
    for token_id in job.token_ids[job.chunk :][:_WARM_UP_STEPS]:
        peer.feed([token_id])
    peer.rollback(0)


def _prefill(peer: Peer, job: Job) -> dict[str, Any]:
    """One filling of the cache in chunks; each prompt is what has been read by then."""
    found: dict[str, Any] = {}
    done, elapsed = 0, 0.0
    for stop in sorted({*job.prompts, job.longest}):
        started = time.perf_counter()
        _feed_chunks(peer, job, done, stop)
        elapsed += time.perf_counter() - started
        done = stop
        if stop in job.prompts:
            found[str(stop)] = {"tps": stop / elapsed, "s": elapsed, "greedy": peer.greedy()}
    return {**found, "whole_s": elapsed}


def _decode(peer: Peer, job: Job, context: int) -> dict[str, Any]:
    following = job.token_ids[context : context + job.steps]
    peer.rollback(context)
    for token_id in following[:WARM_STEPS]:
        peer.feed([token_id])
    peer.rollback(context)
    times: list[float] = []
    greedy: list[int] = []
    for token_id in following:
        started = time.perf_counter()
        peer.feed([token_id])
        times.append(time.perf_counter() - started)
        greedy.append(peer.greedy())
    mean_s = sum(times) / len(times)
    return {"tps": 1 / mean_s, "ms": mean_s * 1e3, "median_ms": sorted(times)[len(times) // 2] * 1e3, "greedy": greedy}


def _restart(peer: Peer, job: Job, cold_s: float) -> dict[str, Any]:
    """What cannot come back reads everything again, which `cold_s` tells."""
    peer.rollback(job.longest)
    try:
        return {"cold_ttft_s": cold_s, **(peer.restart(job) or {"resumed_ttft_s": cold_s})}
    except (RuntimeError, OSError, AttributeError, TypeError) as error:
        return {"cold_ttft_s": cold_s, "error": f"{type(error).__name__}: {error}"}


def _feed_chunks(peer: Peer, job: Job, start: int, stop: int) -> None:
    for begin in range(start, stop, job.chunk):
        peer.feed(job.token_ids[begin : min(begin + job.chunk, stop)])


def _peak_bytes() -> int:
    """Most memory that this process has had, as the system counts."""
    info = psutil.Process().memory_info()
    if sys.platform == "win32":
        return int(info.peak_wset)
    import resource  # not there on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _tell(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)
