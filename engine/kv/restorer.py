"""Reads a snapshot into fresh memory: checked first, published last. Any doubt ends in SnapshotRejectedError."""

from __future__ import annotations

import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import xxhash

from engine.kv.arena import KVArena, KVGeometry
from engine.kv.snapshot_tensors import arena_pieces, snapshot_specs
from engine.kv.snapshots import build_header, read_header
from engine.kv.working_cache import WorkingCache

_NUM_THREADS = 2


class SnapshotRejectedError(Exception):
    """The file is not exactly what was saved; the message is the reason, for `miss_reason`."""


class SnapshotRestorer:
    """Reads snapshots made under one fingerprint and geometry."""

    def __init__(self, fingerprint: str, geometry: KVGeometry) -> None:
        self._fingerprint = fingerprint
        self._geometry = geometry
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="ember-restore")

    def close(self) -> None:
        self._threads.shutdown()

    def token_ids(self, path: Path) -> list[int]:
        """The ids a snapshot claims to hold, its header and their checksum verified. Raises SnapshotRejectedError."""
        raw, checksums, num_tokens = self._checked_header(path)
        try:
            with path.open("rb") as file:
                file.seek(len(raw))
                data = file.read(4 * num_tokens)
        except OSError as error:
            raise SnapshotRejectedError(f"the snapshot could not be read: {error.strerror}") from error
        if xxhash.xxh3_128_hexdigest(data) != checksums[0]:
            raise SnapshotRejectedError("the snapshot is damaged: checksum differs")
        return list(array.array("I", data))

    def restore(self, path: Path, cache: WorkingCache, token_ids: Sequence[int]) -> None:
        """Fill `cache` from the snapshot whose ids are `token_ids` (as `token_ids()` returned them).

        Every tensor is checked against its checksum. Raises SnapshotRejectedError, and then the cache is empty.
        """
        raw, checksums, num_tokens = self._checked_header(path)
        if num_tokens != len(token_ids):
            raise SnapshotRejectedError("the snapshot changed while it was read")
        cache.truncate(0)
        cache.reserve(num_tokens)
        on_cpu = cache.arena.device.type == "cpu"
        arena = cache.arena if on_cpu else KVArena(self._geometry, num_tokens, torch.device("cpu"))
        sides = arena_pieces(arena, num_tokens)
        offset = len(raw) + 4 * num_tokens
        jobs: list[tuple[tuple[memoryview, ...], int, str]] = []
        for pieces, checksum in zip(sides, checksums[1:], strict=True):
            jobs.append((pieces, offset, checksum))
            offset += sum(len(piece) for piece in pieces)
        try:
            readings = [
                self._threads.submit(_read_checked, path, jobs[part::_NUM_THREADS]) for part in range(_NUM_THREADS)
            ]
            is_intact = all(reading.result() for reading in readings)
        except OSError as error:
            raise SnapshotRejectedError(f"the snapshot could not be read: {error.strerror}") from error
        if not is_intact:
            raise SnapshotRejectedError("the snapshot is damaged: checksum differs")
        if not on_cpu:
            cache.arena.copy_from(arena, num_tokens)
        cache.publish(list(token_ids))

    def _checked_header(self, path: Path) -> tuple[bytes, list[str], int]:
        """Raw header, checksums and token count, once the header equals the one this file must have."""
        try:
            raw, parsed = read_header(path)
            size = path.stat().st_size
        except OSError as error:
            raise SnapshotRejectedError(f"the snapshot could not be read: {error.strerror}") from error
        except ValueError as error:
            raise SnapshotRejectedError(f"the snapshot is damaged: {error}") from error
        num_tokens = int(parsed["__metadata__"]["tokens"])
        checksums = str(parsed["__metadata__"]["checksums"]).split(",")
        specs = snapshot_specs(self._geometry, num_tokens)
        expected_size = len(raw) + sum(spec.nbytes for spec in specs)
        if size != expected_size:
            raise SnapshotRejectedError("the snapshot is damaged: its size is wrong")
        if len(checksums) != len(specs) or raw != build_header(specs, self._fingerprint, checksums):
            raise SnapshotRejectedError("the snapshot is damaged: header differs")
        return raw, checksums, num_tokens


def _read_checked(path: Path, jobs: list[tuple[tuple[memoryview, ...], int, str]]) -> bool:
    """Read each side's pieces from its offset and compare its checksum; False at the first difference."""
    with path.open("rb", buffering=0) as file:
        for pieces, start, checksum in jobs:
            digest = xxhash.xxh3_128()
            file.seek(start)
            for piece in pieces:
                rest = piece
                while rest:
                    count = file.readinto(rest)
                    if not count:
                        return False
                    rest = rest[count:]
                digest.update(piece)
            if digest.hexdigest() != checksum:
                return False
    return True
