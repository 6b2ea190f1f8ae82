"""What lies in one fingerprint's folder right now: manifests, files and their sizes. Reads manifests, nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.kv.store.files import (
    CHUNKS,
    CONVERSATIONS,
    DATA_SUFFIX,
    KEY,
    MANIFEST_SUFFIX,
    STATES,
    FileName,
    StoreFiles,
    file_stem,
)
from engine.kv.store.manifest import read_manifest
from engine.kv.store.problems import ManifestRejectedError, StoreProblem
from engine.kv.store.records import ChunkRef, Manifest, StateRef


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest as far as its files exist; `used_ns` is when its conversation was last used."""

    manifest: Manifest
    nbytes: int
    used_ns: int


@dataclass(slots=True)
class FolderScan:
    """`is_complete` is False when the system refused to show something: then nothing may be called unreferenced."""

    manifests: list[StoredManifest] = field(default_factory=list)
    sizes: dict[FileName, int] = field(default_factory=dict)
    strangers: list[Path] = field(default_factory=list)  # rejected manifests, temporary files, and what is not ours
    is_complete: bool = True

    def referenced(self) -> set[FileName]:
        return {name for stored in self.manifests for name in names_of(stored.manifest)}


def names_of(manifest: Manifest) -> list[FileName]:
    """All files a manifest refers to, in order; a name twice if it does so twice."""
    chunks = [FileName(chunk.key, False) for chunk in manifest.chunks]
    return chunks + [FileName(state.key, True) for state in manifest.states]


def without(manifest: Manifest, name: FileName) -> Manifest | None:
    """The manifest up to the chunk `name`, or less the state `name`; None when nothing is left."""
    if name.is_state:
        return replace(manifest, states=tuple(state for state in manifest.states if state.key != name.key))
    keys = [chunk.key for chunk in manifest.chunks]
    if name.key not in keys:
        return manifest
    chunks: tuple[ChunkRef, ...] = manifest.chunks[: keys.index(name.key)]
    tokens = sum(chunk.tokens for chunk in chunks)
    states: tuple[StateRef, ...] = tuple(state for state in manifest.states if state.position <= tokens)
    if not chunks or tokens < manifest.moved_tokens:
        return None
    return replace(manifest, token_ids=manifest.token_ids[:tokens], chunks=chunks, states=states)


def scan_folder(files: StoreFiles, fingerprint: str) -> FolderScan:
    """Never raises: what cannot be seen makes the scan incomplete."""
    scan = FolderScan()
    folder = files.folder(fingerprint)
    for kind in (CHUNKS, STATES):
        for shard in _entries(folder / kind, scan):
            if not shard.is_dir(follow_symlinks=False):
                scan.strangers.append(Path(shard.path))
                continue
            for entry in _entries(Path(shard.path), scan):
                _add_file(scan, entry, shard.name, is_state=kind == STATES)
    for entry in _entries(folder / CONVERSATIONS, scan):
        _add_manifest(scan, files, entry, fingerprint)
    return scan


def _add_file(scan: FolderScan, entry: os.DirEntry[str], shard: str, *, is_state: bool) -> None:
    key = entry.name.removesuffix(DATA_SUFFIX)
    if key == entry.name or not KEY.fullmatch(key) or key[:2] != shard:
        scan.strangers.append(Path(entry.path))
        return
    if not entry.is_file(follow_symlinks=False):
        scan.strangers.append(Path(entry.path))
        return
    try:
        scan.sizes[FileName(key, is_state)] = entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return
    except OSError:
        scan.is_complete = False


def _add_manifest(scan: FolderScan, files: StoreFiles, entry: os.DirEntry[str], fingerprint: str) -> None:
    path = Path(entry.path)
    if path.suffix != MANIFEST_SUFFIX:
        scan.strangers.append(path)
        return
    if not entry.is_file(follow_symlinks=False):
        scan.strangers.append(path)
        files.lost[path.stem] = StoreProblem.FOREIGN
        return
    try:
        manifest, nbytes = read_manifest(path, fingerprint)
        used_ns = entry.stat().st_mtime_ns
    except FileNotFoundError:
        return
    except OSError:
        scan.is_complete = False
        return
    except ManifestRejectedError:
        scan.strangers.append(path)
        files.lost[path.stem] = StoreProblem.CHECKSUM
        return
    if file_stem(manifest.conversation_id) != path.stem:
        scan.strangers.append(path)
        files.lost[path.stem] = StoreProblem.FOREIGN
        return
    whole: Manifest | None = manifest
    for name in names_of(manifest):
        if whole is not None and name not in scan.sizes:
            whole = without(whole, name)
            files.lost[path.stem] = StoreProblem.MISSING
    if whole is not None:
        scan.manifests.append(StoredManifest(whole, nbytes, used_ns))


def _entries(folder: Path, scan: FolderScan) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from list(found)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        scan.strangers.append(folder)
    except OSError:
        scan.is_complete = False
