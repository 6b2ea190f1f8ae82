"""What lies on disk, for a reader without an engine, perhaps while another process writes. Reads manifests only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engine.kv.store.files import CHUNKS, CONVERSATIONS, DATA_SUFFIX, MANIFEST_SUFFIX, STATES, FileName, StoreFiles
from engine.kv.store.scan import FolderScan, StoredManifest, names_of, scan_folder
from engine.protocol.events import CacheReported, CacheState, ConversationCache

_ANY_FORMAT = -1


def report_disk(kv_dir: Path, budget_bytes: int) -> CacheReported:
    """Nothing is in memory, every conversation at most on disk. Never raises.

    `disk_bytes` is the size of all chunks, states and manifests, those of no use included; temporary files and
    fingerprint.json do not count. A conversation's own `disk_bytes` are its manifests and all files they refer to,
    `shared_bytes` those of them others refer to as well; in the total each of these counts once.
    """
    files = StoreFiles(kv_dir, _ANY_FORMAT)
    rows: list[tuple[int, ConversationCache]] = []
    total = shared = 0
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        folders = files.folders()
    for folder in folders:
        total += folder_bytes(folder)
        with contextlib.suppress(OSError):
            fingerprint = files.digest_of(folder)
            if fingerprint is not None:
                scan = scan_folder(files, fingerprint)
                shared_names = _shared_names(scan)
                shared += sum(scan.sizes.get(name, 0) for name in shared_names)
                rows += [(stored.used_ns, _row(stored, scan, shared_names)) for stored in scan.manifests]
    conversations: dict[str, ConversationCache] = {}
    for _, row in sorted(rows, key=lambda item: item[0], reverse=True):
        known = conversations.get(row.conversation_id)
        conversations[row.conversation_id] = (
            replace(
                known,
                disk_bytes=known.disk_bytes + row.disk_bytes,
                shared_bytes=known.shared_bytes + row.shared_bytes,
            )
            if known
            else row
        )
    return CacheReported(None, budget_bytes, 0, total, shared, 0.0, tuple(conversations.values()))


def folder_bytes(folder: Path) -> int:
    """Size of all chunks, states and manifests below a fingerprint's folder; what cannot be seen counts nothing."""
    total = 0
    for parent, depth in ((CHUNKS, 1), (STATES, 1), (CONVERSATIONS, 0)):
        for entry in _files(folder / parent, depth):
            if entry.name.endswith((DATA_SUFFIX, MANIFEST_SUFFIX)):
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _files(folder: Path, depth: int) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        entries = list(found)
        for entry in entries:
            if depth and entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path), depth - 1)
            elif not depth:
                yield entry


def _shared_names(scan: FolderScan) -> set[FileName]:
    seen: set[FileName] = set()
    shared: set[FileName] = set()
    for stored in scan.manifests:
        names = set(names_of(stored.manifest))
        shared |= names & seen
        seen |= names
    return shared


def _row(stored: StoredManifest, scan: FolderScan, shared_names: set[FileName]) -> ConversationCache:
    names = set(names_of(stored.manifest))
    return ConversationCache(
        conversation_id=stored.manifest.conversation_id,
        tokens=len(stored.manifest.token_ids),
        memory_bytes=0,
        disk_bytes=stored.nbytes + sum(scan.sizes.get(name, 0) for name in names),
        shared_bytes=sum(scan.sizes.get(name, 0) for name in names & shared_names),
        precision=stored.manifest.precision,
        place="disk",
        state=CacheState.ON_DISK,
    )
