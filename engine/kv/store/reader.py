"""Reads chunks and states into the caller's memory: checked first, and published by the caller only if intact.

Nothing in a file is trusted: a chunk's header is rebuilt and compared, its size, token ids and checksums too; a state's
shapes are bounded by the file's real size before anything is allocated.
"""

from __future__ import annotations

import array
import io
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import xxhash

from engine.kv.store.chunk_format import MAX_STATE_HEADER_BYTES, FileLayout, parse_state_header, token_ids_spec
from engine.kv.store.files import FileName, StoreFiles
from engine.kv.store.problems import ChunkRejectedError, StoreProblem
from engine.kv.store.records import ChunkRef, StateRef, TensorSpec

_NUM_THREADS = 2
_SLICE_BYTES = 1024 * 1024

Pieces = tuple[memoryview, ...]


@dataclass(frozen=True, slots=True)
class ChunkJob:
    """A chunk to read: `pieces[i]` is the writable memory of `specs[i]`; the token ids come before them in the file."""

    ref: ChunkRef
    token_ids: Sequence[int]
    specs: Sequence[TensorSpec]
    pieces: Sequence[Pieces]


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The first `num_intact` chunks are in memory, whole; `problem` says why not all, None after a cancellation too."""

    num_intact: int
    problem: ChunkRejectedError | None
    bytes_read: int
    seconds: float


class _CancelledError(Exception):
    pass


class StoreReader:
    """Reads files made under one fingerprint, several of a conversation at once."""

    def __init__(self, files: StoreFiles, fingerprint: str) -> None:
        self._files = files
        self._fingerprint = fingerprint
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="ember-restore")

    def close(self) -> None:
        self._threads.shutdown()

    def read_chunk(
        self, ref: ChunkRef, token_ids: Sequence[int], specs: Sequence[TensorSpec], pieces: Sequence[Pieces]
    ) -> None:
        """Fill `pieces`. Raises ChunkRejectedError, and then their content is worthless."""
        self._read_chunk(ChunkJob(ref, token_ids, specs, pieces), _never)

    def read_chunks(self, jobs: Sequence[ChunkJob], is_cancelled: Callable[[], bool] | None = None) -> ReadResult:
        """Read a conversation's chunks, in order, until one is not intact; `is_cancelled` is asked between slices."""
        started = time.perf_counter()
        run = _Run(len(jobs), is_cancelled or _never)
        readings = [self._threads.submit(self._read_some, jobs, run) for _ in range(_NUM_THREADS)]
        for reading in readings:
            reading.result()
        num_intact = next((index for index, done in enumerate(run.intact) if not done), len(jobs))
        bytes_read = sum(spec.nbytes for job, done in zip(jobs, run.intact, strict=True) if done for spec in job.specs)
        return ReadResult(num_intact, run.problems.get(num_intact), bytes_read, time.perf_counter() - started)

    def read_state(self, ref: StateRef) -> dict[str, tuple[TensorSpec, memoryview]]:
        """The tensors of a state, in file order, in memory of their own. Raises ChunkRejectedError."""
        with self._open(FileName(ref.key, True)) as file:
            with _problems(ref.key):
                size = file.seek(0, io.SEEK_END)
                file.seek(0)
            start = _read_exactly(file, 8, ref.key)
            length = int(struct.unpack("<Q", start)[0])
            if length > MAX_STATE_HEADER_BYTES:
                raise ChunkRejectedError(StoreProblem.FOREIGN, ref.key, "header too large")
            if length > size - 8:
                raise ChunkRejectedError(StoreProblem.CUT_SHORT, ref.key)
            raw = start + _read_exactly(file, length, ref.key)
            layout = parse_state_header(raw, self._fingerprint, ref.key, size)
            _check_size(layout, size, ref.key)
            tensors: dict[str, tuple[TensorSpec, memoryview]] = {}
            for spec, checksum in zip(layout.specs, layout.checksums(raw) or (), strict=True):
                data = memoryview(bytearray(spec.nbytes))
                _read_tensor(file, (data,), checksum, ref.key, _never)
                tensors[spec.name] = (spec, data)
            return tensors

    def _read_some(self, jobs: Sequence[ChunkJob], run: _Run) -> None:
        """One of the threads: take the next chunk until there is none, or one before it was rejected."""
        while (index := run.take()) is not None:
            try:
                self._read_chunk(jobs[index], run.is_cancelled)
            except ChunkRejectedError as problem:
                run.stop(index, problem)
            except _CancelledError:
                return
            else:
                run.intact[index] = True

    def _read_chunk(self, job: ChunkJob, is_cancelled: Callable[[], bool]) -> None:
        key = job.ref.key
        layout = FileLayout.of(self._fingerprint, key, (token_ids_spec(job.ref.tokens), *job.specs))
        with self._open(FileName(key, False)) as file:
            with _problems(key):
                size = file.seek(0, io.SEEK_END)
                file.seek(0)
            raw = _read_exactly(file, layout.header_bytes, key)
            checksums = layout.checksums(raw)
            if checksums is None:
                raise ChunkRejectedError(StoreProblem.FOREIGN, key, "header differs")
            _check_size(layout, size, key)
            ids = memoryview(bytearray(layout.specs[0].nbytes))
            _read_tensor(file, (ids,), checksums[0], key, is_cancelled)
            if ids != memoryview(array.array("I", job.token_ids)).cast("B"):
                raise ChunkRejectedError(StoreProblem.FOREIGN, key, "token ids differ")
            for spec, pieces, checksum in zip(job.specs, job.pieces, checksums[1:], strict=True):
                if sum(piece.nbytes for piece in pieces) != spec.nbytes:
                    raise ValueError(f"memory for {spec.name} has the wrong size")
                _read_tensor(file, pieces, checksum, key, is_cancelled)

    def _open(self, name: FileName) -> io.FileIO:
        path = self._files.path(self._fingerprint, name)
        with _problems(name.key):
            return path.open("rb", buffering=0)


