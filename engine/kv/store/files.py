"""Where everything lies below `kv_dir`. Paths and names only; what they hold is others' business.

<kv_dir>/<first 16 hex of the fingerprint>/fingerprint.json     canonical JSON, compared whole
<kv_dir>/<...>/chunks/<aa>/<key>.safetensors                    up to 256 tokens, immutable, named by content
<kv_dir>/<...>/states/<aa>/<key>.safetensors                    states of layers that cannot be cropped
<kv_dir>/<...>/conversations/<conversation id>.json             manifest, replaced atomically, written last
<kv_dir>/<...>/conversations/<conversation id>~<branch>.json    of another branch of the same conversation
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from engine.kv.chat_key import branch_of, conversation_of
from engine.kv.store.problems import StoreProblem
from engine.kv.store.scratch_file import ScratchFile, sync_folder

FOLDER_NAME = re.compile(r"[0-9a-f]{16}")
KEY = re.compile(r"[0-9a-f]{64}")
DATA_SUFFIX = ".safetensors"
MANIFEST_SUFFIX = ".json"
BRANCH_MARK = "~"
FINGERPRINT_NAME = "fingerprint.json"
CHUNKS = "chunks"
STATES = "states"
CONVERSATIONS = "conversations"
_MAX_FINGERPRINT_BYTES = 64 * 1024
# Lower case only: some file systems do not tell "A" from "a".
_SAFE_ID = re.compile(r"(?!h-)[a-z0-9_-]{1,128}")


class FileName(NamedTuple):
    """A chunk or a state, by its key."""

    key: str
    is_state: bool


class StoreFiles:
    """Paths below one `kv_dir`. `format_version`: folders made under another one are worthless."""

    def __init__(self, kv_dir: Path, format_version: int) -> None:
        self.kv_dir = kv_dir
        self.format_version = format_version
        self.strays: set[Path] = set()  # temporary files that could not be removed
        self.lost: dict[str, StoreProblem] = {}  # by file stem: conversations found damaged when a folder was read

    def folder(self, fingerprint: str) -> Path:
        return self.kv_dir / fingerprint[:16]

    def path(self, fingerprint: str, name: FileName) -> Path:
        kind = STATES if name.is_state else CHUNKS
        return self.folder(fingerprint) / kind / name.key[:2] / (name.key + DATA_SUFFIX)

    def manifest_path(self, fingerprint: str, conversation_id: str) -> Path:
        return self.folder(fingerprint) / CONVERSATIONS / (file_stem(conversation_id) + MANIFEST_SUFFIX)

    def manifest_paths(self, fingerprint: str, conversation_id: str) -> list[Path]:
        """Those that are there, of all branches of a conversation."""
        folder = self.folder(fingerprint) / CONVERSATIONS
        stem = file_stem(conversation_id)
        own = folder / (stem + MANIFEST_SUFFIX)
        return [*([own] if own.is_file() else []), *folder.glob(f"{stem}{BRANCH_MARK}*{MANIFEST_SUFFIX}")]

    def prepare(self, fingerprint: str, fingerprint_json: str) -> None:
        """Create the folder of a fingerprint. `fingerprint` is the SHA-256 of its canonical JSON. Raises OSError."""
        if hashlib.sha256(fingerprint_json.encode()).hexdigest() != fingerprint:
            raise ValueError("the fingerprint does not belong to these fields")
        self.make_folder(self.folder(fingerprint) / CONVERSATIONS)
        file = self.folder(fingerprint) / FINGERPRINT_NAME
        try:
            is_there = file.read_text("utf-8") == fingerprint_json
        except (FileNotFoundError, ValueError):
            is_there = False
        if not is_there:
            with self.scratch(file) as scratch:
                scratch.write(fingerprint_json.encode())
                scratch.finish()
                scratch.publish()
            sync_folder(file.parent)

    def fingerprint_fields(self, folder: str) -> dict[str, Any] | None:
        """The fields a folder's content was made under; None when unreadable."""
        try:
            found = self._read_fingerprint(self.kv_dir / folder)
        except OSError:
            return None
        return found[1] if found else None

    def fingerprint_of(self, folder: Path) -> str | None:
        """The fingerprint a folder belongs to; None if its content is of no use. Raises OSError if that is unknown."""
        found = self._read_fingerprint(folder)
        if found is None or found[1].get("format") != self.format_version:
            return None
        return found[0]

    def digest_of(self, folder: Path) -> str | None:
        """The fingerprint a folder belongs to, whatever its format. Raises OSError."""
        found = self._read_fingerprint(folder)
        return found[0] if found else None

    def folders(self) -> list[Path]:
        """All folders named like a fingerprint, by name. Raises OSError."""
        try:
            return sorted(e for e in self.kv_dir.iterdir() if FOLDER_NAME.fullmatch(e.name) and e.is_dir())
        except FileNotFoundError:
            return []

    def fingerprints(self) -> list[str]:
        """Of all folders that can be used. Raises OSError."""
        found = (self.fingerprint_of(folder) for folder in self.folders())
        return [fingerprint for fingerprint in found if fingerprint is not None]

    def scratch(self, target: Path) -> ScratchFile:
        return ScratchFile(target, self.strays)

    def make_folder(self, folder: Path) -> None:
        """Create a folder below `kv_dir` and its parents, private to the user, each one durable. Raises OSError."""
        if folder.is_dir():
            return
        if folder != self.kv_dir:
            self.make_folder(folder.parent)
            folder.mkdir(exist_ok=True, mode=0o700)
            try:
                sync_folder(folder.parent)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # so that the next attempt makes and syncs it again
                raise
        else:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _read_fingerprint(self, folder: Path) -> tuple[str, dict[str, Any]] | None:
        path = folder / FINGERPRINT_NAME
        if not path.is_file():  # a folder, a loop of links or a pipe will never be read
            return None
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_FINGERPRINT_BYTES + 1)
            digest = hashlib.sha256(data).hexdigest()
            if len(data) > _MAX_FINGERPRINT_BYTES or not digest.startswith(folder.name):
                return None
            fields = json.loads(data)
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return (digest, fields) if isinstance(fields, dict) else None


def file_stem(key: str) -> str:
    """The conversation's id where it is a safe file name, else its hash (ids of imported chats may hold anything).

    Of a branch, that and the branch's name: a conversation's files are found by their names alone.
    """
    stem, branch = _safe(conversation_of(key)), branch_of(key)
    return f"{stem}{BRANCH_MARK}{_safe(branch)}" if branch else stem


def _safe(name: str) -> str:
    if _SAFE_ID.fullmatch(name):
        return name
    return "h-" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
