"""Reads chunks and states into the caller's memory: checked first, and published by the caller only if intact.

Nothing in a file is trusted: a chunk's header is rebuilt and compared, its size, token ids and checksums too; shapes of
a state or a lossy chunk are bounded by the file's real size before anything is allocated.
"""

from __future__ import annotations

import array
import io
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import xxhash

from engine.kv.store.chunk_format import (
    MAX_HEADER_BYTES,
    TOKEN_IDS,
    FileLayout,
    content_tag,
    parse_header,
    token_ids_spec,
)
from engine.kv.store.files import FileName, StoreFiles
from engine.kv.store.problems import ChunkRejectedError, StoreProblem
from engine.kv.store.records import ChunkRef, StateRef, TensorSpec

_NUM_THREADS = 2
_SLICE_BYTES = 1024 * 1024
_MAX_BATCH = 256  # buffers in one system call

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
        return self._read_described(FileName(ref.key, True), _own_memory, None)

    def read_lossy(
        self, ref: ChunkRef, token_ids: Sequence[int], allocate: Callable[[int], memoryview]
    ) -> dict[str, tuple[TensorSpec, memoryview]]:
        """The tensors of a lossy chunk but for its ids, in file order, in memory from `allocate`.

        What they are and what is in them is what was saved. Raises ChunkRejectedError.
        """
        found = self._read_described(FileName(ref.key, False), allocate, ref.tag)
        spec, ids = found.pop(TOKEN_IDS, (None, memoryview(b"")))
        if spec != token_ids_spec(ref.tokens) or ids != memoryview(array.array("I", token_ids)).cast("B"):
            raise ChunkRejectedError(StoreProblem.FOREIGN, ref.key, "token ids differ")
        return found

    def tensor_names(self, ref: ChunkRef) -> list[str]:
        """The names of the tensors of a lossy chunk but for its ids, in file order. Raises ChunkRejectedError."""
        with self._open(FileName(ref.key, False)) as file:
            layout, _ = self._read_header(file, ref.key)
        return [spec.name for spec in layout.specs if spec.name != TOKEN_IDS]

    def _read_header(self, file: io.FileIO, key: str) -> tuple[FileLayout, list[str] | None]:
        with _problems(key):
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
        start = _read_exactly(file, 8, key)
        length = int(struct.unpack("<Q", start)[0])
        if length > MAX_HEADER_BYTES:
            raise ChunkRejectedError(StoreProblem.FOREIGN, key, "header too large")
        if length > size - 8:
            raise ChunkRejectedError(StoreProblem.CUT_SHORT, key)
        raw = start + _read_exactly(file, length, key)
        layout = parse_header(raw, self._fingerprint, key, size)
        _check_size(layout, size, key)
        return layout, layout.checksums(raw)

    def _read_described(
        self, name: FileName, allocate: Callable[[int], memoryview], tag: str | None
    ) -> dict[str, tuple[TensorSpec, memoryview]]:
        """All tensors of a file that tells their shapes, and whose content has this `tag`."""
        key = name.key
        with self._open(name) as file:
            layout, checksums = self._read_header(file, key)
            if checksums is None or (tag is not None and content_tag(layout.specs, checksums) != tag):
                raise ChunkRejectedError(StoreProblem.FOREIGN, key, "not what was saved")
            memory = [allocate(spec.nbytes) for spec in layout.specs]
            if _read_tensors(file, [(data,) for data in memory], key, _never) != checksums:
                raise ChunkRejectedError(StoreProblem.CHECKSUM, key)
            return {spec.name: (spec, data) for spec, data in zip(layout.specs, memory, strict=True)}

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
        for spec, pieces in zip(job.specs, job.pieces, strict=True):
            if sum(len(piece) for piece in pieces) != spec.nbytes:
                raise ValueError(f"memory for {spec.name} has the wrong size")
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
            if _read_tensors(file, [(ids,), *job.pieces], key, is_cancelled) != checksums:
                raise ChunkRejectedError(StoreProblem.CHECKSUM, key)
            if ids != memoryview(array.array("I", job.token_ids)).cast("B"):
                raise ChunkRejectedError(StoreProblem.FOREIGN, key, "token ids differ")

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


def _read_tensors(file: io.FileIO, tensors: Sequence[Pieces], key: str, is_cancelled: Callable[[], bool]) -> list[str]:
    """Fill all pieces, which follow one another in the file, and return each tensor's checksum."""
    digests = [xxhash.xxh3_128() for _ in tensors]
    batch: list[tuple[int, memoryview]] = []
    batch_bytes = 0
    for index, pieces in enumerate(tensors):
        for piece in pieces:
            for start in range(0, len(piece), _SLICE_BYTES):
                part = piece[start : start + _SLICE_BYTES]
                batch.append((index, part))
                batch_bytes += len(part)
                if batch_bytes >= _SLICE_BYTES or len(batch) >= _MAX_BATCH:
                    _read_batch(file, batch, digests, key, is_cancelled)
                    batch, batch_bytes = [], 0
    _read_batch(file, batch, digests, key, is_cancelled)
    return [digest.hexdigest() for digest in digests]


def _read_batch(
    file: io.FileIO,
    batch: Sequence[tuple[int, memoryview]],
    digests: Sequence[xxhash.xxh3_128],
    key: str,
    is_cancelled: Callable[[], bool],
) -> None:
    """Read about a megabyte with one system call, which lets two threads work at once; then hash it while warm."""
    if is_cancelled():
        raise _CancelledError
    rest = [part for _, part in batch]
    with _problems(key):
        while rest:
            count = os.readv(file.fileno(), rest) if hasattr(os, "readv") else (file.readinto(rest[0]) or 0)
            if count == 0:
                raise ChunkRejectedError(StoreProblem.CUT_SHORT, key)
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][count:]
    for index, part in batch:
        digests[index].update(part)


def _never() -> bool:
    return False


def _own_memory(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))