class _Run:
    """What the threads of one `read_chunks` share."""

    def __init__(self, num_jobs: int, is_cancelled: Callable[[], bool]) -> None:
        self.is_cancelled = is_cancelled
        self.intact = [False] * num_jobs
        self.problems: dict[int, ChunkRejectedError] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._end = num_jobs

    def take(self) -> int | None:
        with self._lock:
            if self._next >= self._end:
                return None
            self._next += 1
            return self._next - 1

    def stop(self, index: int, problem: ChunkRejectedError) -> None:
        with self._lock:
            self.problems[index] = problem
            self._end = min(self._end, index)


@contextmanager
def _problems(key: str) -> Iterator[None]:
    """Turn what the system says into a problem of the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise ChunkRejectedError(StoreProblem.MISSING, key) from error
    except OSError as error:
        raise ChunkRejectedError(StoreProblem.UNREADABLE, key, error.strerror or "") from error


def _read_exactly(file: io.FileIO, count: int, key: str) -> bytes:
    with _problems(key):
        data = file.read(count)
    if data is None or len(data) < count:
        raise ChunkRejectedError(StoreProblem.CUT_SHORT, key)
    return data


def _check_size(layout: FileLayout, size: int, key: str) -> None:
    if size != layout.file_bytes:
        code = StoreProblem.CUT_SHORT if size < layout.file_bytes else StoreProblem.FOREIGN
        raise ChunkRejectedError(code, key, "size differs")


def _read_tensor(file: io.FileIO, pieces: Pieces, checksum: str, key: str, is_cancelled: Callable[[], bool]) -> None:
    digest = xxhash.xxh3_128()
    for piece in pieces:
        for start in range(0, len(piece), _SLICE_BYTES):
            if is_cancelled():
                raise _CancelledError
            part = rest = piece[start : start + _SLICE_BYTES]
            while rest:
                with _problems(key):
                    count = file.readinto(rest)
                if not count:
                    raise ChunkRejectedError(StoreProblem.CUT_SHORT, key)
                rest = rest[count:]
            digest.update(part)
    if digest.hexdigest() != checksum:
        raise ChunkRejectedError(StoreProblem.CHECKSUM, key)


def _never() -> bool:
    return False
