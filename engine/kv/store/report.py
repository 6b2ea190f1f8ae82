"""What lies on disk, for a reader without an engine, perhaps while another process writes. Reads manifests only."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.kv.chat_key import conversation_of
from engine.kv.store.files import CHUNKS, CONVERSATIONS, DATA_SUFFIX, MANIFEST_SUFFIX, STATES, FileName, StoreFiles
from engine.kv.store.records import Manifest, is_pruned
from engine.kv.store.scan import FolderScan, StoredManifest, names_of, scan_folder
from engine.protocol.events import CacheReported, CacheState, ConversationCache

_ANY_FORMAT = -1


def report_disk(kv_dir: Path, budget_bytes: int) -> CacheReported:
    """Nothing is in memory, every conversation at most on disk. Never raises.

    `disk_bytes` is the size of all chunks, states and manifests, those of no use included; temporary files and
    fingerprint.json do not count. A conversation's own `disk_bytes` are its branches' manifests and all files they
    refer to, each once; `shared_bytes` those of them others refer to as well; in the total each of these counts once.
    Its tokens and its precision are those of what would be used, of the branch and the model used last.
    """
    files = StoreFiles(kv_dir, _ANY_FORMAT)
    kept: dict[str, list[_Kept]] = {}
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
                model = _model_of(files.fingerprint_fields(folder.name) or {})
                counted: dict[str, set[FileName]] = {}
                for stored in scan.manifests:
                    conversation_id = conversation_of(stored.manifest.conversation_id)
                    known = counted.setdefault(conversation_id, set())
                    names = set(names_of(stored.manifest)) - known  # what its other branches have was counted
                    known |= names
                    row = _row(stored, scan, names, shared_names)
                    kept.setdefault(conversation_id, []).append(_Kept(stored, model, row))
    rows = sorted(kept.values(), key=_last_used_ns, reverse=True)
    return CacheReported(None, budget_bytes, 0, total, shared, 0.0, tuple(map(_merged, rows)))


@dataclass(frozen=True, slots=True)
class _Kept:
    """One manifest of a conversation; `model` is the same for what it has in full precision and compressed."""

    stored: StoredManifest
    model: str
    row: ConversationCache


def _model_of(fields: dict[str, Any]) -> str:
    """A fingerprint's fields but for the form that the cache is kept in."""
    return json.dumps({name: fields[name] for name in sorted(fields) if name not in ("codec", "compressed")})


def _last_used_ns(kept: Sequence[_Kept]) -> int:
    return max(one.stored.used_ns for one in kept)


def _merged(kept: Sequence[_Kept]) -> ConversationCache:
    last = max(kept, key=lambda one: one.stored.used_ns)
    key = last.stored.manifest.conversation_id
    same = [one for one in kept if one.model == last.model and one.stored.manifest.conversation_id == key]
    used = max(same, key=lambda one: _rank(one.stored.manifest))
    return replace(
        used.row,
        disk_bytes=sum(one.row.disk_bytes for one in kept),
        shared_bytes=sum(one.row.shared_bytes for one in kept),
    )


def _rank(manifest: Manifest) -> tuple[bool, int, bool]:
    """Of those of one model the highest is used: what the user made smaller, else what reaches furthest."""
    return is_pruned(manifest), len(manifest.token_ids), manifest.is_exact


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
    """Of files that more than one conversation refers to."""
    first: dict[FileName, str] = {}
    shared: set[FileName] = set()
    for stored in scan.manifests:
        conversation_id = conversation_of(stored.manifest.conversation_id)
        shared |= {
            name for name in names_of(stored.manifest) if first.setdefault(name, conversation_id) != conversation_id
        }
    return shared


def _row(
    stored: StoredManifest, scan: FolderScan, names: set[FileName], shared_names: set[FileName]
) -> ConversationCache:
    return ConversationCache(
        conversation_id=conversation_of(stored.manifest.conversation_id),
        tokens=len(stored.manifest.token_ids),
        memory_bytes=0,
        disk_bytes=stored.nbytes + sum(scan.sizes.get(name, 0) for name in names),
        shared_bytes=sum(scan.sizes.get(name, 0) for name in names & shared_names),
        precision=stored.manifest.precision,
        place="disk",
        state=CacheState.ON_DISK,
        kept=stored.manifest.kept,
    )
