"""Deletes a conversation from the disk, wherever it is. Needs no engine."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from engine.kv.chat_key import conversation_of
from engine.kv.store.catalog import Catalog
from engine.kv.store.files import BRANCH_MARK, CONVERSATIONS, DATA_SUFFIX, MANIFEST_SUFFIX, StoreFiles, file_stem
from engine.kv.store.manifest import read_manifest
from engine.kv.store.problems import ManifestRejectedError
from engine.kv.store.records import FORMAT_VERSION


def delete_from_disk(kv_dir: Path, conversation_id: str) -> None:
    """The same for a caller that has nothing open. Raises OSError; what is no folder holds nothing."""
    if kv_dir.is_dir():
        delete_conversation(StoreFiles(kv_dir, FORMAT_VERSION), conversation_id)


def delete_unknown(kv_dir: Path, known_ids: AbstractSet[str]) -> list[str]:
    """Delete what is stored of any other conversation, and return their ids. Raises OSError."""
    if not kv_dir.is_dir():
        return []
    files = StoreFiles(kv_dir, FORMAT_VERSION)
    known = {file_stem(conversation_id).partition(BRANCH_MARK)[0] for conversation_id in known_ids}
    deleted: list[str] = []
    for fingerprint in files.fingerprints():
        for path in (files.folder(fingerprint) / CONVERSATIONS).glob(f"*{MANIFEST_SUFFIX}"):
            if path.stem.partition(BRANCH_MARK)[0] in known:
                continue
            try:
                manifest, _ = read_manifest(path, fingerprint)
            except ManifestRejectedError:
                continue  # cleared away when the store is opened
            conversation_id = conversation_of(manifest.conversation_id)
            delete_conversation(files, conversation_id)
            deleted.append(conversation_id)
    return list(dict.fromkeys(deleted))


def delete_conversation(files: StoreFiles, conversation_id: str, catalogs: Sequence[Catalog] = ()) -> None:
    """Remove the manifests of all branches and the files no other conversation needs, under every fingerprint; then all
    orphans.

    `catalogs` are those in memory, which have to know; folders without one are read. No save of the conversation may be
    under way (`StoreWriter.discard`). Tries everything, then raises the first OSError.
    """
    known = {catalog.fingerprint: catalog for catalog in catalogs}
    problem: OSError | None = None
    for folder in files.folders():
        try:
            _delete_in_folder(files, conversation_id, folder, known)
        except OSError as error:
            problem = problem or error
    for stray in list(files.strays):
        try:
            stray.unlink(missing_ok=True)
            files.strays.discard(stray)
        except OSError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _delete_in_folder(files: StoreFiles, conversation_id: str, folder: Path, known: dict[str, Catalog]) -> None:
    stem = folder / CONVERSATIONS / file_stem(conversation_id)
    stem.with_name(stem.name + DATA_SUFFIX).unlink(missing_ok=True)  # a snapshot of format 1
    fingerprint = files.fingerprint_of(folder)
    catalog = known.get(fingerprint or "")
    branches = list(stem.parent.glob(f"{stem.name}{BRANCH_MARK}*{MANIFEST_SUFFIX}"))
    if fingerprint is None:
        for path in (stem.with_name(stem.name + MANIFEST_SUFFIX), *branches):
            path.unlink(missing_ok=True)
        return
    if catalog is None:
        catalog = Catalog(files, fingerprint)  # even without a manifest: an earlier attempt may have left files
    catalog.remove(conversation_id)
    for key in catalog.conversation_ids():
        if conversation_of(key) == conversation_id:
            catalog.remove(key)
    for path in branches:  # those that could not be read
        path.unlink(missing_ok=True)
    catalog.purge_orphans()
