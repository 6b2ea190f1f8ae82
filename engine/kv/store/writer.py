"""Writes conversations on a thread of its own, straight from the caches' memory and only while the engine is idle.

The thread never touches torch: it gets memory views. It stops between slices while the inference thread works, and a
cache that is about to overwrite saved positions first calls `release`, which ends the reading within one slice.
Files first, the manifest last: whatever happens, the disk holds the old state or the new one.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from engine.kv.chat_key import conversation_of
from engine.kv.store.catalog import Catalog
from engine.kv.store.chunk_format import FileLayout
from engine.kv.store.collector import Collector, Eviction
from engine.kv.store.files import FileName
from engine.kv.store.manifest import check_manifest
from engine.kv.store.records import Manifest, NewFile
from engine.kv.store.scan import names_of
from engine.kv.store.scratch_file import ScratchFile, sync_folder

Prepare = Callable[[Callable[[], None]], tuple[Manifest, Sequence[NewFile]]]

SLICE_BYTES = 1024 * 1024
_DISK_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


@dataclass(frozen=True, slots=True)
class SaveResult:
    """How a save ended. `error` is None on success; `is_cancelled`: a newer state or a deletion made it needless.

    `bytes_written` counts all that went to the disk, `bytes_total` all this conversation now refers to. `is_exact`: in
    full precision.
    """

    conversation_id: str
    request_id: str
    tokens: int
    bytes_written: int
    bytes_total: int
    save_s: float
    error: OSError | None = None
    is_cancelled: bool = False
    evicted: tuple[Eviction, ...] = ()
    is_exact: bool = True


@dataclass(slots=True, eq=False)
class _Job:
    catalog: Catalog
    conversation_id: str
    tokens: int
    request_id: str
    manifest: Manifest | None = None
    new_files: Sequence[NewFile] = ()
    names: Sequence[FileName] = ()
    prepare: Prepare | None = None
    written: int = 0
    is_cancelled: bool = False
    is_started: bool = False
    is_reading: bool = False
    is_ended: bool = False
    evicted: list[Eviction] = field(default_factory=list)


class _CancelledError(Exception):
    pass


class StoreWriter:
    """One background writer, for a catalog and those beside it. `on_done` is called on its thread, once a save."""

    def __init__(self, catalog: Catalog, collector: Collector, on_done: Callable[[SaveResult], None]) -> None:
        self._catalog = catalog
        self._collector = collector
        self._on_done = on_done
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._jobs: dict[str, list[_Job]] = {}  # not ended yet
        self._turn = threading.Condition()
        self._is_paused = False
        self._thread = threading.Thread(target=self._run, name="ember-saver", daemon=True)
        self._thread.start()

    def save(self, manifest: Manifest, new_files: Sequence[NewFile], request_id: str) -> None:
        """Queue a conversation; unfinished saves of it are given up, what they wrote already is kept.

        Files that exist are skipped, so `new_files` may simply be all of the manifest's. Raises ManifestRejectedError.
        """
        check_manifest(manifest, self._catalog.fingerprint)
        names = names_of(manifest)
        if not {FileName(new.key, new.is_state) for new in new_files} <= set(names):
            raise ValueError("a file that the manifest does not refer to")
        tokens = len(manifest.token_ids)
        job = _Job(self._catalog, manifest.conversation_id, tokens, request_id, manifest, new_files, names)
        self._catalog.hold(names)
        self._add(job)

    def save_prepared(
        self, conversation_id: str, tokens: int, prepare: Prepare, request_id: str, catalog: Catalog
    ) -> None:
        """The same, under `catalog`, where one has to read all there is to know how files are called.

        `prepare` does that on the writer's thread, and calls what it is given between slices.
        """
        self._add(_Job(catalog, conversation_id, tokens, request_id, prepare=prepare))

    def release(self, conversation_id: str) -> None:
        """Give up the unfinished saves of a conversation and return once its memory is no longer read."""
        with self._turn:
            jobs = self._cancel(conversation_id)
            self._turn.wait_for(lambda: not any(job.is_reading for job in jobs))

    def discard(self, conversation_id: str, catalog: Catalog | None = None) -> None:
        """Give up the unfinished saves of a conversation and return once no file of theirs is left.

        `catalog`: only those under this one.
        """
        with self._turn:
            jobs = self._cancel(conversation_id, catalog)
            self._turn.wait_for(lambda: all(job.is_ended for job in jobs))

    def delete_conversation(self, conversation_id: str) -> None:
        """Leave no byte of a conversation on disk, whatever was being written of any branch. Raises OSError."""
        with self._turn:
            keys = [key for key in self._jobs if conversation_of(key) == conversation_id]
        for key in keys:
            self.discard(key)
        self._collector.delete_conversation(conversation_id)

    def collect(self) -> tuple[Eviction, ...]:
        """Delete what is over the limits now; not what is being saved."""
        with self._turn:
            protected = set(self._jobs)
        return self._collector.collect(protected)

    def is_pending(self, conversation_id: str) -> bool:
        with self._turn:
            return any(not job.is_cancelled for job in self._jobs.get(conversation_id, ()))

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
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _add(self, job: _Job) -> None:
        with self._turn:
            self._cancel(job.conversation_id)
            self._jobs.setdefault(job.conversation_id, []).append(job)
        self._queue.put(job)

    def _cancel(self, conversation_id: str, catalog: Catalog | None = None) -> list[_Job]:
        """With the lock held: mark all jobs of a conversation; those not begun end here."""
        jobs = [job for job in self._jobs.get(conversation_id, ()) if catalog in (None, job.catalog)]
        for job in jobs:
            job.is_cancelled = True
            if not job.is_started:
                self._end(job)
        self._turn.notify_all()
        return jobs

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            started = time.perf_counter()
            error: OSError | None = None
            is_cancelled = False
            try:
                self._save(job)
                if not job.is_cancelled:
                    job.evicted += self._collect(job)
            except OSError as caught:
                error = caught.with_traceback(None)  # its frames hold views of the cache's memory
                error.__context__ = None
            except _CancelledError:
                is_cancelled = True
            self._on_done(
                SaveResult(
                    conversation_id=job.conversation_id,
                    request_id=job.request_id,
                    tokens=job.tokens,
                    bytes_written=job.written,
                    bytes_total=self._collector.disk_bytes(job.conversation_id),
                    save_s=time.perf_counter() - started,
                    error=error,
                    is_cancelled=is_cancelled,
                    evicted=tuple(job.evicted),
                    is_exact=job.catalog is self._catalog,
                )
            )

    def _save(self, job: _Job) -> None:
        """One attempt, and a second one if something could be done about the first's failure."""
        try:
            with self._unless_cancelled(job):
                job.is_started = True
            if job.prepare is not None:
                self._prepare(job, job.prepare)
            try:
                self._attempt(job)
            except OSError as error:
                if not self._can_retry(job, error):
                    raise
                self._attempt(job)
        finally:
            with self._turn:
                self._end(job)
                self._turn.notify_all()

    def _prepare(self, job: _Job, prepare: Prepare) -> None:
        with self._unless_cancelled(job):
            job.is_reading = True
        try:
            manifest, new_files = prepare(lambda: self._wait_for_turn(job))
            check_manifest(manifest, job.catalog.fingerprint)
            job.catalog.hold(names := names_of(manifest))
            job.names = names
            job.manifest, job.new_files = manifest, new_files
        finally:
            job.prepare = None
            self._stop_reading(job)

    def _can_retry(self, job: _Job, error: OSError) -> bool:
        if isinstance(error, FileNotFoundError):  # a damaged file was removed after we had found it
            return True
        if error.errno not in _DISK_FULL or not self._collector.is_over(_new_bytes(job)):
            return False
        job.evicted += self._collect(job, _new_bytes(job))
        return bool(job.evicted)

    def _collect(self, job: _Job, needed_bytes: int = 0) -> tuple[Eviction, ...]:
        with self._turn:
            protected = {job.conversation_id, *self._jobs}
        return self._collector.collect(protected, needed_bytes)

    def _attempt(self, job: _Job) -> None:
        if not self._collector.has_room(_new_bytes(job)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with self._unless_cancelled(job):
            job.is_reading = True
        folders: set[Path] = set()
        try:
            for index, new_file in enumerate(job.new_files):
                folders.add(self._write_file(job, new_file, is_last=index == len(job.new_files) - 1))
        finally:
            self._stop_reading(job)
        for folder in folders:
            sync_folder(folder)
        assert job.manifest is not None
        job.written += job.catalog.put(job.manifest, self._unless_cancelled(job))

    def _write_file(self, job: _Job, new_file: NewFile, *, is_last: bool) -> Path:
        """Write a file unless it is there already. Returns its folder, whose names are not durable yet."""
        name = FileName(new_file.key, new_file.is_state)
        catalog = job.catalog
        layout = FileLayout.of(catalog.fingerprint, name.key, [tensor.spec for tensor in new_file.tensors])
        path = catalog.files.path(catalog.fingerprint, name)
        self._wait_for_turn(job)
        if not catalog.has_whole(name, layout.file_bytes):
            catalog.files.make_folder(path.parent)
            with catalog.files.scratch(path) as scratch:
                self._write_content(job, scratch, layout, new_file)
                if is_last:
                    self._stop_reading(job)
                scratch.finish()
                catalog.publish(scratch, name, layout.file_bytes)
        return path.parent

    def _write_content(self, job: _Job, scratch: ScratchFile, layout: FileLayout, new_file: NewFile) -> None:
        scratch.write(layout.header())
        job.written += layout.header_bytes
        checksums: list[str] = []
        for tensor in new_file.tensors:
            digest = xxhash.xxh3_128()
            for piece in tensor.pieces:
                for start in range(0, len(piece), SLICE_BYTES):
                    self._wait_for_turn(job)
                    part = piece[start : start + SLICE_BYTES]
                    digest.update(part)
                    scratch.write(part)
                    job.written += len(part)
            checksums.append(digest.hexdigest())
        scratch.rewrite_start(layout.header(checksums))

    def _wait_for_turn(self, job: _Job) -> None:
        with self._turn:
            self._turn.wait_for(lambda: job.is_cancelled or not self._is_paused)
            if job.is_cancelled:
                raise _CancelledError

    @contextmanager
    def _unless_cancelled(self, job: _Job) -> Iterator[None]:
        """Nobody can cancel inside; a deletion that comes now waits, and then finds the files."""
        with self._turn:
            if job.is_cancelled:
                raise _CancelledError
            yield

    def _stop_reading(self, job: _Job) -> None:
        with self._turn:
            job.is_reading = False
            self._turn.notify_all()

    def _end(self, job: _Job) -> None:
        """With the lock held: the job has no files of its own any more."""
        if job.is_ended:
            return
        job.is_ended = True
        job.new_files, job.prepare = (), None  # the views keep the cache's memory alive
        jobs = self._jobs[job.conversation_id]
        jobs.remove(job)
        if not jobs:
            del self._jobs[job.conversation_id]
        job.catalog.let_go(job.names)


def _new_bytes(job: _Job) -> int:
    return sum(tensor.spec.nbytes for new_file in job.new_files for tensor in new_file.tensors)
