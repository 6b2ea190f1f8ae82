"""Writes snapshots on a thread of its own, straight from the caches' memory and only while the engine is idle.

The thread never touches torch: it gets memory views. It stops between slices while the inference thread works, and a
cache that is about to overwrite saved positions first calls `release`, which ends the reading within one slice.
A snapshot appears under its name only when it is whole: temporary name, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from engine.kv.snapshot_tensors import TensorBytes
from engine.kv.snapshots import TEMPORARY_SUFFIX, build_header

SLICE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SaveResult:
    """How a save ended. `error` is None on success; `is_cancelled`: a newer state or a deletion made it needless."""

    conversation_id: str
    request_id: str
    tokens: int
    bytes_written: int
    save_s: float
    error: OSError | None = None
    is_cancelled: bool = False


@dataclass(slots=True)
class _Job:
    conversation_id: str
    request_id: str
    path: Path
    fingerprint: str
    tensors: list[TensorBytes]
    is_started: bool = False
    is_cancelled: bool = False
    released: threading.Event = field(default_factory=threading.Event)


class _CancelledError(Exception):
    pass


class SnapshotSaver:
    """One background writer. `on_done` is called on its thread."""

    def __init__(self, on_done: Callable[[SaveResult], None]) -> None:
        self._on_done = on_done
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._pending: dict[str, _Job] = {}
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._is_paused = False
        self._thread = threading.Thread(target=self._run, name="ember-saver", daemon=True)
        self._thread.start()

    def save(
        self, conversation_id: str, request_id: str, path: Path, fingerprint: str, data: list[TensorBytes]
    ) -> None:
        """Queue a snapshot; an unfinished one of the same conversation is given up."""
        job = _Job(conversation_id, request_id, path, fingerprint, data)
        self.release(conversation_id)
        with self._lock:
            self._pending[conversation_id] = job
        self._jobs.put(job)

    def release(self, conversation_id: str) -> None:
        """Give up the unfinished save of a conversation and return once its memory is no longer read."""
        with self._turn:
            job = self._pending.pop(conversation_id, None)
            if job is None:
                return
            job.is_cancelled = True
            self._turn.notify_all()
            if not job.is_started:
                return
        job.released.wait()

    def is_pending(self, conversation_id: str) -> bool:
        with self._lock:
            return conversation_id in self._pending

    def pause(self) -> None:
        """The inference thread starts to work: write nothing more until `resume`."""
        with self._turn:
            self._is_paused = True

    def resume(self) -> None:
        with self._turn:
            self._is_paused = False
            self._turn.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued and end the thread. Returns whether it ended in time."""
        self.resume()
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                job.is_started = True
            result = self._write(job)
            job.released.set()
            with self._lock:
                if self._pending.get(job.conversation_id) is job:
                    del self._pending[job.conversation_id]
            self._on_done(result)

    def _write(self, job: _Job) -> SaveResult:
        started = time.perf_counter()
        scratch = job.path.with_name(f".{job.path.stem}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
        written = 0
        error: OSError | None = None
        is_cancelled = False
        try:
            self._wait_for_turn(job)
            descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            try:
                written = self._write_file(descriptor, job)
                job.released.set()
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with self._lock:  # a deletion that comes now waits, and then finds the file
                if job.is_cancelled:
                    raise _CancelledError
                scratch.replace(job.path)
            _sync_folder(job.path.parent)
        except OSError as caught:
            error = caught
        except _CancelledError:
            is_cancelled = True
        if error is not None or is_cancelled:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
        tokens = job.tensors[0].spec.shape[0]
        save_s = time.perf_counter() - started
        return SaveResult(job.conversation_id, job.request_id, tokens, written, save_s, error, is_cancelled)

    def _write_file(self, descriptor: int, job: _Job) -> int:
        specs = [tensor.spec for tensor in job.tensors]
        blank = build_header(specs, job.fingerprint, ["0" * 32] * len(specs))
        _write_all(descriptor, memoryview(blank))
        checksums: list[str] = []
        written = len(blank)
        for tensor in job.tensors:
            digest = xxhash.xxh3_128()
            for piece in tensor.pieces:
                for start in range(0, len(piece), SLICE_BYTES):
                    self._wait_for_turn(job)
                    part = piece[start : start + SLICE_BYTES]
                    digest.update(part)
                    _write_all(descriptor, part)
                    written += len(part)
            checksums.append(digest.hexdigest())
        os.lseek(descriptor, 0, os.SEEK_SET)
        _write_all(descriptor, memoryview(build_header(specs, job.fingerprint, checksums)))
        return written

    def _wait_for_turn(self, job: _Job) -> None:
        with self._turn:
            self._turn.wait_for(lambda: job.is_cancelled or not self._is_paused)
            if job.is_cancelled:
                raise _CancelledError


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
