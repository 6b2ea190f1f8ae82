"""What is stored under one fingerprint, in memory: who refers to which file, and the longest stored prefix of a prompt.

Any thread may call it; one lock guards it, and files are unlinked under that lock, so that none goes while somebody
begins to refer to it. A file stays as long as a manifest refers to it or an unfinished save holds it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from engine.kv.store.files import FileName, StoreFiles
from engine.kv.store.index import ManifestIndex
from engine.kv.store.manifest import check_manifest, encode_manifest, root_of
from engine.kv.store.records import ChunkRef, Manifest, StoredChunk
from engine.kv.store.scan import StoredManifest, names_of, scan_folder, without
from engine.kv.store.scratch_file import ScratchFile, sync_folder


class Catalog:
    """The manifests of one fingerprint, read at construction, and the sizes of all its files."""

    def __init__(self, files: StoreFiles, fingerprint: str) -> None:
        self.files = files
        self.fingerprint = fingerprint
        self._lock = threading.Lock()
        self._index = ManifestIndex()
        self._holds: Counter[FileName] = Counter()
        self._damaged: set[FileName] = set()  # known to be bad and not yet removed
        scan = scan_folder(files, fingerprint)
        self._sizes = scan.sizes
        self._is_complete = scan.is_complete
        for stored in scan.manifests:
            self._index.add(stored.manifest, stored.nbytes, stored.used_ns)

    # -- looking ---------------------------------------------------------------------------------------------------

    def manifest(self, conversation_id: str) -> Manifest | None:
        with self._lock:
            entry = self._index.entries.get(conversation_id)
        return entry.manifest() if entry else None

    def conversation_ids(self) -> list[str]:
        """Most recently used first."""
        with self._lock:
            return sorted(self._index.entries, key=lambda key: self._index.entries[key].used_ns, reverse=True)

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest conversation; 0 when nothing is stored."""
        with self._lock:
            return max((entry.num_tokens for entry in self._index.entries.values()), default=0)

    def used_ns(self, conversation_id: str) -> int:
        """When a conversation was last saved or touched; 0 if it is not stored."""
        with self._lock:
            entry = self._index.entries.get(conversation_id)
            return entry.used_ns if entry else 0

    def longest_prefix(self, token_ids: Sequence[int], prefer: str | None = None) -> tuple[Manifest, int] | None:
        """The exact manifest that shares the most leading ids with `token_ids`, and how many (at least one).

        Of equals `prefer` wins, then the most recently used. Whole chunks are found by key, the rest by comparing ids.
        """
        root = root_of(self.fingerprint, is_exact=True)
        with self._lock:
            found = self._index.longest_prefix(root, token_ids, prefer)
        return (found[0].manifest(), found[1]) if found else None

    def is_stored(self, key: str, *, is_state: bool = False) -> bool:
        """Whether a manifest refers to this file and it is there."""
        name = FileName(key, is_state)
        with self._lock:
            return bool(self._index.users.get(name)) and self._is_there(name)

    def disk_bytes(self, conversation_id: str) -> int:
        """Of the manifest and all files it refers to, shared ones too; 0 if it is not stored."""
        with self._lock:
            entry = self._index.entries.get(conversation_id)
            return entry.nbytes + sum(self._sizes.get(name, 0) for name in entry.names) if entry else 0

    def shared_bytes(self, conversation_id: str) -> int:
        """Of the files other manifests refer to as well."""
        with self._lock:
            entry = self._index.entries.get(conversation_id)
            names = entry.names if entry else frozenset[FileName]()
            return sum(self._sizes.get(name, 0) for name in names if len(self._index.users[name]) > 1)

    @property
    def version(self) -> int:
        """Changes whenever a manifest does."""
        return self._index.version

    def stored(self) -> list[tuple[StoredManifest, tuple[StoredChunk, ...]]]:
        """Every manifest, without its token ids, and its chunks in order."""
        with self._lock:
            return [
                (StoredManifest(one.bare, one.nbytes, one.used_ns), tuple(map(self._stored_chunk, one.bare.chunks)))
                for one in self._index.entries.values()
            ]

    def _stored_chunk(self, ref: ChunkRef) -> StoredChunk:
        name = FileName(ref.key, False)
        return StoredChunk(ref.key, ref.tokens, self._sizes.get(name, 0), frozenset(self._index.users.get(name, ())))

    @property
    def total_bytes(self) -> int:
        """Of all chunks, states and manifests on disk, those nobody refers to included."""
        with self._lock:
            return sum(self._sizes.values()) + sum(entry.nbytes for entry in self._index.entries.values())

    # -- changing --------------------------------------------------------------------------------------------------

    def put(self, manifest: Manifest, guard: AbstractContextManager[None] | None = None) -> int:
        """Write a manifest whose files all exist; then remove what only the previous one referred to.

        `guard` is entered around the moment the manifest appears; it may raise to prevent that. Returns the bytes
        written. Raises OSError (FileNotFoundError if a file has gone), ManifestRejectedError.
        """
        check_manifest(manifest, self.fingerprint)
        data = encode_manifest(manifest)
        path = self.files.manifest_path(self.fingerprint, manifest.conversation_id)
        self.files.make_folder(path.parent)
        with self.files.scratch(path) as scratch:
            scratch.write(data)
            scratch.finish()
            with guard or nullcontext(), self._lock:
                gone = [name for name in names_of(manifest) if not self._is_there(name)]
                if gone:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), gone[0].key)
                scratch.publish()
                old = self._index.entries.get(manifest.conversation_id)
                self._index.add(manifest, len(data), path.stat().st_mtime_ns)
        sync_folder(path.parent)  # before this the old manifest may come back, and it needs its files
        if old:
            self._purge(old.names)
        return len(data)

    def touch(self, conversation_id: str) -> None:
        """The conversation is used now. Best effort on disk."""
        path = self.files.manifest_path(self.fingerprint, conversation_id)
        with self._lock:
            if entry := self._index.entries.get(conversation_id):
                with contextlib.suppress(OSError):
                    os.utime(path)
                    entry.used_ns = path.stat().st_mtime_ns

    def remove(self, conversation_id: str) -> int:
        """Delete a conversation's manifest and the files nobody else needs. Returns the bytes freed. Raises OSError."""
        path = self.files.manifest_path(self.fingerprint, conversation_id)
        with self._lock:
            path.unlink(missing_ok=True)
            entry = self._index.remove(conversation_id)
        if path.parent.is_dir():
            sync_folder(path.parent)
        return entry.nbytes + self._purge(entry.names, is_strict=True) if entry else 0

    def drop_from(self, key: str, *, is_state: bool = False) -> list[str]:
        """Delete a damaged file, and cut every manifest that needs it to what comes before (a state: just the state).

        Returns the conversations concerned. Never raises: what cannot be rewritten is deleted, else remembered as bad.
        """
        name = FileName(key, is_state)
        orphans: set[FileName] = set()
        with self._lock:
            self._damaged.add(name)
            with contextlib.suppress(OSError):
                self._unlink(name)
            concerned = sorted(self._index.users.get(name, ()))
            for conversation_id in concerned:
                orphans |= self._index.entries[conversation_id].names
                self._replace(conversation_id, without(self._index.entries[conversation_id].manifest(), name))
        with contextlib.suppress(OSError):
            self._purge(orphans)
        return concerned

    # -- files of unfinished saves ---------------------------------------------------------------------------------

    def hold(self, names: Iterable[FileName]) -> None:
        """Keep these files (existing or to come) until `let_go`."""
        with self._lock:
            self._holds.update(names)

    def let_go(self, names: Iterable[FileName]) -> None:
        """End a hold; files nobody refers to are removed, best effort."""
        names = list(names)
        with self._lock:
            self._holds -= Counter(names)
        self._purge(names)

    def has_whole(self, name: FileName, nbytes: int) -> bool:
        """Whether the file is on disk with this size and not known to be damaged."""
        with self._lock:
            if name in self._damaged:
                return False
            try:
                is_whole = self.files.path(self.fingerprint, name).stat().st_size == nbytes
            except OSError:
                return False
            if is_whole:
                self._sizes[name] = nbytes
            return is_whole

    def publish(self, scratch: ScratchFile, name: FileName, nbytes: int) -> None:
        """Give a finished chunk or state its name. Raises OSError."""
        with self._lock:
            scratch.publish()
            self._sizes[name] = nbytes
            self._damaged.discard(name)

    def purge_orphans(self) -> int:
        """Remove every file without manifest or hold. Returns the bytes freed. Raises OSError after trying all."""
        with self._lock:
            if not self._is_complete:
                raise OSError(errno.EIO, "some manifests could not be read, so unused files are not known")
            names = [name for name in self._sizes if name not in self._index.users and not self._holds[name]]
        return self._purge(names, is_strict=True)

    # -- private ---------------------------------------------------------------------------------------------------

    def _replace(self, conversation_id: str, manifest: Manifest | None) -> None:
        """Put a cut manifest in place of the present one, or none; the time of last use stays."""
        used_ns = self._index.entries[conversation_id].used_ns
        path = self.files.manifest_path(self.fingerprint, conversation_id)
        if manifest is not None:
            data = encode_manifest(manifest)
            with contextlib.suppress(OSError), self.files.scratch(path) as scratch:
                scratch.write(data)
                scratch.set_modified_ns(used_ns)
                scratch.finish()
                scratch.publish()
                self._index.add(manifest, len(data), used_ns)
                sync_folder(path.parent)
                return
        self._index.remove(conversation_id)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _purge(self, names: Iterable[FileName], *, is_strict: bool = False) -> int:
        """Unlink those of `names` nobody needs; returns the bytes freed. Raises OSError only if strict, after all."""
        freed = 0
        problem: OSError | None = None
        for name in names:
            with self._lock:
                if name not in self._sizes or self._index.users.get(name) or self._holds[name] > 0:
                    continue
                try:
                    freed += self._unlink(name)
                except OSError as error:
                    problem = problem or error
        if problem is not None and is_strict:
            raise problem
        return freed

    def _unlink(self, name: FileName) -> int:
        self.files.path(self.fingerprint, name).unlink(missing_ok=True)
        self._damaged.discard(name)
        return self._sizes.pop(name, 0)

    def _is_there(self, name: FileName) -> bool:
        return name in self._sizes and name not in self._damaged
