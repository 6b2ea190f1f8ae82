"""Where snapshots lie on disk and what their files look like. Standard library only: listing needs no torch.

    <kv_dir>/<first 16 hex of the fingerprint>/fingerprint.json        canonical JSON, compared whole
    <kv_dir>/<...>/conversations/<conversation id>.safetensors         one per conversation, replaced atomically

A snapshot is a safetensors file: "token_ids" `[tokens]`, then per layer "layers.I.key" and "layers.I.value", each
`[kv_heads, tokens, head_dim]`. The header is a function of fingerprint, geometry, token count and checksums alone, so a
reader rebuilds it and compares: nothing in the file is trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.protocol.events import CacheReported, CacheState, ConversationCache

SUFFIX = ".safetensors"
TEMPORARY_SUFFIX = ".tmp"
FINGERPRINT_NAME = "fingerprint.json"
MAX_HEADER_BYTES = 16 * 1024 * 1024
_SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a snapshot: safetensors dtype name, shape, and the bytes of one item."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        size = self.itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot found on disk; `tokens` is what its header claims, unchecked."""

    conversation_id: str
    path: Path
    fingerprint_folder: str
    tokens: int
    nbytes: int
    precision: str


def build_header(specs: Sequence[TensorSpec], fingerprint: str, checksums: Sequence[str]) -> bytes:
    """The complete safetensors header, length field included, padded to 8 bytes; checksums do not change its size."""
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": "ember-kv-1",
            "fingerprint": fingerprint,
            "tokens": str(specs[0].shape[0]),
            "checksums": ",".join(checksums),
        }
    }
    offset = 0
    for spec in specs:
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_header(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The raw header (length field included) and its parsed form. Raises ValueError or OSError; allocates little."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise ValueError("cut short")
        raw = file.read(length)
    try:
        parsed = json.loads(raw)
        tokens = int(parsed["__metadata__"]["tokens"])
        ok = isinstance(parsed["__metadata__"]["checksums"], str) and tokens >= 0
    except (UnicodeDecodeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("header unreadable") from error
    if not ok:
        raise ValueError("header unreadable")
    return start + raw, parsed


class SnapshotFiles:
    """Paths, listing and deletion below one `kv_dir`."""

    def __init__(self, kv_dir: Path) -> None:
        self._kv_dir = kv_dir

    def path(self, fingerprint_folder: str, conversation_id: str) -> Path:
        return self._kv_dir / fingerprint_folder / "conversations" / (_file_stem(conversation_id) + SUFFIX)

    def prepare(self, fingerprint_folder: str, fingerprint_json: str) -> None:
        """Create the folder of a fingerprint. Raises OSError."""
        folder = self._kv_dir / fingerprint_folder
        (folder / "conversations").mkdir(parents=True, exist_ok=True, mode=0o700)
        file = folder / FINGERPRINT_NAME
        if not file.is_file() or file.read_text("utf-8") != fingerprint_json:
            scratch = file.with_suffix(TEMPORARY_SUFFIX)
            scratch.write_text(fingerprint_json, "utf-8")
            scratch.replace(file)

    def fingerprint_fields(self, fingerprint_folder: str) -> dict[str, Any] | None:
        """The fields a folder's snapshots were made under; None when unreadable."""
        try:
            fields = json.loads((self._kv_dir / fingerprint_folder / FINGERPRINT_NAME).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return fields if isinstance(fields, dict) else None

    def find(self, conversation_id: str) -> list[Path]:
        """Every snapshot of a conversation, under any fingerprint, newest first."""
        found = list(self._kv_dir.glob(f"*/conversations/{_file_stem(conversation_id)}{SUFFIX}"))
        return sorted(found, key=_modified_ns, reverse=True)

    def delete(self, conversation_id: str) -> None:
        """Remove every file of a conversation. A file that is already gone is fine; raises OSError otherwise."""
        stem = _file_stem(conversation_id)
        for pattern in (f"*/conversations/{stem}{SUFFIX}", f"*/conversations/.{stem}.*{TEMPORARY_SUFFIX}"):
            for path in self._kv_dir.glob(pattern):
                path.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Delete temporary files of saves that never finished. Call before the first save of this process."""
        for path in self._kv_dir.glob(f"*/conversations/.*{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError):
                path.unlink()

    def stored(self) -> list[StoredSnapshot]:
        """All snapshots whose header can be read, newest first."""
        found: list[StoredSnapshot] = []
        paths = sorted(self._kv_dir.glob(f"*/conversations/*{SUFFIX}"), key=_modified_ns, reverse=True)
        for path in paths:
            try:
                _, header = read_header(path)
                nbytes = path.stat().st_size
            except (OSError, ValueError):
                continue
            dtypes = {str(entry.get("dtype")) for name, entry in header.items() if name.startswith("layers.")}
            found.append(
                StoredSnapshot(
                    conversation_id=_conversation_id(path),
                    path=path,
                    fingerprint_folder=path.parent.parent.name,
                    tokens=int(header["__metadata__"]["tokens"]),
                    nbytes=nbytes,
                    precision={"BF16": "bf16", "F16": "fp16", "F32": "fp32"}.get("".join(dtypes), "mixed"),
                )
            )
        return found


def report_disk(kv_dir: Path, budget_bytes: int) -> CacheReported:
    """What lies on disk, for a reader without an engine: nothing is in memory, every conversation at most on disk."""
    conversations: dict[str, ConversationCache] = {}
    total = 0
    for snapshot in SnapshotFiles(kv_dir).stored():
        total += snapshot.nbytes
        known = conversations.get(snapshot.conversation_id)
        conversations[snapshot.conversation_id] = ConversationCache(
            conversation_id=snapshot.conversation_id,
            tokens=known.tokens if known else snapshot.tokens,
            memory_bytes=0,
            disk_bytes=snapshot.nbytes + (known.disk_bytes if known else 0),
            shared_bytes=0,
            precision=known.precision if known else snapshot.precision,
            place="disk",
            state=CacheState.ON_DISK,
        )
    return CacheReported(None, budget_bytes, 0, total, 0, 0.0, tuple(conversations.values()))


def _file_stem(conversation_id: str) -> str:
    """The id itself where it is a safe file name, else its hash (ids of imported chats may hold anything)."""
    if _SAFE_ID.fullmatch(conversation_id):
        return conversation_id
    return "h-" + hashlib.sha256(conversation_id.encode("utf-8", "surrogatepass")).hexdigest()


def _conversation_id(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
